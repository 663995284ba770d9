"""The crash matrix of transfers that can be resumed: broken at every step that concerns their
checkpoints, the next command resumes, or starts over, and ends where an undisturbed run would have.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.drivers.streams import SendStream
from tests.contract.lab import is_either
from tests.crash.faults import EACH, Crash, Point, attempt, points
from tests.support.labs import open_lab
from tests.support.processes import working_on
from tests.support.world import NAME, ROOT, World

MIB = 1 << 20
#: An update is broken after so much of its 40 MiB.
_MIDDLE_BYTES = 20 * MIB


@pytest.fixture
def large(tmp_path: Path) -> Iterator[World]:
    """A mirror of a btrfs volume on this host, with room for large changes."""
    with open_lab("lab_btrfs", tmp_path, large=True) as lab:
        world = World(lab, tmp_path / "home").initialized()
        yield world
        world.close()


def after(
    size_bytes: int, act: Callable[[NativeReceiver], None], patched: pytest.MonkeyPatch
) -> None:
    """Act after so much of a stream, each time that more arrives: read, or moved between pipes."""
    left, write, take_from = [size_bytes], NativeReceiver.write, NativeReceiver.take_from

    def count(receiver: NativeReceiver, moved_bytes: int) -> None:
        left[0] -= moved_bytes
        if left[0] < 0:
            act(receiver)

    def writing(receiver: NativeReceiver, chunk: bytes | memoryview) -> None:
        write(receiver, chunk)
        count(receiver, len(chunk))

    def taking(receiver: NativeReceiver, stream: SendStream, most: int) -> int | None:
        moved = take_from(receiver, stream, most)
        count(receiver, moved or 0)
        return moved

    patched.setattr(NativeReceiver, "write", writing)
    patched.setattr(NativeReceiver, "take_from", taking)


def interrupted(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """An update that is cut off halfway; returns the bytes of its checkpoint."""
    world.lab.change_much(world.lab.source(), seed)

    def crashing(_receiver: NativeReceiver) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        after(_MIDDLE_BYTES, crashing, patched)
        world.service.update(NAME)
    world.again()
    kept_bytes = int(world.status()["checkpoint_bytes"])
    assert kept_bytes > _MIDDLE_BYTES - MIB
    return kept_bytes


def concerned(found: list[Point]) -> list[Point]:
    """Those at which a checkpoint is prepared, used or removed."""
    wanted = [one for one in found if "CHECKPOINT" in one[0] or one[0].startswith("BTRFS:RECEIVE")]
    return wanted + [one for one in found if one[0].startswith(("BTRFS:FINISH", "BTRFS:COMMIT"))]


def settled(world: World, point: Point) -> None:
    """All is as if nothing had happened."""
    assert world.in_step(), point
    world.lab.sound(world.lab.destination())
    assert world.lab.destination().stagings() == [], point
    assert world.status()["healthy"], point
    view = Path(world.lab.destination().facts().view)
    assert list((view.parent / ".mirrord" / view.name / "checkpoints").iterdir()) == [], point


def steps_of_a_large_update(world: World) -> list[Point]:
    world.lab.change_much(world.lab.source(), 99)
    found = concerned(points(lambda: world.service.update(NAME)))
    labels = {label for label, _time in found}
    assert {f"BTRFS:CHECKPOINT:{what}" for what in ("CREATE", "REMOVE")} <= labels
    return found


@pytest.mark.parametrize("fault", EACH)
def test_an_update_that_can_be_resumed(large: World, fault: str) -> None:
    failed = 0
    found = steps_of_a_large_update(large)
    for seed, point in enumerate(found):
        large.lab.change_much(large.lab.source(), seed)
        old, new = large.view_content(), large.source_content()
        failed += attempt(large, lambda: large.service.update(NAME), point, fault, sure=False)
        assert is_either(large.view_content(), old, new), point
        large.service.update(NAME)
        settled(large, point)
    assert failed > len(found) / 2


def test_an_update_that_is_resumed(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crashed in its middle, and then again at every step of going on. No step before the last
    one loses what was kept.
    """
    interrupted(large, 50, monkeypatch)
    wanted = concerned(points(lambda: large.service.update(NAME)))
    assert len(wanted) >= 8
    for seed, point in enumerate(wanted):
        kept_bytes = interrupted(large, seed, monkeypatch)
        attempt(large, lambda: large.service.update(NAME), point, "crash", sure=False)
        done = large.service.update(NAME)
        assert done.status in ("done", "unchanged")
        if point[0].startswith("BTRFS:RECEIVE"):
            assert done.data["resumed_bytes"] == kept_bytes, point
        settled(large, point)


