"""Verifies mirrors by their `verify_schedule`, with the timers of the scheduler.

A verification holds no lock and waits in no queue: updates go on meanwhile. One that was missed
while the daemon did not run is made up for once, as a run is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition
from mirrord.daemon.journal import say
from mirrord.daemon.known import Known
from mirrord.daemon.tasks import Background
from mirrord.daemon.workers import Workers
from mirrord.scheduler.scheduler import Scheduler, verification
from mirrord.schedules.schedule import Schedule, missed
from mirrord.system import clock


class Verifier:
    """See the module. Its methods run on the event loop; refresh: reads a mirror again."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Workers,
        background: Background,
        refresh: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._scheduler, self._workers = scheduler, workers
        self._background, self._refresh = background, refresh
        #: What each timer was set for: the mirror's id, and when it is verified.
        self._set: dict[str, tuple[str, Schedule]] = {}
        self._running: set[str] = set()

    def define(self, known: Known) -> None:
        """Take a mirror's definition, or its changed one."""
        name, seed, schedule = known.definition.name, known.definition.id, known.verify
        before = self._set.get(name)
        if schedule is None:
            self._drop(name)
            return
        if before == (seed, schedule):
            return
        self._set[name] = seed, schedule
        self._scheduler.timers.follow(
            verification(name), schedule, seed, lambda: self.due(name, "schedule")
        )
        if before is None and known.verified_ns:
            late = missed(schedule, known.verified_ns, clock.now_ns(), seed=seed)
            if late is not None:
                self._scheduler.timers.at(
                    _missed(name), late.at_ns, lambda: self.due(name, "missed")
                )

    def _drop(self, name: str) -> None:
        if self._set.pop(name, None) is not None:
            self._scheduler.timers.cancel(verification(name))
            self._scheduler.timers.cancel(_missed(name))
            watched = self._scheduler.mirrors.get(name)
            if watched is not None:
                watched.verify_error = ""

    def due(self, name: str, cause: str) -> bool:
        """A mirror is to be verified now. False: it is being verified, or it shows nothing."""
        watched = self._scheduler.mirrors.get(name)
        if watched is None:
            self._drop(name)  # its definition was removed
            return False
        if self._scheduler.stopping or name in self._running or not watched.standing.mirrored:
            return False
        self._running.add(name)
        self._background(self._run(watched.definition, cause))
        return True

    async def _run(self, definition: Definition, cause: str) -> None:
        name, wrong = definition.name, ""
        facts = {"mirror": name, "verb": "verify", "cause": cause}
        try:
            done = await self._workers.verify(lambda service: service.verify_known(definition))
            say("info" if done.status == "verified" else "error", done.text, **facts)
        except MirrordError as error:
            if error.code in ("aborted", "busy"):
                say("info", f"{name}: not verified: {error}", **facts)
                return
            wrong = str(error)
            say("error", f"{name}: verification failed: {error}", **facts, code=error.code)
        finally:
            self._running.discard(name)
        watched = self._scheduler.mirrors.get(name)
        if watched is not None and watched.definition.id == definition.id:
            watched.verify_error = wrong
            await self._refresh(name)


def _missed(name: str) -> str:
    return f"{verification(name)}-missed"
