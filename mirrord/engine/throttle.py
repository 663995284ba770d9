"""Bandwidth limits: token buckets for transfer, mirror, link and host, all at once.

SnapMirror, FAST'02, 3.2.4: "throttle the rate at which a transfer is done. This prevents a flood
of data transfers from overwhelming the disks, CPU, or network". Beyond the paper: rates follow the
time of day and can be changed while a transfer runs; a mirror whose RPO is at risk may borrow; and
a transfer backs off while the source's disks are busy with other work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mirrord.drivers.streams import CHUNK_BYTES_MAX
from mirrord.system import clock
from mirrord.system.pressure import io_pressure

#: Bytes per second, or None for unlimited.
Rate = Callable[[], float | None]

_PIECE_S = 0.02  # what is moved at once: this time at the rate
_PIECE_BYTES_MIN = 512
_CREDIT_S = 0.1  # how much of a pause may be made up for afterwards
_SLICE_S = 0.1  # how long a wait may last without checking the rate again
_LOOK_EVERY_S = 0.2
_FLOOR_BYTES_S = 1 << 20  # a busy source slows a transfer down to this, not to a halt


class Bucket:
    """A token bucket that several threads may draw from at once.

    It stores the time until which its tokens are spent; a thread that draws waits until then. So
    the rate is exact over any period much longer than one piece, and at most a tenth of a second of
    a pause is made up for.
    """

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        self._source = rate
        self._lock = threading.Lock()
        self._spent_until_s = clock.monotonic_s()
        self._looked_s = -1.0
        self._rate: float | None = None
        #: Grows with each change of the rate, so that waiting threads check it again.
        self.changes = 0

    def rate(self) -> float | None:
        """Bytes per second now; reads its source at most five times a second."""
        now_s = clock.monotonic_s()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            rate = self._source()
            if rate != self._rate:
                with self._lock:
                    self._rate, self.changes = rate, self.changes + 1
                    self._spent_until_s = min(self._spent_until_s, now_s)
        return self._rate

    def draw(self, size_bytes: int) -> float:
        """Spend that many tokens; returns the time (monotonic) until which to wait."""
        rate = self.rate()
        if rate is None:
            return 0.0
        with self._lock:
            begin_s = max(self._spent_until_s, clock.monotonic_s() - _CREDIT_S)
            self._spent_until_s = begin_s + size_bytes / rate
            return self._spent_until_s


class Backoff:
    """A rate that falls while the disks are busy and recovers slowly.

    level: percent of I/O pressure above which it falls. moved: bytes moved so far, for the rate to
    start from.
    """

    def __init__(self, level: float, pressure: Callable[[], float | None] = io_pressure) -> None:
        self._level, self._pressure = level, pressure
        self._lock = threading.Lock()
        self._cap: float | None = None
        self._measured_s, self._moved, self._recent = clock.monotonic_s(), 0, 0.0

    def moved(self, size_bytes: int) -> None:
        """Count the bytes moved."""
        with self._lock:
            self._moved += size_bytes

    def rate(self) -> float | None:
        """The rate allowed now; reads the pressure once a second."""
        passed_s = clock.monotonic_s() - self._measured_s
        if passed_s < 1.0:
            return self._cap
        self._recent = self._moved / passed_s
        self._measured_s, self._moved = clock.monotonic_s(), 0
        pressure = self._pressure()
        if pressure is not None and pressure > self._level:
            self._cap = max(_FLOOR_BYTES_S, (self._cap or self._recent) * 0.6)
        elif self._cap is not None:
            # A cap far above the actual rate limits nothing: remove it.
            self._cap = None if self._cap > 4 * self._recent + _FLOOR_BYTES_S else self._cap * 1.25
        return self._cap


class Throttle:
    """The buckets that limit one transfer. Not thread-safe; the buckets are."""

    def __init__(
        self,
        buckets: Sequence[Bucket] = (),
        *,
        backoff: Backoff | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """check: raises when the transfer is to end; called while it waits."""
        self._buckets = list(buckets)
        self._backoff = backoff
        if backoff is not None:
            self._buckets.append(Bucket("pressure", backoff.rate))
        self.check = check
        #: Seconds waited, by the bucket that was waited for.
        self.waited_s: dict[str, float] = {}

    def shared(self, check: Callable[[], None]) -> Throttle:
        """A throttle for another transfer that draws from the same buckets at the same time."""
        other = Throttle(self._buckets, check=check)
        other._backoff = self._backoff
        return other

    def piece_bytes(self) -> int:
        """How many bytes to move at once, so that the rate is even."""
        if not self._buckets:
            return CHUNK_BYTES_MAX
        rates = [rate for bucket in self._buckets if (rate := bucket.rate()) is not None]
        if not rates:
            return CHUNK_BYTES_MAX
        return min(CHUNK_BYTES_MAX, max(_PIECE_BYTES_MIN, int(min(rates) * _PIECE_S)))

    def moved(self, size_bytes: int) -> None:
        """Count bytes that were moved, and wait until every bucket allows more."""
        if not self._buckets:
            return
        if self._backoff is not None:
            self._backoff.moved(size_bytes)
        drawn = [
            (bucket.draw(size_bytes), bucket.changes, number)
            for number, bucket in enumerate(self._buckets)
        ]
        until_s, changes, number = max(drawn)
        self._wait(self._buckets[number], until_s, changes)

    def _wait(self, bucket: Bucket, until_s: float, changes: int) -> None:
        began_s = clock.monotonic_s()
        while True:
            now_s = clock.monotonic_s()
            if now_s >= until_s:
                break
            self.check()
            clock.sleep_s(min(_SLICE_S, until_s - now_s))
            bucket.rate()
            if bucket.changes != changes:
                break
        waited_s = clock.monotonic_s() - began_s
        if waited_s > 0:
            self.waited_s[bucket.name] = self.waited_s.get(bucket.name, 0.0) + waited_s
