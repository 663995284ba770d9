"""How an operation waits for another host or a program: whether it can be cancelled or hurried.

One object per operation is passed to everything that waits on its behalf: a verb passes its own to
its two drivers and to the streams between them, an agent passes that of each call to the driver's
stream. Settings for a part of the operation apply in a `with` block. One thread changes it; others
may wait.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirrord.core.errors import LinkLost
from mirrord.system import clock
from mirrord.system.native import drain_to, pass_on

#: How often a waiting thread checks for cancellation.
_ASK_S = 0.1
#: How long to wait for a sign of life when hurried, and when only probing.
HURRY_S = 0.8
LOOK_S = 4.0

#: Raises when the operation is cancelled.
Check = Callable[[], None]


class Waiting:
    """Waits without a limit, unless `check` or one of the blocks ends the wait."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check
        #: How long to wait for a sign of life when hurried; 0: not hurried.
        self.hurry_s = 0.0
        self._once = False

    @contextmanager
    def cancellable(self, check: Check) -> Iterator[None]:
        """Call `check` while waiting: an error that it raises ends the wait."""
        before, self._check = self._check, check
        try:
            yield
        finally:
            self._check = before

    @contextmanager
    def hurried(self, seconds: float = HURRY_S) -> Iterator[None]:
        """For cleanup after a cancellation, or for a probe: a host that does not answer within
        `seconds` counts as lost, and no second attempt is made. 0: as before.
        """
        before, self.hurry_s = self.hurry_s, seconds or self.hurry_s
        try:
            yield
        finally:
            self.hurry_s = before

    @contextmanager
    def once(self) -> Iterator[None]:
        """The caller does its own retries: make one attempt only."""
        before, self._once = self._once, True
        try:
            yield
        finally:
            self._once = before

    @property
    def one_try(self) -> bool:
        """Whether only one attempt is to be made."""
        return self._once or self.hurry_s > 0

    def look(self) -> None:
        """Raise when the operation is cancelled."""
        if self._check is not None:
            self._check()

    def sleep_s(self, seconds: float) -> None:
        """A pause that can be cancelled."""
        until_s = clock.monotonic_s() + seconds
        while (left_s := until_s - clock.monotonic_s()) > 0:
            self.look()
            clock.sleep_s(min(left_s, _ASK_S))

    def until(self, wait: Callable[[float | None], bool], timeout_s: float | None = None) -> bool:
        """Call `wait(seconds)` until it returns true, for at most `timeout_s` (None: no limit);
        returns whether it did.
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

    def granted(self, ask: Callable[[float], bool]) -> None:
        """Call `ask(seconds)` until it returns true: native code, which waits at most that long."""
        while not self.until(lambda left_s: ask(_ASK_S if left_s is None else left_s)):
            pass

    def acquire(self, lock: threading.Lock) -> None:
        """Take a lock whose holder may be waiting for the other end."""
        self.until(lambda left_s: lock.acquire(timeout=-1 if left_s is None else left_s))

    def joined(self, thread: threading.Thread) -> None:
        """Wait until a thread has ended."""

        def over(left_s: float | None) -> bool:
            thread.join(left_s)
            return not thread.is_alive()

        self.until(over)

    def write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write everything to a non-blocking pipe, waiting for its reader."""
        view = memoryview(data)

        def written(left_s: float | None) -> bool:
            nonlocal view
            view = view[drain_to(descriptor, view, left_s) :]
            return not view

        while not self.until(written):
            pass  # a signal: its handler has run

    def pass_on(self, source: int, sink: int, most: int) -> int:
        """Move at least one and at most `most` bytes from a pipe to another; 0 at the end."""
        moved: int | None = None

        def passed(left_s: float | None) -> bool:
            nonlocal moved
            moved = pass_on(source, sink, most, _ASK_S if left_s is None else left_s)
            return moved is not None

        while not self.until(passed):
            pass
        assert moved is not None
        return moved

    def readable(self, descriptor: int) -> None:
        """Wait until a pipe is readable, or has ended."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        self.until(lambda left_s: bool(poll.poll(None if left_s is None else left_s * 1000)))


def deadline(seconds: float) -> Waiting:
    """A wait of at most that long, which cannot be cancelled; then `LinkLost`."""
    until_s = clock.monotonic_s() + seconds

    def check() -> None:
        if clock.monotonic_s() > until_s:
            raise LinkLost(
                "the other end does not answer",
                why="no answer within the time limit",
                hint="Run the same command again: it resumes where this one stopped.",
            )

    return Waiting(check)
