"""Schedules as a fleet has them: of all kinds, by seed."""

from __future__ import annotations

import random
from typing import NamedTuple

from mirrord.core.model import Timing


class Kind(NamedTuple):
    """One kind of schedule. share: of hundred mirrors, about so many."""

    share: int
    timing: Timing


KINDS = (
    Kind(20, Timing(("every 15m",))),
    Kind(32, Timing(("every 1h",))),
    Kind(6, Timing(("*/20 * * * *",))),
    Kind(10, Timing(("5 * * * *",), jitter="10m")),
    Kind(10, Timing(("0 2 * * *",), zone="Europe/Berlin", jitter="1h")),
    Kind(3, Timing(("30 23 * * *",))),
    Kind(4, Timing(("every 30m",), windows=("20:00-06:00",))),
    Kind(4, Timing(("every 10m", "17 * * * *"), blackouts=("08:00-09:30", "23:00-23:30"))),
    Kind(4, Timing(("lag 5m",))),
    Kind(4, Timing(("lag 20m",), blackouts=("01:00-01:20",))),
    Kind(3, Timing()),
)


def draw(chance: random.Random) -> Timing:
    """One of them."""
    return chance.choices([kind.timing for kind in KINDS], [kind.share for kind in KINDS])[0]