def test_an_update_without_space_is_resumed(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one whose disk fails: at every step of going on."""
    interrupted(large, 50, monkeypatch)
    wanted = concerned(points(lambda: large.service.update(NAME)))
    for seed, point in enumerate(wanted):
        interrupted(large, seed, monkeypatch)
        fault = ("disk-full", "io-error")[seed % 2]
        attempt(large, lambda: large.service.update(NAME), point, fault, sure=False)
        large.service.update(NAME)
        settled(large, point)


KILLER = """
import os, signal, sys
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.drivers.streams import SendStream
from mirrord.system import steps
wanted, left = sys.argv[1], int(sys.argv[2])
def passed(label):
    global left
    left -= label == wanted
    if label == wanted and left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
steps.observe(passed)
write, take_from = NativeReceiver.write, NativeReceiver.take_from
def writing(receiver, chunk):
    write(receiver, chunk)
    count(len(chunk))
def taking(receiver, stream, most):
    moved = take_from(receiver, stream, most)
    count(moved or 0)
    return moved
def count(moved_bytes):
    global left
    if wanted not in ("bytes", "interrupt"):
        return
    left -= moved_bytes
    if left < 0 and wanted == "bytes":
        os.kill(os.getpid(), signal.SIGKILL)
    elif left < 0:
        os.killpg(0, signal.SIGINT)
NativeReceiver.write, NativeReceiver.take_from = writing, taking
from mirrord.cli.main import run
sys.exit(run(sys.argv[3:]))
"""


def broken(world: World, wanted: str, left: int) -> subprocess.CompletedProcess[str]:
    """An update in a process of its own, which is ended by a signal."""
    world.service.close()
    done = subprocess.run(
        [sys.executable, "-c", KILLER, wanted, str(left), "update", NAME],
        env=world.environment(), cwd=ROOT, capture_output=True, text=True, timeout=200,
        start_new_session=True,
    )  # fmt: skip
    world.again()
    return done


def killed(world: World, wanted: str, left: int) -> bool:
    """Whether kill -9 ended the update: there may be no such step."""
    done = broken(world, wanted, left)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


def test_kill_minus_nine_at_the_steps_of_a_checkpoint(large: World) -> None:
    count = 0
    for seed, (label, time) in enumerate(steps_of_a_large_update(large)):
        large.lab.change_much(large.lab.source(), seed)
        count += killed(large, label, time)
        large.service.update(NAME)
        settled(large, (label, time))
    assert count >= 8
    assert working_on("receive", str(large.lab.destination().location)) == []


def test_kill_minus_nine_in_mid_transfer_costs_next_to_nothing(large: World) -> None:
    """Of a local update, twice: the program that applies the stream outlives mirrord, and takes a
    checkpoint of all that it got.
    """
    large.lab.change_much(large.lab.source(), 1)
    least = 0
    for part_bytes in (12 * MIB, 15 * MIB):
        assert killed(large, "bytes", part_bytes)
        least += part_bytes - 256 * 1024
        assert int(large.status()["checkpoint_bytes"]) >= least
    done = large.service.update(NAME)
    assert done.data["resumed_bytes"] >= least
    settled(large, ("bytes", 0))


def test_ctrl_c_in_mid_transfer_costs_next_to_nothing(large: World) -> None:
    """It reaches all that the terminal runs: the program that applies the stream ends in order."""
    large.lab.change_much(large.lab.source(), 1)
    done = broken(large, "interrupt", 12 * MIB)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    least = 12 * MIB - 256 * 1024
    assert int(large.status()["checkpoint_bytes"]) >= least
    assert working_on("receive", str(large.lab.destination().location)) == []
    assert large.service.update(NAME).data["resumed_bytes"] >= least
    settled(large, ("interrupt", 0))


def test_a_program_that_is_killed_costs_what_came_after_the_last_checkpoint(
    large: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_bytes = interrupted(large, 1, monkeypatch)

    def killing(receiver: NativeReceiver) -> None:
        assert receiver._child is not None
        receiver._child.kill()

    with monkeypatch.context() as patched, pytest.raises(MirrordError, match="signal 9"):
        after(8 * MIB, killing, patched)
        large.service.update(NAME)
    assert large.service.update(NAME).data["resumed_bytes"] == kept_bytes
    settled(large, ("killed", 0))
