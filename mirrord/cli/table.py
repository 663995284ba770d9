"""The commands, by panel of the help page. What a command says of itself is in the docstring of its
module: a line of help, `Panel: TITLE NUMBER` (the place on the page), the text for
docs/commands.md. It is read, not imported: the help page loads no command.
"""

from __future__ import annotations

import keyword
import re
import shutil
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

_EPILOG = "'mirrord COMMAND --help' describes a command. --debug shows tracebacks."
_SUMMARY = "Keeps a second, consistent copy of a volume: SnapMirror for Linux."

PANELS = (
    "Mirrors",
    "Failover and failback",
    "Monitoring",
    "Daemon",
    "Hosts",
    "Planning",
    "Other",
)
#: Where commands are: those on mirrors, and those of the command line alone.
_ROOMS = ("control", "cli")
_PLACE = re.compile(r"(.*)\n\nPanel: (.+) (\d+)(?:\n\n(.*))?", re.DOTALL)
_OPTIONS = {
    "--version": "Show the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell.",
    "-h, --help": "Show this message and exit.",
}


class Entry(NamedTuple):
    """A command, or a group of them. text: for docs/commands.md."""

    panel: str
    number: int
    help: str
    text: str


@cache
def commands() -> dict[str, Entry]:
    """All commands by name, as the help page has them."""
    found = {}
    for room in _ROOMS:
        for file in (Path(__file__).parents[1] / room / "commands").glob("*.py"):
            docstring = file.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
            if match := _PLACE.fullmatch(docstring.strip()):
                help, panel, number, text = match.groups()
                name = file.stem.rstrip("_").replace("_", "-")
                found[name] = Entry(panel, int(number), help, text or "")
    return dict(sorted(found.items(), key=lambda each: (PANELS.index(each[1][0]), each[1][1])))


def module_of(name: str) -> str:
    """The module and the function of a command; a Python keyword has an underscore after it."""
    return f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")


def modules_of(name: str) -> list[str]:
    """The full names of the modules that have the command, or parts of its group."""
    root = Path(__file__).parents[1]
    return [
        f"mirrord.{room}.commands.{module_of(name)}"
        for room in _ROOMS
        if (root / room / "commands" / f"{module_of(name)}.py").exists()
    ]


def help_page() -> str:
    """The help page, from this table alone: it loads no command."""
    width = max(40, min(100, shutil.get_terminal_size().columns))
    indent = max(map(len, [*commands(), *_OPTIONS])) + 4
    lines = ["Usage: mirrord [OPTIONS] COMMAND [ARGS]...", "", *textwrap.wrap(_SUMMARY, width)]
    panels = {
        title: {name: each.help for name, each in commands().items() if each.panel == title}
        for title in PANELS
    }
    for title, rows in {**panels, "Options": _OPTIONS}.items():
        lines += ["", f"{title}:"]
        for name, help in rows.items():
            text = textwrap.wrap(help, width - indent)
            lines += [
                f"  {name:<{indent - 2}}{text[0]}",
                *(" " * indent + more for more in text[1:]),
            ]
    return "\n".join([*lines, "", *textwrap.wrap(_EPILOG, width)])
