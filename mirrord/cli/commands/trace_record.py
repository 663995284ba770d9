"""`mirrord trace record`."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrord.cli.options import Json
from mirrord.cli.output import answer
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import Output, need_analysis
from mirrord.core.units import format_size, parse_duration

if TYPE_CHECKING:
    from mirrord.admin.recording import Wanted


def record(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A volume (btrfs:/PATH, …), a block device (/dev/…), or a live mirror (NAME).",
        ),
    ],
    output: Output,
    interval: Annotated[
        str | None,
        typer.Option("--interval", help="Time between snapshots, such as 15s; default: 60s."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--duration", help="How long, such as 2h or 1d; default: until Ctrl-C."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The trace's name in reports.")] = "",
    files: Annotated[
        bool,
        typer.Option("--files", help="Also report what a file-level mirror would transfer."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Record the workload of a live volume, until Ctrl-C or for --duration.

    Of a volume: the blocks allocated and freed, from snapshots at an interval. Of a block device:
    every request that the kernel receives (blktrace's events; requires root). Of a live mirror: its
    clients' writes, and when each was sent, received and answered.
    """
    need_analysis()
    from mirrord.admin import recording

    wanted = recording.Wanted(
        output,
        parse_duration(interval) if interval is not None else None,
        parse_duration(duration) if duration is not None else None,
        name,
        files,
    )
    progress = _Progress(what, quiet=as_json)
    try:
        if what.startswith("/") or ":" in what:
            found = recording.record(what, wanted, progress.numbers, _note)
        else:
            found = _record_mirror(what, wanted, progress)
    finally:
        progress.end()
    answer(found, _lines(found), as_json=as_json)


def _record_mirror(name: str, wanted: Wanted, progress: _Progress) -> dict[str, Any]:
    from mirrord.admin.live_recording import record_live
    from mirrord.control.api import Service
    from mirrord.system import paths

    with closing(Service(paths.standard())) as service:
        return service.look_live(name, lambda it: record_live(it, wanted, progress.numbers))


def _note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['records']:,} records of {found['what']} stored in {found['file']}: "
        f"{_sums(found)}."
    ]
    if found.get("changed_files") is not None:
        lines.append(
            f"A file-level mirror would have transferred {found['changed_files']:,} files of "
            f"{format_size(found['whole_file_bytes'])} instead."
        )
    if found.get("missed"):
        lines.append(
            f"{found['missed']} of {found['intervals'] + found['missed']} intervals were merged "
            "into the next one because a snapshot took too long: use a longer --interval."
        )
    if found.get("lost"):
        lines.append(f"{found['lost']} requests are missing: they came faster than they were read.")
    if found.get("dropped"):
        lines.append(
            f"{found['dropped']:,} writes are missing: they came faster than they were read."
        )
    if found.get("ended"):
        lines.append(f"The recording ended by itself: {found['ended']}.")
    if not found["records"]:
        lines.append("Nothing was recorded: there was no activity.")
    return lines


def _sums(found: dict[str, Any]) -> str:
    if "modes" in found:
        return f"each with its times, {found['modes']} changes of the mode"
    if "intervals" in found:
        return (
            f"{format_size(found['allocated_bytes'])} allocated and "
            f"{format_size(found['freed_bytes'])} freed in {found['intervals']} intervals"
        )
    return (
        f"{format_size(found['written_bytes'])} written, {format_size(found['read_bytes'])} read, "
        f"{format_size(found['trimmed_bytes'])} trimmed"
    )


class _Progress:
    """A progress line on a terminal; elsewhere, a single message at the beginning."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._line = ProgressLine(quiet=quiet, at_once=True)
        self._begun = f"recording {what}; Ctrl-C (SIGINT) stops it"
        self._once = not quiet and not sys.stderr.isatty()

    def numbers(self, found: dict[str, Any]) -> None:
        """Update the numbers."""
        if self._once:
            self._once = False
            print(self._begun, file=sys.stderr, flush=True)
        self._line.say(
            lambda: f"recording (Ctrl-C stops it): {found['records']:,} records, {_sums(found)}"
        )

    def end(self) -> None:
        """Finish the line."""
        self._line.close(keep=True)
