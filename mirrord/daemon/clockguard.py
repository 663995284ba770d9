"""Changes of this host's clock: they move timers, and keep calendar rules from
pruning until the owner has accepted the new time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mirrord.config.host import Host
from mirrord.control.api import Service
from mirrord.control.commands.alarms import accept_clock
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.units import format_duration
from mirrord.daemon.journal import say
from mirrord.daemon.ledger import Ledger
from mirrord.daemon.timers import ApTimers
from mirrord.scheduler.clockwatch import ClockWatch
from mirrord.scheduler.watched import Watched
from mirrord.system import clock

_NOTED_S = 60.0  # a daemon notes the time more often
_STEP_S = 0.5  # timers that are off by more are set again


class ClockGuard:
    """counted: called at each jump."""

    def __init__(
        self, host: Host, ledger: Ledger, timers: ApTimers, counted: Callable[[], None]
    ) -> None:
        self._tolerance_s = host.clock_jump_s
        self._ledger, self._timers, self._counted = ledger, timers, counted
        self._watch = ClockWatch(clock.now_ns(), clock.boottime_s(), tolerance_s=self._tolerance_s)
        #: Of before the watch began, which knows nothing of it; and of a jump that the watch saw.
        self._left = self._doubt = ""
        #: The last time that the previous daemon noted; how far the wall clock was ahead of the
        #: other at the start, and when that was by the other.
        self._seen_ns = 0
        self._ahead_s = clock.now_ns() / 1e9 - clock.boottime_s()
        self._began_s = clock.boottime_s()
        ledger.sources.append(self._findings)

    async def begin(self, doubt: str, seen_ns: int) -> None:
        """Start from the previous daemon's record: its doubt, and the last time it saw."""
        self._left, self._seen_ns = doubt, seen_ns
        back_s = (seen_ns - clock.now_ns()) / 1e9
        if back_s > self._tolerance_s:
            self._left = (
                f"it went back by {format_duration(back_s)} while the daemon was not running"
            )
            await self._record(self._left)

    async def look(self) -> None:
        """Compare it with the clock that counts since boot."""
        by_s = self._watch.look(clock.now_ns(), clock.boottime_s())
        slept_s = self._watch.slept(clock.boottime_s(), clock.monotonic_s())
        if abs(by_s) > _STEP_S:
            self._timers.retime()
        elif slept_s > _STEP_S:
            self._timers.wake()
        jump = self._watch.judge(by_s)
        if jump is None:
            return
        self._counted()
        say("warning", f"the clock of this host jumped: {jump.text}")
        self._doubt = "" if jump.over else jump.text
        if self._doubt or self._left:
            await self._record(self._doubt or self._left)
        else:
            await self._ledger.write(lambda service: service.run(accept_clock()))

    async def _record(self, text: str) -> None:
        fact = {"text": text, "at_ns": clock.now_ns()}

        def work(service: Service) -> None:
            service.catalogue.set_fact("clock_doubt", fact)

        await self._ledger.write(work)

    def accept(self, mirrors: Iterable[Watched]) -> None:
        """The owner accepted the clock. If it was ahead when the daemon began, and not before, the
        ages of what the previous one had recorded were computed too large.
        """
        self._left = self._doubt = ""
        self._watch.away_s = 0.0
        ahead_s = clock.now_ns() / 1e9 - clock.boottime_s()
        began_ns = (self._began_s + ahead_s) * 1e9
        if self._ahead_s - ahead_s < self._tolerance_s or began_ns < self._seen_ns:
            return
        # What was recorded without a daemon may be of the wrong time: its lag stays too large.
        before_ns = min(began_ns, self._seen_ns + _NOTED_S * 1e9)
        for watched in mirrors:
            if 0 < watched.standing.confirmed_ns < before_ns:
                watched.confirmed_boot_s = watched.standing.confirmed_ns / 1e9 - ahead_s

    def _findings(self) -> list[Finding]:
        doubt = self._doubt or self._left
        if not doubt:
            return []
        text = (
            f"the clock of this host jumped: {doubt}; no snapshot is pruned by calendar "
            "rules until it is accepted with 'mirrord alarms --accept-clock'"
        )
        return [Finding(AlarmKind.CLOCK, Level.ERROR, text)]
