"""Telling the format of a source by its content."""

from __future__ import annotations

from mirrord.core.errors import Damaged, Refused, UsageError
from mirrord.traces.formats import FORMATS, named
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.options import ReadOptions


def recognize(sample: Sample) -> Format | None:
    """The format, or None when it is none that we know."""
    return next((each for each in FORMATS.values() if each.matches(sample)), None)


def choose(sample: Sample, options: ReadOptions, where: str) -> Format:
    """The format that was asked for, else the recognized one.

    `Damaged` for an empty source, `Refused` when nothing fits, `UsageError` for options that mean
    nothing in that format.
    """
    if not sample.data:
        raise Damaged(
            "the file is empty", where=where, hint="Is it a trace whose recording failed?"
        )
    if sample.data.startswith(b"PAR1"):
        raise Refused(
            "this is Parquet, so a stored trace already, if it is one",
            where=where,
            hint="'mirrord trace convert', 'slice' and 'merge' take stored traces.",
        )
    if options.format is not None:
        chosen = named(options.format)
    elif options.columns is not None:
        chosen = FORMATS["csv"]
    else:
        found = recognize(sample)
        if found is None:
            raise Refused(
                "the format is not known",
                where=where,
                why=_looks(sample),
                hint="Say it with --format, or map the columns of a CSV with --columns "
                "('mirrord trace formats' lists all).",
            )
        chosen = found
    settable = ("time_unit", "addr_unit", "size_unit", "write_flag", "columns", "only")
    for name in settable:
        if getattr(options, name) is not None and name not in chosen.takes:
            raise UsageError(
                f"--{name.replace('_', '-')} means nothing in the format {chosen.name}",
                hint="Leave it out, or say another --format.",
            )
    return chosen


def _looks(sample: Sample) -> str:
    if sample.lines:
        return f"it begins '{sample.lines[0][:80]}'"
    return f"it is binary and begins {sample.data[:8].hex(' ')}"
