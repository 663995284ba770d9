"""The crash matrix of transfers that may break off: broken at every step that keeps what comes, the
next command resumes, or starts again, and ends where an undisturbed run would have.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.drivers.btrfs import spool
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from tests.contract.lab import is_either
from tests.crash.faults import FAULTS, Crash, Point, attempt, points
from tests.support.labs import open_lab
from tests.support.processes import working_on
from tests.support.world import NAME, ROOT, World


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A mirror of a btrfs volume that is said to be on another host, over no fast link."""
    monkeypatch.setattr(BtrfsDriver, "remote", True)
    monkeypatch.setattr(spool, "FAST_BYTES_S", 1 << 60)
    with open_lab("lab_btrfs", tmp_path, large=True) as lab:
        world = World(lab, tmp_path / "home").initialized()
        yield world
        world.close()


def spooled(world: World) -> list[Point]:
    """Where the keeping of an update's stream can be broken."""
    world.lab.change_much(world.lab.source(), 99)
    found = [point for point in points(lambda: world.service.update(NAME)) if "SPOOL" in point[0]]
    assert {label.rpartition(":")[2] for label, _ in found} >= {"CREATE", "WRITE", "SYNC", "REMOVE"}
    return found


def settled(world: World, point: Point) -> None:
    """All is as if nothing had happened."""
    assert world.in_step(), point
    world.lab.sound(world.lab.destination())
    assert world.lab.destination().stagings() == [], point
    assert world.status()["healthy"], point
    view = Path(world.lab.destination().facts().view)
    assert list((view.parent / ".mirrord" / view.name / "spool").iterdir()) == [], point


@pytest.mark.parametrize("fault", FAULTS)
def test_an_update_that_is_kept(far: World, fault: str) -> None:
    failed = 0
    for seed, point in enumerate(spooled(far)):
        far.lab.change_much(far.lab.source(), seed)
        old, new = far.view_content(), far.source_content()
        failed += attempt(far, lambda: far.service.update(NAME), point, fault, sure=False)
        assert is_either(far.view_content(), old, new), point
        far.service.update(NAME)
        settled(far, point)
    # A spool that cannot be written ends itself, not the transfer.
    assert failed >= (4 if fault == "crash" else 0)


def test_an_update_that_goes_on(far: World) -> None:
    """Crashed in its middle, and then again at every step of going on."""

    def crash_in_the_middle(seed: int) -> None:
        far.lab.change_much(far.lab.source(), seed)
        assert attempt(far, lambda: far.service.update(NAME), ("BTRFS:SPOOL:SYNC", 6), "crash")
        assert far.status()["checkpoint_bytes"] > 8 << 20

    crash_in_the_middle(50)
    found = [one for one in points(lambda: far.service.update(NAME)) if "BTRFS:" in one[0]]
    wanted = [one for one in found if one[0].split(":")[1] in ("SPOOL", "RECEIVE", "FINISH")]
    assert len(wanted) >= 6
    for seed, point in enumerate(wanted):
        crash_in_the_middle(seed)
        attempt(far, lambda: far.service.update(NAME), point, "crash", sure=False)
        done = far.service.update(NAME)
        assert done.status in ("done", "unchanged")
        settled(far, point)


KILLER = """
import os, signal, sys
from mirrord.drivers.btrfs import spool
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
BtrfsDriver.remote = True
spool.FAST_BYTES_S = 1 << 60
wanted, left = sys.argv[1], int(sys.argv[2])
def observer(label):
    global left
    left -= label == wanted
    if label == wanted and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
steps.observe(observer)
from mirrord.cli.main import run
sys.exit(run(sys.argv[3:]))
"""


def test_kill_minus_nine_while_a_stream_is_kept(far: World) -> None:
    killed = 0
    for seed, (label, time) in enumerate(spooled(far)):
        far.service.close()
        far.lab.change_much(far.lab.source(), seed)
        done = subprocess.run(
            [sys.executable, "-c", KILLER, label, str(time), "update", NAME],
            env=far.environment(), cwd=ROOT, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        killed += done.returncode == -signal.SIGKILL
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        far.again().update(NAME)
        settled(far, (label, time))
    assert killed >= 4
    assert working_on("receive", str(far.lab.destination().location)) == []


def test_a_crash_of_the_thread_that_writes_is_one_of_the_process(far: World) -> None:
    far.lab.change_much(far.lab.source(), 1)

    def observer(label: str) -> None:
        if label == "BTRFS:SPOOL:WRITE":
            raise Crash(label)

    steps.observe(observer)
    with pytest.raises(Crash):
        far.service.update(NAME)
    steps.observe(None)
    far.again().update(NAME)
    assert far.in_step()
