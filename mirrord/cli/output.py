"""Printing of results as text and JSON, and asking for confirmation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from mirrord.core.errors import Refused

if TYPE_CHECKING:
    from mirrord.control.command import Runner
    from mirrord.core.results import Result


@contextmanager
def running(*, quiet: bool = False) -> Iterator[Runner]:
    """The daemon, where one runs, or else the service in this process; with progress unless
    `quiet`.
    """
    from mirrord.cli.watch import watcher
    from mirrord.daemon import build

    with watcher(quiet=quiet) as watching, closing(build.runner(watching)) as runner:
        yield runner


def show(result: Result, *, as_json: bool) -> None:
    """Print the result of a verb."""
    answer({"status": result.status, **result.data}, [result.text], as_json=as_json)


def answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command found: the document as JSON, or else the lines."""
    if as_json:
        print(json.dumps(document, indent=2 if sys.stdout.isatty() else None))
    else:
        for line in lines:
            print(line)


def confirm(plan: Result, *, command: str, as_json: bool) -> None:
    """Show the plan and ask; without a terminal, `Refused`."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        error = Refused(
            "confirmation required (`--yes`)", hint=f"Read the plan, then: {command} --yes"
        )
        if as_json:
            error.data = {"status": plan.status, **plan.data}
        else:
            print(plan.text)
        sys.stdout.flush()  # the plan before the error, also where both go into one pipe
        raise error
    import typer

    print(plan.text)
    typer.confirm("Continue?", abort=True)
