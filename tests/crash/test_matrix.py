"""The crash matrix: every verb is broken at every labelled step, by a crash and by an I/O error;
the next command must end in a state that an undisturbed run could have reached.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.system import steps
from tests.support.world import NAME, ROOT, World


class Crash(BaseException):
    """Stands for the end of the process: nothing may catch it and go on."""


def io_error(label: str) -> BaseException:
    return OSError(errno.EIO, "injected", label)


def full(label: str) -> BaseException:
    return OSError(errno.ENOSPC, "injected", label)


FAULTS: dict[str, Callable[[str], BaseException]] = {
    "crash": Crash,
    "io-error": io_error,
    "disk-full": full,
}


@contextmanager
def broken_at(number: int, fault: Callable[[str], BaseException]) -> Iterator[None]:
    """The step of that number fails once."""
    left = number

    def observer(label: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise fault(label)

    steps.observe(observer)
    try:
        yield
    finally:
        steps.observe(None)


def learn(work: Callable[[], object]) -> list[str]:
    """All labels that the work passes."""
    seen: list[str] = []
    steps.observe(seen.append)
    try:
        work()
    finally:
        steps.observe(None)
    assert len(seen) >= 3, "the work passes labelled steps"
    return seen


def attempt(world: World, work: Callable[[], object], number: int, fault: str) -> bool:
    """Run the work with the fault; True when it failed (it may survive one in its clean-up)."""
    try:
        with broken_at(number, FAULTS[fault]):
            work()
    except Crash:
        world.again()
        return True
    except (MirrordError, OSError):
        world.again()
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_update(world: World, fault: str) -> None:
    world.initialized()
    world.lab.change(world.lab.source(), 99)
    labels = learn(lambda: world.service.update(NAME))
    failed = 0
    for number, label in enumerate(labels):
        world.lab.change(world.lab.source(), number)
        old, new = world.view_content(), world.source_content()
        failed += attempt(world, lambda: world.service.update(NAME), number, fault)
        assert world.view_content() in (old, new), label
        world.service.update(NAME)
        assert world.in_step(), label
        assert world.lab.destination().stagings() == [], label
        assert world.status()["healthy"], label
    assert failed > len(labels) / 2
    assert len(world.lab.source().snapshots()) <= 3, "no snapshot is left behind"


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_initialize(world: World, fault: str) -> None:
    world.create()
    number = 0
    while attempt(world, lambda: world.service.initialize(NAME), number, fault):
        number += 1
        if world.status()["state"] == "mirrored":
            break
    if world.status()["state"] == "uninitialized":
        world.service.initialize(NAME)
    world.service.update(NAME)
    assert number >= 3
    assert world.in_step()
    assert len(world.lab.source().snapshots()) <= 2


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_break_and_resync(world: World, fault: str) -> None:
    world.initialized()
    number, failed = 0, True
    while failed:
        failed = attempt(world, lambda: world.service.break_off(NAME), number, fault)
        world.service.break_off(NAME)
        assert world.status()["state"] == "broken-off"
        world.lab.change(world.lab.destination(), number)
        losing = world.view_content()
        world.lab.change(world.lab.source(), 100 + number)
        broke = attempt(world, lambda: world.service.resync(NAME, yes=True), number, fault)
        failed = failed or broke
        world.service.resync(NAME, yes=True)
        assert world.in_step(), number
        kept = [s for s in world.lab.destination().snapshots() if s.kind.value == "diverged"]
        contents = {world.lab.snapshot_content(world.lab.destination(), s.guid) for s in kept}
        assert losing in contents, f"the losing side is kept, step {number}"
        for snapshot in kept:
            world.lab.destination().delete_snapshot(snapshot.guid)
        number += 1
    assert number >= 5


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_reverse(world: World, fault: str) -> None:
    world.initialized()
    number, failed = 0, True
    while failed:
        world.service.break_off(NAME)
        winner = world.lab.destination() if number % 2 == 0 else world.lab.source()
        if str(winner) != world.status()["destination"]:
            winner = world.lab.source() if number % 2 == 0 else world.lab.destination()
        world.lab.change(winner, number)
        winning = world.lab.content(winner)
        before = world.status()["source"]
        failed = attempt(world, lambda: world.service.reverse(NAME, yes=True), number, fault)
        if failed:
            recovered = world.service.abort(NAME, hard=False)
            assert recovered.status in ("done", "already_idle")
        if world.status()["source"] == before:
            world.service.reverse(NAME, yes=True)
        else:
            world.service.update(NAME)
        assert world.source_content() == winning == world.view_content(), number
        number += 1
    assert number >= 5


@pytest.mark.parametrize("fault", ["crash", "io-error"])
def test_restore_all(world: World, fault: str) -> None:
    world.initialized(keep_source=5)
    wanted = world.source_content()
    shown = world.lab.destination().facts().shown
    number, failed = 0, True
    while failed:
        world.lab.change(world.lab.source(), number)
        failed = attempt(
            world, lambda: world.service.restore_all(NAME, snapshot=shown, yes=True), number, fault
        )
        world.service.restore_all(NAME, snapshot=shown, yes=True)
        assert world.source_content() == wanted, number
        number += 1
    assert number >= 3
    world.lab.change(world.lab.source(), 77)
    world.service.update(NAME)
    assert world.in_step()


KILLER = """
import os, signal, sys
from mirrord.system import steps
left = int(sys.argv[1])
def observer(label):
    global left
    left -= 1
    if left == -1:
        os.kill(os.getpid(), signal.SIGKILL)
steps.observe(observer)
from mirrord.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


def test_kill_minus_nine_of_an_update_at_every_step(world: World) -> None:
    """A real process, really killed: locks, children and files are as the kernel leaves them."""
    world.initialized()
    world.service.close()
    number, killed = 0, True
    while killed:
        world.lab.change(world.lab.source(), number)
        old, new = world.view_content(), world.source_content()
        done = subprocess.run(
            [sys.executable, "-c", KILLER, str(number), "update", NAME],
            env=world.environment(), cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        killed = done.returncode == -signal.SIGKILL
        assert killed or done.returncode == 0, done.stderr
        assert world.view_content() in (old, new), number
        world.again().update(NAME)
        world.service.close()
        assert world.in_step(), number
        number += 1
    assert number >= 8
    assert orphans(world) == []


def orphans(world: World) -> list[str]:
    """Processes that still work on this world's places."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            raw = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        line = raw.replace(b"\0", b" ").decode(errors="replace")
        if "receive" in line and str(world.lab.destination().location) in line:
            found.append(line)
    return found
