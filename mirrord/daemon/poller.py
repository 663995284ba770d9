"""Periodic probes of the two ends of each mirror, the least recently probed one first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mirrord.daemon.tasks import Background
from mirrord.scheduler.scheduler import Scheduler
from mirrord.system import clock
from mirrord.system.mounts import MountTable

_PROBE_EVERY_S = 600.0
#: Live mirrors: a process that ended is restarted then.
_LIVE_EVERY_S = 3.0
#: After a failed probe what is known is old: the next one is sooner.
_AGAIN_S = 10.0


class Poller:
    """refresh: probes the ends of a mirror. background: runs a coroutine as a task."""

    def __init__(
        self,
        scheduler: Scheduler,
        refresh: Callable[[str], Awaitable[None]],
        background: Background,
    ) -> None:
        self.refresh = refresh
        self._scheduler, self._background = scheduler, background
        self._probed_s: dict[str, float] = {}
        #: Being probed now: an end that hangs is not probed again.
        self._probing: set[str] = set()
        self._mounts = MountTable()

    def close(self) -> None:
        """Stop."""
        self._mounts.close()

    def poll(self, interval_s: float) -> None:
        """Start the probes that are due, so many that all are probed in ten minutes when this is
        called every `interval_s`.
        """
        mirrors, now_s = self._scheduler.mirrors, clock.monotonic_s()
        for name in [name for name in self._probed_s if name not in mirrors]:
            del self._probed_s[name]
        if not mirrors:
            return
        if self._mounts.changed():
            # Another disk may be where the destination was: those here are probed soon.
            self._probed_s = dict.fromkeys(mirrors, now_s - _PROBE_EVERY_S)
        for name in mirrors:
            self._probed_s.setdefault(name, now_s)
        share = max(1, round(len(mirrors) * interval_s / _PROBE_EVERY_S))
        idle = self._probed_s.keys() - self._scheduler.queue.running.keys() - self._probing
        live = {name for name in idle if mirrors[name].definition.is_live}
        due = [name for name in live if now_s - self._probed_s[name] >= _LIVE_EVERY_S]
        oldest = sorted(idle - live, key=self._probed_s.__getitem__)[:share]
        due += [name for name in oldest if now_s - self._probed_s[name] >= _PROBE_EVERY_S]
        for name in due:
            self._probed_s[name] = now_s
            self._background(self._probe(name))

    def probe_now(self, name: str) -> None:
        """Probe a mirror at once, unless that is under way."""
        if name not in self._probing:
            self._probed_s[name] = clock.monotonic_s()
            self._background(self._probe(name))

    def probe_again(self, name: str) -> None:
        """A probe failed: the next is due in a few seconds."""
        self._probed_s[name] = clock.monotonic_s() - _PROBE_EVERY_S + _AGAIN_S

    async def _probe(self, name: str) -> None:
        self._probing.add(name)
        try:
            await self.refresh(name)
        finally:
            self._probing.discard(name)
