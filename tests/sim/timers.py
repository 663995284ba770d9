"""The scheduler's timers in simulated time. As those of the service they sleep by the monotonic
clock: what a step of the wall clock or a suspended machine does to them, they have to be told.
"""

from __future__ import annotations

from collections.abc import Callable

from mirrord.schedules.schedule import Schedule
from mirrord.system import clock
from tests.sim.world import Entry, Sim


class _Timer:
    """One key. schedule: None of one that calls once."""

    __slots__ = ("due_ns", "entry", "fire", "schedule", "seed")

    def __init__(self, schedule: Schedule | None, seed: str, fire: Callable[[], object]) -> None:
        self.schedule, self.seed, self.fire = schedule, seed, fire
        self.due_ns = 0
        self.entry: Entry | None = None


class SimTimers:
    """See `mirrord.scheduler.scheduler.Timers`."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._timers: dict[str, _Timer] = {}

    def follow(self, key: str, schedule: Schedule, seed: str, fire: Callable[[], object]) -> None:
        """See `Timers.follow`."""
        self.cancel(key)
        timer = self._timers[key] = _Timer(schedule, seed, fire)
        self._following(key, timer)

    def at(self, key: str, at_ns: int, fire: Callable[[], object]) -> None:
        """See `Timers.at`."""
        self.cancel(key)
        timer = self._timers[key] = _Timer(None, "", fire)
        self._sleep(key, timer, max(at_ns, clock.now_ns()))

    def cancel(self, key: str) -> None:
        """See `Timers.cancel`."""
        timer = self._timers.pop(key, None)
        if timer is not None and timer.entry is not None:
            timer.entry.what = None

    def next_ns(self, key: str) -> int | None:
        """See `Timers.next_ns`."""
        timer = self._timers.get(key)
        return timer.due_ns if timer is not None else None

    def retime(self) -> None:
        """See `Timers.retime`."""
        now_ns = clock.now_ns()
        for key, timer in list(self._timers.items()):
            if timer.schedule is None or timer.due_ns <= now_ns:
                self._sleep(key, timer, min(timer.due_ns, now_ns))
            else:
                self._following(key, timer)

    def wake(self) -> None:
        """See `Timers.wake`."""
        for key, timer in list(self._timers.items()):
            self._sleep(key, timer, timer.due_ns)

    def stop(self) -> None:
        """Call nobody any more."""
        for key in list(self._timers):
            self.cancel(key)

    def overdue_s(self) -> float:
        """How late the latest is."""
        now_ns = clock.now_ns()
        return max((now_ns - timer.due_ns for timer in self._timers.values()), default=0) / 1e9

    def _following(self, key: str, timer: _Timer) -> None:
        assert timer.schedule is not None
        following = timer.schedule.next_after(clock.now_ns(), seed=timer.seed)
        if following is None:
            self.cancel(key)
        else:
            self._sleep(key, timer, following.at_ns)

    def _sleep(self, key: str, timer: _Timer, due_ns: int) -> None:
        if timer.entry is not None:
            timer.entry.what = None
        timer.due_ns = due_ns
        left_ns = max(0, due_ns - clock.now_ns())
        # A microsecond more: a time in floating point must not come before its nanosecond.
        at_s = self._sim.now_s + left_ns / 1e9 + (1e-6 if left_ns else 0.0)
        timer.entry = self._sim.at(at_s, lambda: self._due(key, timer))

    def _due(self, key: str, timer: _Timer) -> None:
        timer.entry = None
        if timer.due_ns > clock.now_ns():  # the wall clock was set back
            self._sleep(key, timer, timer.due_ns)
            return
        if timer.schedule is None:
            del self._timers[key]
        else:
            self._following(key, timer)  # all that were missed are this one call
        timer.fire()
