"""Text formats of tools: blkparse, fio."""

from __future__ import annotations

import re

from mirrord.system.native import TraceParser
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.formats.binary import action_of
from mirrord.traces.options import ReadOptions, time_unit_ns

_BLKPARSE = re.compile(r"\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+[A-Z]+\s")


def _blkparse_matches(sample: Sample) -> bool:
    return any(_BLKPARSE.match(line) for line in sample.lines[:50])


def _blkparse(_sample: Sample, options: ReadOptions) -> TraceParser:
    return TraceParser.blkparse(ord(action_of(options)), options.skip_bad)


def _fio(version: int) -> Format:
    first = f"fio version {version} iolog".encode()

    def matches(sample: Sample) -> bool:
        return sample.data.startswith(first)

    def parser(_sample: Sample, options: ReadOptions) -> TraceParser:
        unit = time_unit_ns(options.time_unit, "us")
        return TraceParser.fio(version, unit, options.skip_bad)

    what = "with times" if version == 3 else "times only from wait lines"
    return Format(
        f"fio{version}", f"fio iolog v{version} ({what})", matches, parser, takes=("time_unit",)
    )


FORMATS = (
    Format(
        "blkparse", "the text of blkparse (Linux)", _blkparse_matches, _blkparse, takes=("only",)
    ),
    _fio(2),
    _fio(3),
)
