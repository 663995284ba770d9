"""Five columns, time device address size flag, in three sets of units (DiskSim, SSDSim, replayer).

Such a file does not tell which set it uses: the guess is reported, and options set each unit.
"""

from __future__ import annotations

import re

from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.formats.delimited import Layout, parser_of
from mirrord.traces.model import Op

_LINE = re.compile(r"(\d+(?:\.\d*)?)[ \t]+\d+[ \t]+(\d+)[ \t]+(\d+)[ \t]+([0-9a-fA-F]+)")
_ZERO_WRITES = (("0", Op.WRITE), ("1", Op.READ))
_TAKES = ("time_unit", "addr_unit", "size_unit", "write_flag")
#: Requests of more sectors than this (1 GiB) are taken for bytes.
_SECTORS_MAX = 1 << 21

DISKSIM = Layout(0, 4, 2, 3, (1,), "ms", "sector", "sector", " ", operation="readbit")
SSDSIM = Layout(0, 4, 2, 3, (1,), "ns", "sector", "sector", " ", words=_ZERO_WRITES)
REPLAYER = Layout(0, 4, 2, 3, (1,), "ms", "byte", "byte", " ", words=_ZERO_WRITES)


def _guess(sample: Sample) -> str | None:
    rows = [_LINE.fullmatch(line) for line in sample.records]
    fitting = [row for row in rows if row is not None]
    if not rows or len(fitting) < 0.9 * len(rows):
        return None
    sizes = [int(row[3]) for row in fitting]
    addresses = [int(row[2]) for row in fitting]
    if all(value % 512 == 0 for value in [*sizes, *addresses]) and max(sizes) >= 512:
        return "replayer"
    if max(sizes) > _SECTORS_MAX:
        return "replayer"
    whole = all("." not in row[1] for row in fitting)
    return "ssdsim" if whole and int(fitting[-1][1]) > 10_000_000 else "disksim"


def _format(name: str, description: str, layout: Layout) -> Format:
    return Format(
        name,
        description,
        lambda sample: _guess(sample) == name,
        lambda _sample, options: parser_of(layout, options),
        takes=_TAKES,
        unsure=True,
    )


FORMATS = (
    _format("disksim", "five columns: ms, device, sector, sectors, flags (bit 0: read)", DISKSIM),
    _format("ssdsim", "five columns: ns, device, sector, sectors, 0 write 1 read", SSDSIM),
    _format("replayer", "five columns: ms, device, byte, bytes, 0 write 1 read", REPLAYER),
)
