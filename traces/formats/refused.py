"""Formats that are recognized but unusable: refused with the reason."""

from __future__ import annotations

import itertools
import struct

from mirrord.core.errors import Unsupported
from mirrord.system.native import TraceParser
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.options import ReadOptions

#: u32 seconds, u64 object, u32 size, i64 next access: libCacheSim's reduced form.
_ORACLE = struct.Struct("<IQIq")


def _oracle_matches(sample: Sample) -> bool:
    count = min(len(sample.data) // _ORACLE.size, 64)
    if count < 2:
        return False
    rows = [_ORACLE.unpack_from(sample.data, index * _ORACLE.size) for index in range(count)]
    times = [row[0] for row in rows]
    ordered = all(one <= other for one, other in itertools.pairwise(times))
    sizes = all(0 < row[2] <= 1 << 26 for row in rows)
    later = all(row[3] == -1 or 0 < row[3] < 1 << 48 for row in rows)
    return ordered and sizes and later


def _refuse(_sample: Sample, _options: ReadOptions) -> TraceParser:
    raise Unsupported(
        "oracleGeneral has no read/write flag",
        why="writes cannot be distinguished from reads",
        hint="Use the trace it was made from: for CloudPhysics that is the .vscsi or .csv file.",
    )


FORMATS = (
    Format(
        "oracleGeneral",
        "libCacheSim's oracleGeneral: refused, it has no read/write flag",
        _oracle_matches,
        _refuse,
    ),
)
