"""The clocks, real and put in their place."""

from __future__ import annotations

import time

from mirrord.system import clock


class Still:
    """A source in which time passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def now_ns(self) -> int:
        return 5 + int(self.elapsed_s * 1e9)

    def monotonic_s(self) -> float:
        return self.elapsed_s

    def boottime_s(self) -> float:
        return 1000 + self.elapsed_s

    def sleep_s(self, seconds: float) -> None:
        self.elapsed_s += seconds


def test_the_real_clocks_go_on() -> None:
    wall_ns, monotonic_s, boottime_s = clock.now_ns(), clock.monotonic_s(), clock.boottime_s()
    clock.sleep_s(0.002)
    assert clock.now_ns() > wall_ns
    assert clock.monotonic_s() - monotonic_s >= 0.002
    assert clock.boottime_s() - boottime_s >= 0.002


def test_a_source_takes_the_place_of_all_of_them_until_it_goes() -> None:
    clock.use(Still())
    begun_s = time.monotonic()
    clock.sleep_s(3600)
    assert (clock.now_ns(), clock.monotonic_s(), clock.boottime_s()) == (
        3_600_000_000_005,
        3600.0,
        4600.0,
    )
    assert time.monotonic() - begun_s < 60
    clock.use(None)
    assert clock.now_ns() > 10**18
