"""Prices: of a link, of bytes sent and held, and of lost data by the hour of its writing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from mirrord.analysis.numbers import Floats
from mirrord.analysis.results import Writes
from mirrord.core.errors import UsageError
from mirrord.schedules.rates import split_clauses
from mirrord.schedules.spans import Span, covers, next_edge, overlap, parse_span

_PRICE = re.compile(r"(\d{1,15}(?:\.\d+)?)(?:\s+(.*))?")


@dataclass(frozen=True)
class LossPrice:
    """Money per GiB of lost data: each price applies to data written in its hours of the week."""

    clauses: tuple[tuple[float, Span], ...]
    otherwise: float
    zone: str
    text: str

    def at(self, at_ns: int) -> float:
        """The price of data written at `at_ns` (Unix time)."""
        for price, span in self.clauses:
            if covers(span, at_ns, self.zone):
                return price
        return self.otherwise

    def of_bins(self, writes: Writes, epoch_ns: int) -> Floats:
        """The price for each bin of a series, by the bin's start."""
        spans = [span for _, span in self.clauses]
        prices = np.full(len(writes.bytes), self.otherwise)
        at_ns: int | None = writes.start_ns + epoch_ns
        while at_ns is not None and at_ns < writes.end_ns + epoch_ns and spans:
            first = -(-(at_ns - epoch_ns - writes.start_ns) // writes.bin_ns)
            prices[first:] = self.at(at_ns)
            at_ns = next_edge(spans, at_ns, self.zone)
        return prices


def parse_loss_price(text: str, *, zone: str = "UTC") -> LossPrice:
    """Parse prices such as `2000 08:00-18:00 Mon-Fri, else 100`, per GiB; `UsageError`.

    The syntax is that of rates: a comma separates clauses and, inside a span, days.
    """
    found: list[tuple[float, Span]] = []
    otherwise: float | None = None
    clauses = split_clauses(text)
    for number, clause in enumerate(clauses, 1):
        match = _PRICE.fullmatch(re.sub(r"^else\s+", "", clause))
        if match is None or (clause.startswith("else") and match[2]):
            raise _no_price(text, f"'{clause}' is not a price, with or without hours")
        if match[2]:
            found.append((float(match[1]), parse_span(match[2])))
        elif number == len(clauses):
            otherwise = float(match[1])
        else:
            raise _no_price(text, f"'{clause}' has no hours and is not the last clause")
    if otherwise is None:
        raise _no_price(text, "the price for all other hours is missing")
    if overlap([span for _, span in found]) is not None:
        raise _no_price(text, "its hours overlap")
    return LossPrice(tuple(found), otherwise, zone, text)


def _no_price(text: str, why: str) -> UsageError:
    return UsageError(
        f"'{text}' is not a price of lost data: {why}",
        hint="Give for example 500, or '2000 08:00-18:00 Mon-Fri, else 100' (money per GiB).",
    )


@dataclass(frozen=True)
class Prices:
    """Prices, in one currency.

    link: per Mbit/s and month. transfer: per GiB sent. space: per GiB and month, of snapshots.
    lost: per GiB of lost data. failures: expected losses of the source per year.
    """

    link: float = 1.0
    transfer: float = 0.01
    space: float = 0.05
    lost: LossPrice = field(default_factory=lambda: parse_loss_price("1000"))
    failures: float = 0.5
    currency: str = "EUR"
