"""Rates: how fast a mirror may send, by the hours of the week.

A clause is a rate and the span in which it holds; `else` is for all other hours. A comma separates
clauses and, inside a span, days: a piece that begins with a day belongs to the clause before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mirrord.core.errors import UsageError
from mirrord.core.units import parse_size
from mirrord.schedules.spans import (
    DAYS,
    Span,
    covers,
    invert,
    next_edge,
    overlap,
    parse_span,
    week_of,
)
from mirrord.schedules.zones import check_zone

RATE_MIN = 1024
_BITS = {"kbit/s": 10**3, "mbit/s": 10**6, "gbit/s": 10**9}
_UNITS = {
    "B/s": (1, 1),
    "KiB/s": (1 << 10, 1),
    "MiB/s": (1 << 20, 1),
    "GiB/s": (1 << 30, 1),
    "Mbit/s": (10**6, 8),
    "Gbit/s": (10**9, 8),
}
_RATE = re.compile(r"(unlimited|[\d.]+\s*[A-Za-z]*(?:/[A-Za-z]+)?)(?:\s+(.*))?", re.IGNORECASE)
_DAY = re.compile(rf"({'|'.join(DAYS)})", re.IGNORECASE)
_EXAMPLE = "Write for example '20MiB/s 08:00-18:00 Mon-Fri, else unlimited'."


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in bytes per second, None: unlimited; one per span, and one for all other hours."""

    clauses: tuple[tuple[float | None, Span], ...]
    otherwise: float | None
    zone: str

    def at(self, at_ns: int) -> float | None:
        """Bytes per second at `at_ns`; None: unlimited."""
        for rate, span in self.clauses:
            if covers(span, at_ns, self.zone):
                return rate
        return self.otherwise

    def next_change(self, at_ns: int) -> int | None:
        """The first instant after `at_ns` at which the rate changes; None: never."""
        if self.constant:
            return None
        spans, before = [span for _, span in self.clauses], self.at(at_ns)
        edge: int | None = at_ns
        while edge is not None and (edge == at_ns or self.at(edge) == before):
            edge = next_edge(spans, edge, self.zone)
        return edge

    @property
    def constant(self) -> bool:
        """Whether the rate is always the same."""
        rates = {rate for rate, _ in self.clauses}
        if invert(week_of(tuple(span for _, span in self.clauses))):
            rates.add(self.otherwise)
        return len(rates) == 1

    def __str__(self) -> str:
        if not self.clauses:
            return _rate_text(self.otherwise)
        clauses = [f"{_rate_text(rate)} {span}" for rate, span in self.clauses]
        return ", ".join([*clauses, f"else {_rate_text(self.otherwise)}"])


def parse_rates(text: str, *, zone: str = "UTC") -> Rates:
    """The rates of `20MiB/s 08:00-18:00 Mon-Fri, else unlimited`; `UsageError`."""
    check_zone(zone)
    clauses: list[tuple[float | None, Span]] = []
    otherwise: float | None = None
    pieces = split_clauses(text)
    for number, piece in enumerate(pieces, 1):
        has_else, rate, span = _parse_clause(piece, text)
        if span is not None:
            clauses.append((rate, span))
        elif number == len(pieces):
            otherwise = rate
        else:
            raise _invalid_rates(
                text,
                f"'{piece}' is not the last"
                if has_else
                else f"'{piece}' names no hours and is not the last",
                "Only the last clause has no hours: it is for all other hours.",
            )
    twice = overlap([span for _, span in clauses])
    if twice is not None:
        raise _invalid_rates(
            text,
            f"the hours '{twice[0]}' and '{twice[1]}' overlap",
            "Write hours that do not overlap; 'else' is for all other hours.",
        )
    return Rates(tuple(clauses), otherwise, zone)


def split_clauses(text: str) -> list[str]:
    """The clauses of a text: a comma separates them and, inside a span, days."""
    clauses: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if clauses and _DAY.match(piece):
            clauses[-1] += f",{piece}"
        else:
            clauses.append(piece)
    return clauses


def _parse_clause(piece: str, text: str) -> tuple[bool, float | None, Span | None]:
    """Whether the clause is an else, its rate, its span."""
    words = piece.split(maxsplit=1)
    has_else = bool(words) and words[0].lower() == "else"
    rest = words[1] if has_else and len(words) > 1 else "" if has_else else piece
    match = _RATE.fullmatch(rest)
    if match is None or (match[2] or "").startswith(":"):
        why = f"'{piece}' does not begin with a rate" if piece else "a clause is empty"
        raise _invalid_rates(text, why, _EXAMPLE)
    span = None
    if match[2]:
        if has_else:
            raise _invalid_rates(text, f"'{piece}' names hours", "'else' is for all other hours.")
        try:
            span = parse_span(match[2])
        except UsageError as error:
            raise _invalid_rates(text, str(error), error.hint) from None
    return has_else, _parse_rate(match[1].strip(), text), span


def _parse_rate(word: str, text: str) -> float | None:
    if word.lower() == "unlimited":
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+/s)", word, re.IGNORECASE)
    try:
        if match and match[2].lower() in _BITS:
            rate = float(round(float(match[1]) * _BITS[match[2].lower()] / 8))
        elif match or re.fullmatch(r"0+(\.0+)?[a-z]*", word, re.IGNORECASE):
            rate = float(parse_size(word.removesuffix("/s").removesuffix("/S")))
        else:
            raise UsageError(f"'{word}' is not a rate")
    except UsageError:
        hint = "Write for example 20MiB/s, 100Mbit/s or unlimited."
        raise _invalid_rates(text, f"'{word}' is not a rate", hint) from None
    if not rate:
        hint = "'mirrord quiesce NAME' stops transfers; 'mirrord resume NAME' allows them again."
        raise _invalid_rates(text, "at a rate of 0 a transfer would never end", hint)
    if rate < RATE_MIN:
        raise _invalid_rates(text, f"'{word}' is less than 1 KiB/s", "Write at least 1KiB/s.")
    return rate


def _rate_text(rate: float | None) -> str:
    """The shortest way to write exactly this rate."""
    if rate is None:
        return "unlimited"
    texts: list[str] = []
    for unit, (length, parts) in _UNITS.items():
        number = int(rate) * parts * 1000 / length
        if number.is_integer():
            texts.append(f"{number / 1000:.3f}".rstrip("0").rstrip(".") + f" {unit}")
    return min(texts, key=len)


def _invalid_rates(text: str, why: str, hint: str) -> UsageError:
    return UsageError(f"'{text}' is not a rate or a list of rates", why=why, hint=hint)
