"""What breaks a verb at a labelled step: the end of its process, or an error."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mirrord.core.errors import Busy, MirrordError
from mirrord.system import steps
from tests.support.service import until
from tests.support.world import World

#: A label, and which of its passings.
Point = tuple[str, int]
#: So long a verb that is to be killed may take, seconds.
_KILL_S = 120
_TRIES = 200
#: The thread that Dask leaves behind in a process in which tests of the analysis ran, too.
_IDLE = "IO loop"


class Crash(BaseException):
    """Stands for the end of the process: nothing may catch it and go on."""


def io_error(label: str) -> BaseException:
    return OSError(errno.EIO, "injected", label)


def full(label: str) -> BaseException:
    return OSError(errno.ENOSPC, "injected", label)


#: One after the other.
KINDS: tuple[Callable[[str], BaseException], ...] = (Crash, io_error, full)


def in_turn(label: str) -> BaseException:
    """One of the kinds, always the same for a label."""
    return KINDS[zlib.crc32(label.encode()) % len(KINDS)](label)


FAULTS: dict[str, Callable[[str], BaseException]] = {
    "in-turn": in_turn,
    "crash": Crash,
    "io-error": io_error,
    "disk-full": full,
}
#: Each run breaks every step; with every kind of fault only the nightly ones do.
EACH = [pytest.param(name, marks=[pytest.mark.nightly] * (name != "in-turn")) for name in FAULTS]


class Met:
    """Whether a step was broken."""

    def __init__(self) -> None:
        self.met = False


@contextmanager
def broken_at(point: Point, fault: Callable[[str], BaseException]) -> Iterator[Met]:
    """The step of that label fails when it is passed for the given time."""
    left, told = point[1], Met()

    def observer(label: str) -> None:
        nonlocal left
        if label == point[0]:
            left -= 1
            if left == 0:
                told.met = True
                raise fault(label)

    steps.observe(observer)
    try:
        yield told
    finally:
        steps.observe(None)


def labels(work: Callable[[], object]) -> list[str]:
    """All that the work passes, in its order."""
    seen: list[str] = []
    steps.observe(seen.append)
    try:
        work()
    finally:
        steps.observe(None)
    return seen


def points(work: Callable[[], object], *, least: int = 3) -> list[Point]:
    """Where the work can be broken: each label's first and last passing. least: so many there are.

    The passings between depend on the content (a step for each run of blocks that is written).
    """
    seen = labels(work)
    found = {(label, time) for label in seen for time in (1, seen.count(label))}
    assert len(found) >= least, "the work passes labelled steps"
    return sorted(found, key=lambda point: (seen.index(point[0]), point[1]))


def attempt(
    world: World, work: Callable[[], object], point: Point, fault: str, *, sure: bool = True
) -> bool:
    """Run the work with the fault; True when it failed (it may survive one in its clean-up).

    sure: that the work passes there, so that the fault must be met.
    """
    failed = False
    with broken_at(point, FAULTS[fault]) as told:
        try:
            work()
        except (Crash, MirrordError, OSError):
            failed = True
    assert told.met or not sure, f"{fault} was not met at {point}"
    if failed:
        world.again()
    return failed


def persist(work: Callable[[], object]) -> object:
    """A program that writes may have the volume at this moment: do it as soon as it has not."""
    for _ in range(_TRIES):
        try:
            return work()
        except Busy:
            continue
    raise AssertionError(f"it was busy {_TRIES} times")


def killed(world: World, work: Callable[[], object], label: str, time: int = 1) -> bool:
    """Run the work in a process of its own that is ended by kill -9 when it passes a label for the
    first time (or that `time`); whether that was met. Locks, descriptors and files are as the
    kernel leaves them.
    """
    world.service.close()
    # A fork beside another thread may hang: that of a commit in the background ends by itself.
    until(lambda: not _others(), what=f"for {threading.enumerate()}")
    child = os.fork()
    if child == 0:
        _work_until(world, work, label, time)
    _child, status = os.waitpid(child, 0)
    world.again()
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"{label}: exit {code}"
    return code != 0


def _others() -> list[threading.Thread]:
    """The threads beside this one that may hold a lock which the product needs."""
    here = threading.current_thread()
    return [one for one in threading.enumerate() if one is not here and one.name != _IDLE]


def _work_until(world: World, work: Callable[[], object], label: str, time: int) -> None:
    """What the child does; never returns."""

    left = time

    def observer(seen: str) -> None:
        nonlocal left
        left -= seen == label
        if seen == label and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        signal.alarm(_KILL_S)
        world.again()
        steps.observe(observer)
        persist(work)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
