"""The commands, by panel of the help page. What a command says of itself is in the docstring of its
module: a line of help, `Panel: TITLE NUMBER` (the place on the page), the text for
docs/commands.md. It is read, not imported: the help page loads no command.
"""

from __future__ import annotations

import keyword
import os
from functools import cache
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
_ROOT = os.path.dirname(os.path.dirname(__file__))
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
    files = [file for room in _ROOMS for file in os.listdir(f"{_ROOT}/{room}/commands")]
    names = {file[:-3].rstrip("_").replace("_", "-") for file in files if file.endswith(".py")}
    found = {name: each for name in sorted(names) if (each := entry_of(name)) is not None}
    return dict(sorted(found.items(), key=lambda each: (PANELS.index(each[1][0]), each[1][1])))


@cache
def entry_of(name: str) -> Entry | None:
    """What a command says of itself; None when there is no such command."""
    for file in _files_of(name):
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - pathlib takes time to load
            docstring = opened.read().partition('"""')[2].partition('"""')[0]
        help, _, rest = docstring.strip().partition("\n\nPanel: ")
        place, _, text = rest.partition("\n\n")
        panel, _, number = place.rpartition(" ")
        if panel in PANELS:
            return Entry(panel, int(number), help, text)
    return None


def module_of(name: str) -> str:
    """The module and the function of a command; a Python keyword has an underscore after it."""
    return f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")


def _files_of(name: str) -> list[str]:
    """The files that have the command, or parts of its group."""
    if not name.replace("-", "").isalpha():  # no path, and no module's name
        return []
    found = [f"{_ROOT}/{room}/commands/{module_of(name)}.py" for room in _ROOMS]
    return [file for file in found if os.path.exists(file)]


def modules_of(name: str) -> list[str]:
    """The full names of the modules that have the command, or parts of its group."""
    return [
        f"mirrord.{file.removeprefix(_ROOT)[1:-3].replace('/', '.')}" for file in _files_of(name)
    ]


def help_page() -> str:
    """The help page, from this table alone: it loads no command."""
    import shutil
    import textwrap

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
