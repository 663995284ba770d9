"""How a piece of work waits for another host or a program: it may be cancelled, or is in a hurry.

One object says it, which is passed to all that waits for this work's sake: a verb gives its own to
its two drivers and to the streams between them, an agent gives each call's to the driver's stream.
What holds for a part of the work holds in a `with` block. One thread changes it; others may wait.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirrord.core.errors import LinkLost
from mirrord.system import clock

#: How often somebody who waits asks whether he shall go on.
_ASK_S = 0.1
#: How long who is in a hurry waits for a sign of life, and who only looks.
HURRY_S = 0.8
LOOK_S = 4.0

#: Raises when nobody wants the work any more.
Check = Callable[[], None]


class Waiting:
    """As long as it takes, unless `check` or one of the blocks says otherwise."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check
        #: How long to wait for a sign of life when in a hurry; 0: no hurry.
        self.hurry_s = 0.0
        self._once = False

    @contextmanager
    def cancellable(self, check: Check) -> Iterator[None]:
        """Ask `check` while waiting: what it raises ends the wait."""
        before, self._check = self._check, check
        try:
            yield
        finally:
            self._check = before

    @contextmanager
    def hurried(self, seconds: float = HURRY_S) -> Iterator[None]:
        """Somebody waits for the end of what was broken off, or only wants to look: a host that
        does not answer within `seconds` is lost, and no second try is made. 0: as before.
        """
        before, self.hurry_s = self.hurry_s, seconds or self.hurry_s
        try:
            yield
        finally:
            self.hurry_s = before

    @contextmanager
    def once(self) -> Iterator[None]:
        """The caller tries again itself, after pauses of its own: one try is enough."""
        before, self._once = self._once, True
        try:
            yield
        finally:
            self._once = before

    @property
    def one_try(self) -> bool:
        """Whether nobody wants a second try."""
        return self._once or self.hurry_s > 0

    def look(self) -> None:
        """Raise when nobody wants the work any more."""
        if self._check is not None:
            self._check()

    def sleep_s(self, seconds: float) -> None:
        """A pause that can be cancelled."""
        until_s = clock.monotonic_s() + seconds
        while (left_s := until_s - clock.monotonic_s()) > 0:
            self.look()
            clock.sleep_s(min(left_s, _ASK_S))

    def until(self, wait: Callable[[float | None], bool], timeout_s: float | None = None) -> bool:
        """Wait by `wait(seconds)`, which tells whether it is over, for at most `timeout_s` (None:
        as long as it takes); whether it is over.
        """
        if self._check is None:
            return wait(timeout_s)
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        while True:
            left_s = _ASK_S if until_s is None else min(_ASK_S, until_s - clock.monotonic_s())
            if wait(max(0.0, left_s)):
                return True
            if until_s is not None and clock.monotonic_s() >= until_s:
                return False
            self.look()

    def acquire(self, lock: threading.Lock) -> None:
        """Take a lock that somebody may hold who waits for the other end."""
        self.until(lambda left_s: lock.acquire(timeout=-1 if left_s is None else left_s))

    def joined(self, thread: threading.Thread) -> None:
        """Until a thread has ended."""

        def over(left_s: float | None) -> bool:
            thread.join(left_s)
            return not thread.is_alive()

        self.until(over)

    def write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write to a pipe that does not block, however long it takes to be read."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                self._ready(descriptor, select.POLLOUT)

    def readable(self, descriptor: int) -> None:
        """Until a pipe has something to read, or has ended."""
        self._ready(descriptor, select.POLLIN)

    def _ready(self, descriptor: int, what: int) -> None:
        poll = select.poll()
        poll.register(descriptor, what)
        self.until(lambda left_s: bool(poll.poll(None if left_s is None else left_s * 1000)))


def deadline(seconds: float) -> Waiting:
    """Of what waits no longer than so, and cannot be cancelled: `LinkLost`."""
    until_s = clock.monotonic_s() + seconds

    def check() -> None:
        if clock.monotonic_s() > until_s:
            raise LinkLost(
                "the other end does not answer",
                why="no answer within the time limit",
                hint="Run the same command again: it resumes where this one stopped.",
            )

    return Waiting(check)
