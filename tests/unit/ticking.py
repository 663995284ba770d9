"""A clock and timers that tests move by hand."""

from __future__ import annotations

from collections.abc import Callable

from mirrord.schedules.schedule import Schedule, parse_schedule

START_NS = 1_700_000_000 * 10**9


class Hand:
    """All clocks (`mirrord.system.clock.Source`). Time passes where a test says so."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.suspended_s = 0.0
        self.stepped_s = 0.0

    def now_ns(self) -> int:
        return START_NS + round((self.boottime_s() + self.stepped_s) * 1e9)

    def monotonic_s(self) -> float:
        return self.passed_s

    def boottime_s(self) -> float:
        return self.passed_s + self.suspended_s

    def sleep_s(self, seconds: float) -> None:
        self.passed_s += seconds


class Alarm:
    """One timer; schedule: None for one that calls once."""

    def __init__(
        self, at_ns: int, fire: Callable[[], object], schedule: Schedule | None, seed: str
    ) -> None:
        self.at_ns, self.fire, self.schedule, self.seed = at_ns, fire, schedule, seed


class HandTimers:
    """`mirrord.scheduler.scheduler.Timers` that call when the test lets time pass."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.set: dict[str, Alarm] = {}

    def follow(self, key: str, schedule: Schedule, seed: str, fire: Callable[[], object]) -> None:
        following = schedule.next_after(self.hand.now_ns(), seed=seed)
        assert following is not None
        self.set[key] = Alarm(following.at_ns, fire, schedule, seed)

    def at(self, key: str, at_ns: int, fire: Callable[[], object]) -> None:
        self.set[key] = Alarm(at_ns, fire, None, "")

    def cancel(self, key: str) -> None:
        self.set.pop(key, None)

    def next_ns(self, key: str) -> int | None:
        alarm = self.set.get(key)
        return alarm.at_ns if alarm else None

    def retime(self) -> None:
        for key, alarm in list(self.set.items()):
            if alarm.schedule is not None:
                self.follow(key, alarm.schedule, alarm.seed, alarm.fire)
            else:
                alarm.at_ns = self.hand.now_ns()

    def wake(self) -> None:
        """They look at the wall clock anyway."""

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and call what comes due on the way."""
        end_ns = self.hand.now_ns() + round(seconds * 1e9)
        while True:
            due = [(a.at_ns, key) for key, a in self.set.items() if a.at_ns <= end_ns]
            if not due:
                break
            at_ns, key = min(due)
            self.hand.passed_s += max(0, at_ns - self.hand.now_ns()) / 1e9
            alarm = self.set.pop(key)
            if alarm.schedule is not None:
                self.follow(key, alarm.schedule, alarm.seed, alarm.fire)
            alarm.fire()
        self.hand.passed_s += max(0, end_ns - self.hand.now_ns()) / 1e9


def every(text: str, *, blackouts: tuple[str, ...] = ()) -> Schedule:
    """A schedule."""
    return parse_schedule(text, blackouts=blackouts)
