"""Retries: only of what is retryable, with growing pauses."""

from __future__ import annotations

import random

from mirrord.core.errors import MirrordError

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0


def pause_s(error: MirrordError, number: int, retries: int, chance: random.Random) -> float | None:
    """How long to wait after try `number` failed; None when it is not to be tried again.

    Doubles with each try; a fifth of it is chance, so that mirrors that failed together (a link
    that was cut) do not come back together.
    """
    if not error.retryable or number > retries:
        return None
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(number - 1, 16))
    return float(pause * chance.uniform(0.8, 1.2))
