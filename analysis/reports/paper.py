"""Results published in the SnapMirror paper (FAST 2002), to be drawn together with those of traces.

Section 4 and its Table 1: twelve file systems of four file servers, 24 hours each. The curves of
Figure 2 are not published as numbers; the ranges are those of the text.
"""

from __future__ import annotations

from typing import NamedTuple

NAME = "SnapMirror paper (12 file systems on 4 servers)"


class Published(NamedTuple):
    """Percent of written blocks that are transferred at an update interval.

    low, high: of all systems, None where the paper gives none. average: of all systems, or None.
    """

    seconds: int
    low: float | None
    high: float | None
    average: float | None
    words: str


#: Figure 2, as described in the text (sections 4.2 and 7).
FIGURE_2 = (
    Published(60, None, 90.0, None, "at 1 min all save at least 10 %, all but one over 20 %"),
    Published(900, 20.0, 70.0, 50.0, "at 15 min they save 30 to 80 %, 50 % on average"),
    Published(3600, None, None, 42.0, "at 1 h they save 58 % on average"),
    Published(86400, 2.0, 47.0, 25.0, "at 24 h they save 53 to 98 %, over 75 % on average"),
)
#: Figure 3: without the active map nothing would be saved on so many of them.
FIGURE_3_NOTHING = 10


class Traced(NamedTuple):
    """A row of Table 1. blocks: written, thousands of 4 KiB. freed: percent deleted again."""

    name: str
    what: str
    blocks: int
    freed: int


TABLE_1 = (
    Traced("Build1", "source tree build space", 7757, 69),
    Traced("Cores1", "core dump storage", 319, 85),
    Traced("Bench", "benchmark scratch space", 512, 91),
    Traced("Pubs", "technical publications", 262, 59),
    Traced("Users1", "engineering home directories", 10803, 78),
    Traced("Bug", "bug tracking database", 1465, 98),
    Traced("Cores2", "core dump storage", 11956, 76),
    Traced("Source", "source control repository", 3288, 70),
    Traced("Cores3", "core dump storage", 1582, 77),
    Traced("Users2", "home directories, intranet site", 13752, 53),
    Traced("Build2", "source tree build space", 34779, 80),
    Traced("Users3", "engineering home directories", 15103, 85),
)
#: What Table 1 leaves to be sent by one update at the end of its 24 h, percent; and the seconds.
AFTER_A_DAY = tuple(float(100 - each.freed) for each in TABLE_1)
DAY_S = 86400
