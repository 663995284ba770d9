"""Weekly spans: their texts, and membership against the calendar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import UsageError
from mirrord.schedules.spans import DAYS, Span, covers, next_edge, overlap, parse_span
from tests.schedules.brute import STARTS, ZONES, in_span, minutes, ns

spans = st.builds(
    Span,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 95).map(lambda n: n * 15),
    st.integers(1, 96).map(lambda n: n * 15),
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("Mon-Fri 08:00-18:00", "Mon-Fri 08:00-18:00"),
        ("08:00-18:00 mon-fri", "Mon-Fri 08:00-18:00"),
        ("22:00 - 06:00", "22:00-06:00"),
        ("Sat, Sun", "Sat,Sun"),
        ("Mon-Wed,Sat 1:00-24:00", "Mon-Wed,Sat 01:00-24:00"),
        ("Fri-Mon 22:00-00:00", "Mon,Fri-Sun 22:00-24:00"),
        ("Saturday", "Sat"),
        ("00:00-24:00", "Mon-Sun"),
    ],
)
def test_spans_are_read_and_written(text: str, canonical: str) -> None:
    assert str(parse_span(text)) == canonical


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("Mon Tue", "can be given once each"),
        ("Mon-Fry", "'Mon-Fry'"),
        ("8-18", "'8-18'"),
        ("08:00-25:00", "25:00"),
        ("08:60-09:00", "08:60"),
        ("24:00-06:00", "cannot start at 24:00"),
        ("08:00", "'08:00'"),
        ("Mon,", "''"),
        ("Mon 08:00-09:00 Tue", "weekly span"),
    ],
)
def test_what_is_no_span_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_span(text)
    assert part in str(caught.value) and "Mon-Fri 08:00-18:00" in caught.value.hint


@given(spans)
@settings(deadline=None)
def test_a_span_written_is_read_again(span: Span) -> None:
    assert parse_span(str(span)) == span


@pytest.mark.parametrize("zone", ZONES)
@given(st.sampled_from(STARTS), spans, st.integers(0, 4000))
@settings(deadline=None)
def test_membership_and_edges_are_those_of_the_calendar(
    zone: str, start: object, span: Span, first: int
) -> None:
    walk = minutes(start, 4.5)[first:]  # type: ignore[arg-type]
    inside = [in_span(set(span.days), span.start_min, span.end_min, m, zone) for m in walk]
    assert [covers(span, ns(m), zone) for m in walk[::7]] == inside[::7]
    change = next((m for m, now in zip(walk, inside, strict=True) if now != inside[0]), None)
    edge = next_edge([span], ns(walk[0]), zone)
    if change is not None:
        assert edge == ns(change)
    else:
        assert edge is None or edge > ns(walk[-1])


@given(st.lists(spans, max_size=4))
@settings(deadline=None)
def test_an_overlap_is_time_in_common(some: list[Span]) -> None:
    def of(span: Span) -> set[int]:
        length = (span.end_min - span.start_min - 1) % 1440 + 1
        found: set[int] = set()
        for day in span.days:
            first = day * 1440 + span.start_min
            found.update(n % 10080 for n in range(first, first + length))
        return found

    pairs = [(a, b) for n, b in enumerate(some) for a in some[:n] if of(a) & of(b)]
    assert overlap(some) == (pairs[0] if pairs else None)


def test_a_span_of_all_time_has_no_edge() -> None:
    assert next_edge([parse_span("Mon-Sun")], 0, "Europe/Berlin") is None
    assert next_edge([parse_span("08:00-08:00")], 0, "Europe/Berlin") is None
    assert next_edge([], 0, "UTC") is None
    assert len(DAYS) == 7
