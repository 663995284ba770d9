"""The daemon's ticks: once a second the clock, the mirrors, their ends and the alarms."""

from __future__ import annotations

import asyncio

from mirrord.daemon.clockguard import ClockGuard
from mirrord.daemon.journal import say
from mirrord.daemon.ledger import Ledger
from mirrord.daemon.poller import Poller
from mirrord.daemon.resumer import Resumer
from mirrord.scheduler.scheduler import Scheduler
from mirrord.system import notify
from mirrord.system.native import Panic

_TICK_S = 1.0
_CHECK_EVERY = 5  # ticks: all mirrors, not only those that run
_HEARTBEAT_EVERY = 30  # ticks


class Watch:
    """Ticks once a second on the event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        guard: ClockGuard,
        ledger: Ledger,
        poller: Poller,
        resumer: Resumer,
    ) -> None:
        self._scheduler, self._guard, self._ledger = scheduler, guard, ledger
        self._poller, self._resumer = poller, resumer
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start."""
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
        self._poller.close()

    async def _beat(self) -> None:
        ticks = 0
        while True:
            try:
                await self._tick(ticks)
            except (Exception, Panic) as bug:
                say("error", f"unexpected: {type(bug).__name__}: {bug}")
            ticks += 1
            await asyncio.sleep(_TICK_S)

    async def _tick(self, ticks: int) -> None:
        notify.tell("WATCHDOG=1", patience_s=0.0)  # the next one comes in a second
        await self._guard.look()
        due = (
            self._scheduler.mirrors if ticks % _CHECK_EVERY == 0 else self._scheduler.queue.running
        )
        self._scheduler.check(*due)
        if ticks % _HEARTBEAT_EVERY == 0:
            self._ledger.heartbeat()
        if ticks % _CHECK_EVERY == 0:
            self._resumer.resume_forsaken()
        self._poller.poll(_TICK_S)
        self._ledger.judge_host()
