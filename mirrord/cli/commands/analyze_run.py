"""What all commands of `mirrord analyze` do with a report: sign it, write it, print it."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrord.cli.output import answer
from mirrord.core.errors import Unsupported
from mirrord.core.text import harmless

if TYPE_CHECKING:
    from mirrord.analysis.reports.plots import Report

Traces = Annotated[
    list[str], typer.Argument(metavar="TRACE…", help="Stored traces, or traces in a known format.")
]


def _folder(text: str) -> Path:
    if not text:  # (Path("") is the working directory.)
        raise typer.BadParameter("the name of a folder is empty")
    return Path(text)


Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", parser=_folder, help="Write a report there: HTML, PNG, SVG, CSV …"),
]


@contextmanager
def needs_extras() -> Iterator[None]:
    """Report a missing package of an extra as an error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mirrord"):
            raise
        extra = "cluster" if (error.name or "").startswith(("dask", "distributed")) else "analysis"
        raise Unsupported(
            f"the package '{error.name}' is not installed",
            why="the analysis needs it",
            hint=f"Install the extra: pip install 'mirrord[{extra}]'.",
        ) from None


def publish(command: Callable[..., Any], given: dict[str, Any], make: Callable[[], Report]) -> None:
    """Make the report, write its files, print the conclusions. given: the command's options."""
    out: Path | None = given["out"]
    if out is not None:
        from mirrord.analysis.reports.save import check

        check(out)
    report = _signed(make(), given, inspect.signature(command))
    files: list[str] = []
    if out is not None:
        from mirrord import __version__
        from mirrord.analysis.reports.save import save

        files = save(report, out, version=__version__)
    lines = [*_tables(report), *report.conclusions]
    lines += [f"assumed {line}" for line in report.assumptions]
    lines += [f"warning: {line}" for line in report.warnings]
    if out is not None:
        lines.append(f"Report: {out / report.kind}.html, and {len(files) - 1} files beside it")
    document = {
        "status": "done",
        "out": None if out is None else str(out),
        "files": files,
        "warnings": list(report.warnings),
        "conclusions": list(report.conclusions),
        "assumptions": list(report.assumptions),
        "provenance": report.provenance,
        **report.data,
    }
    answer(document, lines, as_json=given["as_json"])


def _signed(report: Report, given: dict[str, Any], signature: inspect.Signature) -> Report:
    """The report with the command that makes it again, and the files that it is made from."""
    from mirrord import __version__

    defaults = signature.parameters
    # Where it was computed is left out: the report is the same.
    apart = ("traces", "options", "out", "cluster", "as_json")
    options = {name: value for name, value in given.items() if name not in apart}
    changed = {name: value for name, value in options.items() if value != defaults[name].default}
    reading = given["options"].given()
    if "dedup_s" in reading:
        reading["dedup"] = f"{float(reading.pop('dedup_s')):g}s"
    words = ["mirrord", "analyze", report.kind, *given["traces"]]
    for name, value in {**changed, **reading}.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            words += [flag] if each == "True" else [flag, str(each)]
    command = shlex.join(words)
    files = [
        {
            "path": os.path.abspath(each),
            "bytes": os.stat(each).st_size,
            "changed_ns": os.stat(each).st_mtime_ns,
        }
        for each in given["traces"]
        if os.path.isfile(each)
    ]
    source = f"Made by: {harmless(command)} (mirrord {__version__})."
    provenance: dict[str, object] = {
        "command": command,
        "version": __version__,
        "files": files,
        "options": {**options, **reading},
    }
    return replace(report, method=(*report.method, source), provenance=provenance)


def _tables(report: Report) -> Iterator[str]:
    """The tables to decide by, for the terminal."""
    from mirrord.analysis.reports.tables import plain_of

    for section in report.sections:
        if section.short is not None:
            yield from (f"{section.title}:", plain_of(section.short), "")
