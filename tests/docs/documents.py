"""What the documents say of the commands, made from their declarations: the manual page, and the
parts of docs/commands.md and docs/api.md between `<!-- made by … -->` and `<!-- end -->`.

`python -m tests.docs.documents` writes them. With `--to FOLDER` it writes them there.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperGroup

from mirrord.cli import table
from mirrord.cli.main import build
from mirrord.control.command import Command, Right
from mirrord.control.methods import methods
from tests.docs.wire_methods import type_of
from tests.support.unit import ROOT

DOCUMENTS = ("docs/commands.md", "docs/api.md", "packaging/man/mirrord.1")
_PART = re.compile(r"(<!-- made by [^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)


def _subcommands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group, or the one that it is, by the words that call them."""
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _subcommands(each, f"{path} {name}")


def usage(path: str, command: Any) -> str:
    arguments = [
        (each.metavar or "").rstrip(".…") + ("..." if each.nargs == -1 else "")
        for each in command.params
        if each.param_type_name == "argument"
    ]
    return " ".join([path, *arguments])


def options(command: Any) -> Iterator[tuple[str, str]]:
    """Its options, as they are written, and what they mean."""
    for each in command.params:
        if each.param_type_name != "option" or each.name in ("help", "as_json"):
            continue
        number = "N" if "range" in each.type.name else each.type.name.upper()
        value = "" if each.is_flag else f" {each.metavar or number}"
        default = (
            f" (default: {each.default})" if each.default not in (None, "", False, [], ()) else ""
        )
        assert each.help, each.opts
        yield ", ".join(each.opts) + value, f"{each.help}{default}"


def commands_by_panel() -> Iterator[tuple[str, list[tuple[str, table.Entry, dict[str, Any]]]]]:
    group = typer.main.get_group(build(list(table.commands())))
    for panel in table.PANELS:
        yield (
            panel,
            [
                (name, entry, dict(_subcommands(group.commands[name], f"mirrord {name}")))
                for name, entry in table.commands().items()
                if entry.panel == panel
            ],
        )


def commands_md() -> str:
    lines: list[str] = []
    for panel, found in commands_by_panel():
        lines += ["", f"## {panel}"]
        for name, entry, each in found:
            lines += ["", f"### {name}", ""]
            if len(each) == 1:
                [(path, command)] = each.items()
                lines += [f"`{usage(path, command)}`", "", entry.text]
                rows = [f"| `{_cell(each)}` | {_cell(text)} |" for each, text in options(command)]
                lines += ["", "| option | meaning |", "|---|---|", *rows] if rows else []
            else:
                lines += [entry.text, "", "| command | does |", "|---|---|"]
                lines += [
                    f"| `{_cell(usage(path, command))}` | {_cell(_first(command.help))} |"
                    for path, command in each.items()
                ]
                lines += _options_of_group(each)
    return "\n".join(lines[1:]) + "\n"


def _options_of_group(group: dict[str, Any]) -> list[str]:
    """A table of the options of a group's commands: each once, with the commands that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for path, command in group.items():
        for option in options(command):
            found.setdefault(option, []).append(path.split()[-1])
    rows = [
        f"| `{_cell(option)}` | {'all' if len(paths) == len(group) else ', '.join(paths)} "
        f"| {_cell(text)} |"
        for (option, text), paths in found.items()
    ]
    return ["", "| option | of | meaning |", "|---|---|---|", *rows] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _first(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def api_md() -> str:
    rows = ["| method | socket | arguments | result |", "|---|---|---|---|"]
    for name, command in sorted(methods().items()):
        socket = "status" if command.right is Right.READ else "control"
        rows.append(f"| `{name}` | {socket} | {_arguments(command)} | {_result(command)} |")
    return "\n".join(rows) + "\n"


def _arguments(command: Command[..., Any]) -> str:
    found = []
    for each in command.parameters:
        needed = "" if each.default is ... else ", optional"
        found.append(f"`{each.name}` ({_type(each.kind)}{needed})")
    return ", ".join(found)


def _type(kind: Any) -> str:
    return (
        "path"
        if kind is Path
        else " or ".join("path" if one is Path else type_of(one) for one in _united(kind))
    )


def _united(kind: Any) -> list[Any]:
    parts = [one for one in typing.get_args(kind) if one is not type(None)]
    return parts if type(None) in typing.get_args(kind) else [kind]


def _result(command: Command[..., Any]) -> str:
    name = getattr(command.result, "__name__", "object")
    return "result of a verb" if name == "Result" else "report"


def manual() -> str:
    lines = [
        '.TH MIRRORD 1 "" "mirrord"',
        ".SH NAME",
        "mirrord \\- keep a second, consistent copy of a volume",
        ".SH SYNOPSIS",
        ".B mirrord",
        "[OPTIONS] COMMAND [ARGS]...",
    ]
    for panel, found in commands_by_panel():
        lines.append(f".SH {panel.upper()}")
        for _name, entry, each in found:
            for path, command in each.items():
                lines += [f'.SS "{_roff(usage(path, command))}"', _roff(_first(command.help))]
                for option, text in options(command):
                    lines += [".TP", f"\\fB{_roff(option)}\\fR", _roff(text)]
            for paragraph in entry.text.split("\n\n"):
                lines += [".PP", _roff(" ".join(paragraph.split()))]
    lines += [".SH SEE ALSO", "The documents in docs/; each command has \\-\\-help."]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    text = re.sub(r"\[([^\]\[]*)\]\([^)]*\)", r"\1", text).replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return text if text[:1] not in ".'" else "\\&" + text


def made(name: str) -> str:
    """A document as it must be."""
    if name.endswith(".1"):
        return manual()
    part = commands_md() if name.endswith("commands.md") else api_md()
    text = (ROOT / name).read_text(encoding="utf-8")
    return _PART.sub(lambda found: f"{found[1]}{part}{found[2]}", text)


if __name__ == "__main__":
    folder = Path(sys.argv[2]) if sys.argv[1:2] == ["--to"] else ROOT
    for name in DOCUMENTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(made(name), encoding="utf-8")
