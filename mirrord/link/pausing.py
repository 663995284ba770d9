"""The guard of a pause on another host, over its session (mirrord.agent.pauses).

Each request is made once, over the connection on which the guard was prepared: when that breaks,
the agent's end of it resumes everything, and the pause has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mirrord.core.errors import MirrordError
from mirrord.core.pause import LeftPaused, Resumed
from mirrord.link.driver import RemoteDriver
from mirrord.link.exchange import Exchange
from mirrord.pausers.session import Guarding
from mirrord.system import clock
from mirrord.system.waiting import HURRY_S, Waiting, deadline
from mirrord.wire.methods import METHODS
from mirrord.wire.values import unpack

#: How long an answer may be under way, in addition to the longest pause.
_ANSWER_S = 2.0


def host_of(driver: RemoteDriver) -> str:
    """What tells the host of a volume from others."""
    found: str = _ask(driver, "pause_host")
    return found


def left_at(driver: RemoteDriver, pausers: Sequence[str]) -> list[LeftPaused]:
    """Resume those of these applications on the host of a volume that were left paused; returns
    what could not be.
    """
    found: list[LeftPaused] = _ask(driver, "pause_left", list(pausers))
    return found


def _ask(driver: RemoteDriver, method: str, *words: object) -> Any:
    with driver.placing():
        session, number = driver.attached(method)
        answer = session.call(method, number, *words, waiting=driver.waiting)
        return unpack(METHODS[method].result, answer)


class RemoteGuard(Guarding):
    """driver: of any of the volumes on that host. max_s: the longest pause."""

    def __init__(self, driver: RemoteDriver, pausers: Sequence[str], max_s: float) -> None:
        self._driver, self._max_s = driver, max_s
        self._asked_s = self._network_s = 0.0
        self._left: Exchange | None = None
        with driver.placing():
            self._session, self._number = driver.attached("pause_open")
            self._call = self._begin("pause_open", list(pausers), max_s, waiting=driver.waiting)

    def ready(self, check: Callable[[], None]) -> None:
        """See `Guarding.ready`."""
        with self._driver.waiting.cancellable(check):
            self._answer("pause_open")

    def ask_pause(self) -> None:
        """See `Guarding.ask_pause`."""
        self._ask("pause_begin")

    def paused(self) -> list[float]:
        """See `Guarding.paused`."""
        found: list[float] = self._answer("pause_begin")
        self._count(max(found, default=0.0))
        return found

    def ask_resume(self) -> None:
        """See `Guarding.ask_resume`."""
        self._ask("pause_end")

    def resumed(self) -> Resumed:
        """See `Guarding.resumed`."""
        found: Resumed = self._answer("pause_end")
        self._count(max(found.resume_s, default=0.0))
        return found

    def leave(self) -> None:
        """See `Guarding.leave`. A host that cannot be told resumes by itself."""
        if self._left is None:
            with suppress(MirrordError):
                self._left = self._begin("pause_close", waiting=deadline(HURRY_S))

    def close(self) -> None:
        """See `Guarding.close`."""
        self.leave()
        self._session.forget(self._call)  # one that was asked and not awaited
        if self._left is not None:
            with suppress(MirrordError):
                self._left.result(HURRY_S)
            self._session.forget(self._left)

    @property
    def network_s(self) -> float:
        """See `Guarding.network_s`."""
        return self._network_s

    def _begin(self, method: str, *words: object, waiting: Waiting) -> Exchange:
        return self._session.begin(method, self._number, *words, waiting=waiting)

    def _ask(self, method: str) -> None:
        self._asked_s = clock.monotonic_s()
        with self._driver.placing():
            self._call = self._begin(method, waiting=deadline(self._max_s + _ANSWER_S))

    def _answer(self, method: str) -> Any:
        with self._driver.placing():
            try:
                return unpack(METHODS[method].result, self._call.result())
            finally:
                self._session.forget(self._call)

    def _count(self, worked_s: float) -> None:
        """Add what the last request took beyond the work at the other end."""
        took_s = self._call.answered_s - self._asked_s
        self._network_s += max(0.0, took_s - worked_s)
