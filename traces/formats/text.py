"""Text formats of tools: blkparse, fio."""

from __future__ import annotations

import re

from mirrord.system.native import TraceParser
from mirrord.traces.formats.base import Format
from mirrord.traces.formats.binary import action_of
from mirrord.traces.options import time_unit_ns

_BLKPARSE = re.compile(r"\s*\d+,\d+\s+\d+\s+\d+\s+\d+\.\d+\s+\d+\s+[A-Z]+\s")


def _fio(version: int) -> Format:
    first = f"fio version {version} iolog".encode()

    what = "with times" if version == 3 else "times only from wait lines"
    return Format(
        f"fio{version}",
        f"fio iolog v{version} ({what})",
        lambda sample: sample.data.startswith(first),
        lambda _sample, options: TraceParser.fio(
            version, time_unit_ns(options.time_unit, "us"), options.skip_bad
        ),
        takes=("time_unit",),
    )


FORMATS = (
    Format(
        "blkparse",
        "the text of blkparse (Linux)",
        lambda sample: any(_BLKPARSE.match(line) for line in sample.lines[:50]),
        lambda _sample, options: TraceParser.blkparse(ord(action_of(options)), options.skip_bad),
        takes=("only",),
    ),
    _fio(2),
    _fio(3),
)
