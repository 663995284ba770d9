"""The choice of a level, with a link, a source and a clock that are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrord.core.errors import UsageError
from mirrord.wire.compress import LEVELS, Chooser, Rate

CHUNK = 512 << 10
#: What the kernel keeps of a connection, and what it takes to write into that.
SOCKET_BYTES, COPY_BYTES_S = 2 << 20, 2e9
MB = 1e6


class Data(NamedTuple):
    """How a kind of data behaves: bytes per second and ratio of each level."""

    speed: dict[int, float]
    ratio: dict[int, float]


def data(speed: float, gain: float) -> Data:
    """As was measured of text, faster or slower, more or less compressible."""
    speeds = {1: 373, 3: 355, 6: 112, 9: 70, 12: 52, 19: 7}
    gains = {1: 2.4, 3: 2.72, 6: 3.02, 9: 3.09, 12: 3.12, 19: 3.41}
    return Data(
        {level: each * MB * speed for level, each in speeds.items()},
        {level: 1 + each * gain for level, each in gains.items()},
    )


TEXT = data(1, 1)
#: What only a sample is tried of.
NOISE = Data({}, {})


class Moment(NamedTuple):
    """What holds while a chunk is on its way."""

    data: Data
    link: float
    source: float = 1e12


class Pipeline:
    """A source, one packer and one writer, and the link. The two have threads of their own, or
    one together; then only the buffers of the socket let them overlap.
    """

    def __init__(self, chooser: Chooser, *, together: bool = True) -> None:
        self.chooser = chooser
        self.together = together
        self.levels: list[int] = []
        #: When each becomes free, or ended its last piece of work.
        self.source_s = self.packer_s = self.writer_s = self.link_s = 0.0

    def chunk(self, now: Moment) -> None:
        self.source_s = max(self.source_s + CHUNK / now.source, self.packer_s - 4 * 0.001)
        began_s = max(self.packer_s, self.source_s)
        self.chooser.received(CHUNK, began_s - self.packer_s, began_s)
        level = self.chooser.level(began_s)
        self.levels.append(level)
        size, took_s = float(CHUNK), 20e-6
        if level and now.data.speed:
            size, took_s = CHUNK / now.data.ratio[level], CHUNK / now.data.speed[level]
            self.chooser.packed(level, CHUNK, int(size), took_s)
        # A queue of one between packer and writer.
        packed_s = began_s + took_s
        self.packer_s = max(packed_s, self.writer_s)
        write_s = max(packed_s, self.writer_s)
        self.link_s = max(self.link_s, write_s) + size / now.link
        copied_s = write_s + size / COPY_BYTES_S
        self.writer_s = max(copied_s, self.link_s - SOCKET_BYTES / now.link)
        if self.together:
            self.packer_s = self.writer_s
        self.chooser.sent(int(size), self.writer_s - copied_s, self.writer_s)

    def run(self, moments: Iterable[Moment]) -> float:
        """Send a chunk in each moment; returns the seconds until the last one arrived."""
        for now in moments:
            self.chunk(now)
        return self.link_s


def best_fixed(moments: list[Moment], together: bool) -> float:
    return min(Pipeline(Chooser(level), together=together).run(moments) for level in LEVELS)


def levels_after(moments: list[Moment], settle: int = 60) -> list[int]:
    pipeline = Pipeline(Chooser())
    pipeline.run(moments)
    return pipeline.levels[settle:]


def mostly(levels: list[int], good: Callable[[int], bool]) -> bool:
    return sum(map(good, levels)) >= 0.85 * len(levels)


def test_a_slow_link_and_text_a_high_level() -> None:
    assert mostly(levels_after([Moment(TEXT, 1 * MB)] * 300), lambda level: level == 19)
    assert mostly(levels_after([Moment(TEXT, 4 * MB)] * 300), lambda level: level in (9, 12))


def test_a_link_of_a_gigabit_and_text_a_low_level() -> None:
    assert mostly(levels_after([Moment(TEXT, 117 * MB)] * 600), lambda level: level in (1, 3))


def test_a_fast_link_and_text_off() -> None:
    assert mostly(levels_after([Moment(TEXT, 1500 * MB)] * 4000, 2000), lambda level: level == 0)


def test_a_slow_source_needs_no_level() -> None:
    found = levels_after([Moment(TEXT, 100 * MB, 5 * MB)] * 400, 100)
    assert mostly(found, lambda level: level <= 1)


def test_hardly_compressible_and_a_fast_link_off() -> None:
    hardly = data(1, 0.03)
    assert mostly(levels_after([Moment(hardly, 600 * MB)] * 3000, 1500), lambda level: level == 0)


@pytest.mark.parametrize(
    ("before", "after", "within", "good"),
    [
        (Moment(TEXT, 1000 * MB), Moment(TEXT, 2 * MB), 40, range(9, 20)),
        (Moment(TEXT, 2 * MB), Moment(TEXT, 117 * MB), 600, range(4)),
        (Moment(NOISE, 20 * MB), Moment(TEXT, 20 * MB), 40, range(3, 10)),
        (Moment(data(1, 0.05), 5 * MB), Moment(TEXT, 5 * MB), 40, range(6, 20)),
        (Moment(TEXT, 5 * MB), Moment(data(0.1, 1), 5 * MB), 40, range(1, 7)),
    ],
    ids=["link slower", "link faster", "noise to text", "data better", "processor slower"],
)
def test_the_level_adapts_when_link_or_data_change_during_a_stream(
    before: Moment, after: Moment, within: int, good: range
) -> None:
    pipeline = Pipeline(Chooser())
    pipeline.run([before] * 500)
    pipeline.run([after] * (within + 200))
    assert mostly(pipeline.levels[500 + within :], lambda level: level in good)


#: Until it knows the link, it cannot choose.
LEARNING_S = 0.6

LINKS = st.floats(-0.5, 3.5).map(lambda power: 10**power * MB)
KINDS = st.builds(data, st.floats(0.2, 2), st.floats(0.02, 3))
MOMENTS = st.builds(Moment, KINDS, LINKS, st.floats(0, 3.5).map(lambda power: 10**power * MB))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MOMENTS, st.booleans())
@example(Moment(TEXT, 20 * MB), True)
@example(Moment(TEXT, 20 * MB), False)
def test_the_chosen_level_is_nearly_as_fast_as_the_best_fixed_one(
    moment: Moment, together: bool
) -> None:
    moments = [moment] * 1500
    chosen = Pipeline(Chooser(), together=together)
    assert chosen.run(moments) <= 1.15 * best_fixed(moments, together) + LEARNING_S


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MOMENTS, MOMENTS, st.booleans())
def test_the_level_stays_near_the_best_when_link_and_data_change(
    before: Moment, after: Moment, together: bool
) -> None:
    parts = [[before] * 600, [after] * 600]
    chosen = Pipeline(Chooser(), together=together)
    for part in parts:
        chosen.run(part)
    best_s = sum(best_fixed(part, together) for part in parts)
    # What is under way already cannot be packed again.
    on_the_way_s = (SOCKET_BYTES + 6 * CHUNK) / after.link
    assert chosen.link_s <= 1.15 * best_s + 4 * LEARNING_S + on_the_way_s


def test_settings() -> None:
    assert [Chooser.of(text).level(0) for text in ("off", "1", "19")] == [0, 1, 19]
    assert Chooser.of("auto").level(0) > 0
    for wrong in ("", "on", "0", "20", "-1", "1.5", "٣"):
        with pytest.raises(UsageError, match="invalid compression"):
            Chooser.of(wrong)


def test_a_fixed_level_stays_whatever_is_measured() -> None:
    pipeline = Pipeline(Chooser.of("6"))
    pipeline.run([Moment(TEXT, 2 * MB)] * 100 + [Moment(TEXT, 2000 * MB)] * 100)
    assert set(pipeline.levels) == {6}


def test_a_rate_is_known_where_somebody_waits_and_doubted_elsewhere() -> None:
    rate, now_s = Rate(), 0.0

    def told(times: int, count: int, waited_s: float) -> None:
        nonlocal now_s
        for _ in range(times):
            now_s += 0.25
            rate.observe(count, waited_s, now_s)

    assert not rate.known
    told(2, 10_000_000, 0.25)
    assert rate.known
    assert rate.limit == pytest.approx(40e6)
    told(2, 100_000, 0.0)  # nobody waits: it is slow for another reason
    assert 40e6 <= rate.limit < 44e6
    told(20, 50_000_000, 0.001)
    assert rate.limit >= 200e6
    told(1, 10_000_000, 0.25)
    assert rate.limit == pytest.approx(40e6)
