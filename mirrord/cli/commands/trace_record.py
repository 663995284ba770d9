"""`mirrord trace record`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from mirrord.cli.output import Json, print_json
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import Output, need_analysis
from mirrord.core.units import format_size, parse_duration


def record(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="A volume (btrfs:/PATH, …) or a block device (/dev/…)."
        ),
    ],
    output: Output,
    interval: Annotated[
        str | None, typer.Option("--interval", help="Between snapshots, as 15s, 5 min. [60s]")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", help="As 2h, 1d; else until Ctrl-C.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The trace's name in reports.")] = "",
    files: Annotated[
        bool,
        typer.Option("--files", help="Also count what a mirror of whole files would transfer."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Record what users do to a live volume, until Ctrl-C or for a while.

    Of a volume: which blocks were allocated and freed, by snapshots at an interval. Of a block
    device: each request that the kernel gets (blktrace's events; needs root).
    """
    need_analysis()
    from mirrord.control import recording

    wanted = recording.Wanted(
        output,
        parse_duration(interval) if interval is not None else None,
        parse_duration(duration) if duration is not None else None,
        name,
        files,
    )
    told = _Told(what, quiet=as_json)
    try:
        found = recording.record(what, wanted, told.numbers, _note)
    finally:
        told.end()
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        print(line)


def _note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['records']:,} records of {found['what']} are in {found['file']}: {_sums(found)}."
    ]
    if found.get("changed_files") is not None:
        lines.append(
            f"A mirror of whole files would have transferred {found['changed_files']:,} files of "
            f"{format_size(found['whole_file_bytes'])} for that."
        )
    if found.get("missed"):
        lines.append(
            f"{found['missed']} of {found['intervals'] + found['missed']} intervals went into the "
            "one after them, as a snapshot took too long: take a longer --interval."
        )
    if found.get("lost"):
        lines.append(f"{found['lost']} requests came faster than they were read and are missing.")
    if not found["records"]:
        lines.append("Nothing was written to it meanwhile.")
    return lines


def _sums(found: dict[str, Any]) -> str:
    if "intervals" in found:
        return (
            f"{format_size(found['allocated_bytes'])} allocated and "
            f"{format_size(found['freed_bytes'])} freed in {found['intervals']} intervals"
        )
    return (
        f"{format_size(found['written_bytes'])} written, {format_size(found['read_bytes'])} read, "
        f"{format_size(found['trimmed_bytes'])} trimmed"
    )


class _Told:
    """One line at the terminal that says how it goes; elsewhere, once, that it has begun."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._line = ProgressLine(quiet=quiet, at_once=True)
        self._begun = f"recording {what}; Ctrl-C (SIGINT) ends it"
        self._once = not quiet and not sys.stderr.isatty()

    def numbers(self, found: dict[str, Any]) -> None:
        """Show the numbers in place of those before."""
        if self._once:
            self._once = False
            print(self._begun, file=sys.stderr, flush=True)
        self._line.say(
            lambda: f"recording (Ctrl-C ends it): {found['records']:,} records, {_sums(found)}"
        )

    def end(self) -> None:
        """Leave the line."""
        self._line.close(keep=True)
