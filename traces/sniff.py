"""Detecting the format of a source from its content."""

from __future__ import annotations

from mirrord.core.errors import Damaged, Refused, UsageError
from mirrord.traces.formats import FORMATS, named
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.options import ReadOptions


def recognize(sample: Sample) -> Format | None:
    """The format, or None if it is unknown."""
    return next((each for each in FORMATS.values() if each.matches(sample)), None)


def choose(sample: Sample, options: ReadOptions, where: str) -> Format:
    """The given format, else the detected one.

    `Damaged` for an empty source, `Refused` for an unknown format, `UsageError` for options that do
    not apply to the format.
    """
    if not sample.data:
        raise Damaged("the file is empty", where=where, hint="Check whether its recording failed.")
    if sample.data.startswith(b"PAR1"):
        raise Refused(
            "the source is a Parquet file, which cannot be imported",
            where=where,
            hint="For stored traces use 'mirrord trace convert', 'slice' or 'merge'.",
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
                why=_beginning(sample),
                hint="Give it with --format, or map the columns of a CSV with --columns "
                "('mirrord trace formats' lists all formats).",
            )
        chosen = found
    settable = ("time_unit", "addr_unit", "size_unit", "write_flag", "columns", "only")
    for name in settable:
        if getattr(options, name) is not None and name not in chosen.takes:
            raise UsageError(
                f"--{name.replace('_', '-')} does not apply to the format {chosen.name}",
                hint="Omit it, or give another --format.",
            )
    return chosen


def _beginning(sample: Sample) -> str:
    if sample.lines:
        return f"it begins with '{sample.lines[0][:80]}'"
    return f"it is binary and begins with {sample.data[:8].hex(' ')}"
