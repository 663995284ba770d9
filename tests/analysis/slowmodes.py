"""A live mirror simulated slowly and plainly: every millisecond, from the lists of all writes.

Written from docs/modes.md, without the queues of native/core/src/modes. All times are whole
milliseconds, the link's rate is in bytes per millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Points(NamedTuple):
    """Set-points. mode: "sync", "semi" or "async"; limit: M, None: as it is."""

    mode: str
    limit: int | None = None
    within: int | None = None
    most: int = 1 << 60


_SYNC = Points("sync")


@dataclass
class Slow:
    """One write. Times in ms, None: not yet."""

    at: int
    length: int
    offset: int
    tracked: bool = False
    sent: int | None = None
    acknowledged: int | None = None
    admitted: int | None = None


@dataclass
class Mirror:
    """rate: bytes per ms. reply, local: ms."""

    rate: int
    reply: int
    local: int
    points: Points = _SYNC
    limit: int = 0
    lowest: int = 0
    free: int = 0
    writes: list[Slow] = field(default_factory=list)
    #: Of the lag at each ms: bytes, and age of the oldest of it.
    lags: list[tuple[int, int]] = field(default_factory=list)

    def run(
        self,
        arrivals: list[tuple[int, int, int]],
        end: int,
        decide: Callable[[int], Points | None],
    ) -> list[int]:
        """arrivals: time, offset, length. decide: called at each ms before the arrivals of that ms.
        Returns each write's latency.
        """
        now = 0
        while now <= end or any(each.acknowledged is None for each in self.queued()):
            self.events(now)
            if now <= end and (points := decide(now)) is not None:
                self.direct(points, now)
                self.grow(now)
            for at, offset, length in arrivals:
                if at == now:
                    tracked = self.points.mode == "async"
                    self.writes.append(Slow(at, length, offset, tracked))
                    if tracked:
                        self.writes[-1].admitted = now
                    self.admit(now)
            self.lags.append(self.lag(now))
            now += 1
        return [max(each.admitted or 0, each.at + self.local) - each.at for each in self.writes]

    def queued(self) -> list[Slow]:
        return [each for each in self.writes if not each.tracked]

    def direct(self, points: Points, now: int) -> None:
        before, self.points = self.points, points
        if points.limit is not None:
            self.lowest, before_limit = points.limit, self.limit
            self.limit = points.limit
            if points.within is not None:  # what nobody waits for at once, the rest gradually
                self.limit = max(points.limit, min(before_limit, self.aged(now)))
        elif points.mode == "semi" and before.mode == "sync":
            self.limit = self.lowest = 0
            if points.within is not None:
                self.limit = self.lowest = self.aged(now - points.within / 2)
        if points.mode == "sync":
            self.limit = self.lowest = 0
        self.limit = min(self.limit, points.most)
        self.admit(now)

    def aged(self, until: float) -> int:
        unacknowledged = [e for e in self.queued() if e.acknowledged is None]
        return sum(each.length for each in unacknowledged if each.at <= until)

    def events(self, now: int) -> None:
        for each in self.queued():
            if each.sent is None and max(self.free, each.at) < now:
                start = max(self.free, each.at)
                self.free = start + each.length // self.rate
                each.sent = self.free
        for each in self.queued():
            on_the_way = each.acknowledged is None and each.sent is not None
            if on_the_way and (each.sent or 0) + self.reply <= now:
                each.acknowledged = now
                if self.limit > self.lowest:
                    self.limit = max(self.lowest, self.limit - each.length // 2)
                self.admit(now)
        self.grow(now)

    def grow(self, now: int) -> None:
        waiting = [each for each in self.queued() if each.admitted is None]
        within = self.points.within
        if self.points.mode != "semi" or not waiting or within is None:
            return
        if now - waiting[0].at >= within and self.limit < self.points.most:
            aged = min(self.aged(now - within / 2), self.points.most)
            if aged > self.limit:
                self.limit = self.lowest = aged
            self.admit(now)

    def admit(self, now: int) -> None:
        limit = {"sync": 0, "semi": self.limit, "async": 1 << 62}[self.points.mode]
        behind = 0
        for each in self.queued():
            if each.acknowledged is None:
                behind += each.length
            if each.admitted is None and behind <= limit:
                each.admitted = now

    def lag(self, now: int) -> tuple[int, int]:
        """Admitted writes that are not at the replica (without tracking)."""
        lost = [
            each
            for each in self.queued()
            if each.admitted is not None and each.acknowledged is None
        ]
        return sum(each.length for each in lost), now - lost[0].at if lost else 0
