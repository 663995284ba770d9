"""Links that are compared: rates in steps of about 10 %, as they are printed and given back."""

from __future__ import annotations

import math

from mirrord.schedules.rates import Rates

#: The series E24: two digits, of which each is about 10 % more than the one before.
_SERIES = (
    10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91,
)  # fmt: skip
#: The slowest link that `--link` accepts; the first step is 8.2 kbit/s.
RATE_MIN = 1024.0
#: The fastest link, bytes per second: beyond it every update is immediate.
RATE_MAX = 1e15


def step_from(rate: float) -> float:
    """The slowest link of a step that carries `rate` bytes per second."""
    bits = max(rate, RATE_MIN) * 8
    decade = math.floor(math.log10(bits)) - 1
    for power in (decade, decade + 1):
        for digits in _SERIES:
            # Rounded to bytes as `--link` rounds it: what is printed is what was assessed.
            found = float(round(digits * 10.0**power / 8))
            if found >= max(rate, RATE_MIN):
                return found
    return RATE_MAX


def steps(first: float, last: float) -> list[float]:
    """All steps from the first that carries `first` to the first that carries `last`."""
    found = [step_from(first)]
    while found[-1] < last and found[-1] < RATE_MAX:
        found.append(step_from(found[-1] * 1.04))
    return found


def fastest(link: Rates) -> float | None:
    """A link's rate in its fastest hours, bytes per second, which is what it costs; None:
    unlimited.
    """
    rates = _rates(link)
    known = [rate for rate in rates if rate is not None]
    return max(known) if len(known) == len(rates) else None


def slowest(link: Rates) -> float:
    """A link's rate in its slowest hours, bytes per second; `RATE_MAX`: it is never limited."""
    return min(RATE_MAX if rate is None else rate for rate in _rates(link))


def _rates(link: Rates) -> list[float | None]:
    rates = [rate for rate, _ in link.clauses]
    return rates if rates and link.constant else [*rates, link.otherwise]
