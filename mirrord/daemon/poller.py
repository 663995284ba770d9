"""A look at the two ends of each mirror now and then: of the one that was looked at longest ago."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mirrord.daemon.tasks import Background
from mirrord.scheduler.scheduler import Scheduler
from mirrord.system import clock
from mirrord.system.mounts import MountTable

_LOOK_EVERY_S = 600.0
#: When a look failed, what is known is old: the next one is sooner.
_AGAIN_S = 10.0


class Poller:
    """refresh: looks at the ends of a mirror. background: runs a coroutine beside all else."""

    def __init__(
        self,
        scheduler: Scheduler,
        refresh: Callable[[str], Awaitable[None]],
        background: Background,
    ) -> None:
        self._scheduler, self._refresh, self._background = scheduler, refresh, background
        self._looked_s: dict[str, float] = {}
        #: Who is being looked at: an end that hangs is not looked at once more.
        self._looking: set[str] = set()
        self._mounts = MountTable()

    def close(self) -> None:
        """Look no more."""
        self._mounts.close()

    def poll(self, interval_s: float) -> None:
        """Begin the looks that are due, so many that all are looked at in ten minutes when this is
        called every `interval_s`.
        """
        mirrors, now_s = self._scheduler.mirrors, clock.monotonic_s()
        for name in [name for name in self._looked_s if name not in mirrors]:
            del self._looked_s[name]
        if not mirrors:
            return
        if self._mounts.changed():
            # Another disk may be where the destination was: those here are looked at soon.
            self._looked_s = dict.fromkeys(mirrors, now_s - _LOOK_EVERY_S)
        for name in mirrors:
            self._looked_s.setdefault(name, now_s)
        share = max(1, round(len(mirrors) * interval_s / _LOOK_EVERY_S))
        idle = self._looked_s.keys() - self._scheduler.queue.running.keys() - self._looking
        for name in sorted(idle, key=self._looked_s.__getitem__)[:share]:
            if now_s - self._looked_s[name] >= _LOOK_EVERY_S:
                self._looked_s[name] = now_s
                self._background(self._look(name))

    def look_again(self, name: str) -> None:
        """A look failed: the next is due in a few seconds."""
        self._looked_s[name] = clock.monotonic_s() - _LOOK_EVERY_S + _AGAIN_S

    async def _look(self, name: str) -> None:
        self._looking.add(name)
        try:
            await self._refresh(name)
        finally:
            self._looking.discard(name)
