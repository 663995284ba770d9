"""How a thread waits for another host or a program: it heeds a request to end, or is in a hurry.

Both hold for the present thread, in a `with` block, and for whatever it waits for in there.
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


class _Manner(threading.local):
    check: Callable[[], None] | None = None
    hurry_s = 0.0
    once = False


_manner = _Manner()


@contextmanager
def heeding(check: Callable[[], None]) -> Iterator[None]:
    """Ask `check` while waiting: what it raises ends the wait."""
    before, _manner.check = _manner.check, check
    try:
        yield
    finally:
        _manner.check = before


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Wait no longer than so, nor heed anything else: `LinkLost`."""
    until_s = clock.monotonic_s() + seconds

    def check() -> None:
        if clock.monotonic_s() > until_s:
            raise LinkLost(
                "the other end does not answer",
                why="nothing came in time",
                hint="Run the same command again: it goes on where this one stopped.",
            )

    with heeding(check):
        yield


@contextmanager
def hurried(seconds: float = HURRY_S) -> Iterator[None]:
    """Somebody waits for the end of what was broken off, or only wants to look: a host that does
    not answer within `seconds` is lost, and no second try is made. 0: no hurry.
    """
    before, _manner.hurry_s = _manner.hurry_s, seconds or _manner.hurry_s
    try:
        yield
    finally:
        _manner.hurry_s = before


@contextmanager
def once() -> Iterator[None]:
    """The caller tries again itself, after pauses of its own: one try is enough."""
    before, _manner.once = _manner.once, True
    try:
        yield
    finally:
        _manner.once = before


def one_try() -> bool:
    """Whether nobody wants a second try."""
    return _manner.once or _manner.hurry_s > 0


def hurry_s() -> float:
    """How long this thread waits for a sign of life when it is in a hurry; 0 when it is not."""
    return _manner.hurry_s


def look() -> None:
    """Raise when this thread shall end."""
    if _manner.check is not None:
        _manner.check()


def sleep_s(seconds: float) -> None:
    """A pause that heeds."""
    until_s = clock.monotonic_s() + seconds
    while (left_s := until_s - clock.monotonic_s()) > 0:
        look()
        clock.sleep_s(min(left_s, _ASK_S))


def until(wait: Callable[[float | None], bool], timeout_s: float | None = None) -> bool:
    """Wait by `wait(seconds)`, which tells whether it is over, for `timeout_s` at the most (None:
    as long as it takes); whether it is over.
    """
    if _manner.check is None:
        return wait(timeout_s)
    until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    while True:
        left_s = _ASK_S if until_s is None else min(_ASK_S, until_s - clock.monotonic_s())
        if wait(max(0.0, left_s)):
            return True
        if until_s is not None and clock.monotonic_s() >= until_s:
            return False
        look()


def acquire(lock: threading.Lock) -> None:
    """Take a lock that somebody may hold who waits for the other end."""
    until(lambda left_s: lock.acquire(timeout=-1 if left_s is None else left_s))


def joined(thread: threading.Thread) -> None:
    """Until a thread has ended."""

    def over(left_s: float | None) -> bool:
        thread.join(left_s)
        return not thread.is_alive()

    until(over)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write to a pipe that does not block, however long it takes to be read."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            _ready(descriptor, select.POLLOUT)


def readable(descriptor: int) -> None:
    """Until a pipe has something to read, or has ended."""
    _ready(descriptor, select.POLLIN)


def _ready(descriptor: int, what: int) -> None:
    poll = select.poll()
    poll.register(descriptor, what)
    until(lambda left_s: bool(poll.poll(None if left_s is None else left_s * 1000)))
