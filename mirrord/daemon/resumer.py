"""Resumes applications that a pause has left paused, until they are known to run."""

from __future__ import annotations

from functools import partial

from mirrord.core.pause import LeftPaused
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.daemon.journal import say
from mirrord.daemon.known import Known
from mirrord.daemon.ledger import Ledger
from mirrord.daemon.poller import Poller
from mirrord.daemon.tasks import Background
from mirrord.daemon.workers import Workers
from mirrord.engine import stillpaused
from mirrord.scheduler.scheduler import Scheduler
from mirrord.system import clock

#: The next attempt is made by the probe that follows a failed one.
_AGAIN_S = 5.0


class Resumer:
    """See the module. Its methods run on the event loop. poller: reads a mirror again."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Workers,
        background: Background,
        poller: Poller,
        ledger: Ledger,
    ) -> None:
        self._scheduler, self._workers, self._background = scheduler, workers, background
        self._poller, self._folder = poller, workers.paths.run
        #: When each mirror was tried last, by the monotonic clock.
        self._tried_s: dict[str, float] = {}
        self._trying: set[str] = set()
        #: What mirrors have left paused that are not defined, by their ids.
        self._forsaken: dict[str, list[LeftPaused]] = {}
        self._is_resuming = False
        ledger.sources.append(self._findings)

    def resume_forsaken(self) -> None:
        """Resume what mirrors have left paused that are not defined, or not known yet."""
        if self._is_resuming or self._scheduler.stopping:
            return
        known = {watched.definition.id for watched in self._scheduler.mirrors.values()}
        paths = stillpaused.forsaken(self._folder, known)
        if not paths:
            self._forsaken = {}
            return
        self._is_resuming = True

        async def work() -> None:
            try:
                self._forsaken = await self._workers.resume(
                    lambda _service: stillpaused.resume_forsaken(paths, partial(say, "warning"))
                )
            finally:
                self._is_resuming = False

        self._background(work())

    def _findings(self) -> list[Finding]:
        known = {watched.definition.id for watched in self._scheduler.mirrors.values()}
        left = [one for key, found in self._forsaken.items() if key not in known for one in found]
        text = "; ".join(one.line() for one in left)
        text += " (the mirror is no longer defined; when you are sure that the application runs, "
        text += f"delete its record in {self._folder / stillpaused.FOLDER})"
        return [Finding(AlarmKind.PAUSE, Level.ERROR, text)] if left else []

    def look(self, known: Known) -> None:
        """A mirror was read: resume what it has left paused."""
        name, now_s = known.definition.name, clock.monotonic_s()
        left = any(
            fault.kind is AlarmKind.PAUSE and fault.level is Level.ERROR
            for fault in known.reading.faults
        )
        if not left or self._scheduler.stopping:
            self._tried_s.pop(name, None)
            if stillpaused.record_in(self._folder, known.definition.id).exists():
                self._poller.probe_again(name)  # a process is at work with it, which may fail
            return
        self._poller.probe_again(name)
        if name in self._trying or now_s - self._tried_s.get(name, -_AGAIN_S) < _AGAIN_S:
            return
        self._tried_s[name] = now_s
        self._trying.add(name)

        async def work() -> None:
            try:
                await self._workers.resume(lambda service: service.resume_left(name))
            finally:
                self._trying.discard(name)
            await self._poller.refresh(name)

        self._background(work())
