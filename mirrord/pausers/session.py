"""The coordinator's side of a guard program (guard.py)."""

from __future__ import annotations

import abc
import json
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mirrord
from mirrord.core.errors import PauseFailed, unpack_error
from mirrord.core.pause import Resumed
from mirrord.pausers.guard import LOCK_WAIT_S, Order
from mirrord.pausers.record import resume_left
from mirrord.system import clock, command

_POLL_S = 0.1
#: How long a guard may take to start, besides waiting for locks, and to resume.
_START_S = 60.0
_RESUME_S = 90.0


class Guarding(abc.ABC):
    """The guard of one host, as the coordinator uses it. Requests do not wait for their answers, so
    that several hosts pause at the same time. It is starting when it is made.
    """

    @abc.abstractmethod
    def ready(self, check: Callable[[], None]) -> None:
        """Wait until everything can be paused. check: called while waiting; may raise."""

    @abc.abstractmethod
    def ask_pause(self) -> None:
        """Request the pause."""

    @abc.abstractmethod
    def paused(self) -> list[float]:
        """Wait until everything is paused; after how many seconds each has confirmed."""

    @abc.abstractmethod
    def ask_resume(self) -> None:
        """Request the end of the pause."""

    @abc.abstractmethod
    def resumed(self) -> Resumed:
        """Wait until everything is resumed. `PauseFailed` when not everything was paused until the
        request arrived.
        """

    @abc.abstractmethod
    def leave(self) -> None:
        """Request its end, whatever it does; what is paused is resumed. May be called twice."""

    @abc.abstractmethod
    def close(self) -> None:
        """The same, and wait for it. May be called twice."""

    def pause(self) -> list[float]:
        """Request the pause, and wait for it."""
        self.ask_pause()
        return self.paused()

    def resume(self) -> Resumed:
        """Request the end of the pause, and wait for it."""
        self.ask_resume()
        return self.resumed()

    @property
    def network_s(self) -> float:
        """How long requests and answers were under way; 0 on this host."""
        return 0.0


class Guard(Guarding):
    """A guard on this host. It ends when it is closed, or with this process; either resumes."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._socket, theirs = socket.socketpair()
        top = str(Path(mirrord.__file__).parents[1])
        found = os.environ.get("PYTHONPATH")
        with theirs:
            self._process = command.start(
                [sys.executable, "-P", "-m", "mirrord.pausers.guard", json.dumps(order._asdict())],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=command.NO_INPUT,
                environment={"PYTHONPATH": f"{top}:{found}" if found else top},
            )
        self._rest = b""

    def ready(self, check: Callable[[], None]) -> None:
        """See `Guarding.ready`."""
        self._answer("ready", LOCK_WAIT_S + _START_S, check)

    def ask_pause(self) -> None:
        """See `Guarding.ask_pause`."""
        self._ask(b"p")

    def paused(self) -> list[float]:
        """See `Guarding.paused`."""
        found = self._answer("paused", self._order.max_s + _RESUME_S)
        return [float(one) for one in found["confirm_s"]]

    def ask_resume(self) -> None:
        """See `Guarding.ask_resume`."""
        self._ask(b"r")

    def resumed(self) -> Resumed:
        """See `Guarding.resumed`."""
        found = self._answer("resumed", _RESUME_S)
        if found["expired"]:
            raise PauseFailed(
                "the snapshots took longer than the pause may last",
                why=f"the pause was ended after {self._order.max_s:g} s, and the snapshots were "
                "discarded",
                hint="Run the same command again. If it fails each time, set a greater "
                "'pause_max' in the definition.",
            )
        if found["broken"]:
            raise PauseFailed(
                "the pause ended before the snapshots were taken",
                where=", ".join(found["broken"]),
                why="something else resumed it, or it was restarted; the snapshots were discarded",
                hint="Run the same command again.",
            )
        return Resumed(found["pause_s"], found["resume_s"], found["problems"])

    def leave(self) -> None:
        """See `Guarding.leave`: the end of its input."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See `Guarding.close`."""
        self._socket.close()
        if command.ended(self._process, timeout_s=_RESUME_S) is None:
            command.end_session(self._process)
        self._process.wait()
        resume_left(Path(self._order.record))

    def _ask(self, word: bytes) -> None:
        with suppress(OSError):  # it has ended, which its answer tells
            self._socket.send(word)

    def _answer(
        self, event: str, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        until_s = clock.monotonic_s() + timeout_s
        watch = select.poll()
        watch.register(self._socket, select.POLLIN)
        while b"\n" not in self._rest:
            check()
            if clock.monotonic_s() > until_s:
                raise PauseFailed("the program that pauses does not answer", why="time limit")
            if watch.poll(_POLL_S * 1000):
                data = b""
                with suppress(ConnectionError):
                    data = self._socket.recv(65536)
                if not data:
                    raise PauseFailed(
                        "the program that pauses has ended",
                        why="it was killed, or could not be started",
                        hint="What it had paused is resumed. Run the same command again.",
                    )
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if found["event"] == "failed":
            raise unpack_error(found["error"])
        assert found["event"] == event, found
        return found
