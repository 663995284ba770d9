"""Real processes, really ended in the middle of a transfer: nothing is lost, nobody is orphaned."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.drivers.block.volume import Volume
from tests.contract.lab_block import BlockLab
from tests.contract.lab_btrfs import BtrfsLab
from tests.support import btrfs
from tests.support.processes import working_on
from tests.support.world import NAME, ROOT, World

BIG_BYTES = 384 << 20
DEADLINE_S = 120.0
#: At that rate the big change takes a minute: whoever is to come in its middle, comes in time.
RATE = "6MiB/s"


class BigBlockLab(BlockLab):
    """A volume with room for a transfer that takes a while."""

    def big_change(self, seed: int) -> None:
        made = random.Random(seed)
        with Volume.open(self.source().location, writable=True) as volume:
            for offset in range(0, BIG_BYTES, 4 << 20):
                volume.write((64 << 20) + offset, made.randbytes(4 << 20))

    def content(self, driver: object) -> str:
        location = driver.location  # type: ignore[attr-defined]
        with Volume.open(location) as volume:
            whole = hashlib.sha256()
            for offset in range(0, volume.size_bytes, 1 << 20):
                whole.update(volume.read(offset, 1 << 20))
            return whole.hexdigest()


class BigBtrfsLab(BtrfsLab):
    """The same on btrfs."""

    def big_change(self, seed: int) -> None:
        made = random.Random(seed)
        with (self._source / f"big{seed}").open("wb") as file:
            for _ in range(BIG_BYTES >> 22):
                file.write(made.randbytes(4 << 20))


Big = BigBlockLab | BigBtrfsLab


#: What ends a transfer of a block volume is the driver's: the rest is seen on btrfs.
KINDS = [pytest.param("block", marks=pytest.mark.nightly), "btrfs"]


@pytest.fixture(params=["block", "btrfs"])
def big(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, Big]]:
    if request.param == "block":
        Volume.create(tmp_path / "source", 1 << 30).close()
        yield from running(BigBlockLab(tmp_path), tmp_path)
        return
    with btrfs.filesystem(size_mib=3072) as here, btrfs.filesystem(size_mib=3072) as there:
        yield from running(BigBtrfsLab(here, there), tmp_path)


def running(lab: Big, folder: Path) -> Iterator[tuple[World, Big]]:
    """A mirror of the lab with a big change that is not transferred yet."""
    world = World(lab, folder / "home").initialized(throttle=RATE)
    lab.big_change(1)
    world.service.close()
    yield world, lab
    world.close()
    assert working_on(str(folder), str(lab.destination().location)) == []


def start_update(world: World) -> subprocess.Popen[str]:
    """Start an update as a process, and wait until its transfer is under way."""
    process = subprocess.Popen(
        world.command("update", NAME),
        env=world.environment(),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    file = world.paths.run / f"{NAME}.progress"
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        try:
            if json.loads(file.read_text()).get("done_bytes", 0) > (24 << 20):
                return process
        except (OSError, ValueError):
            pass
        time.sleep(0.005)
    raise AssertionError("the transfer did not begin")


def finish(world: World, before: str) -> None:
    """The view is as it was, and the next update brings everything."""
    assert world.view_content() == before
    world.again().throttle(NAME, "unlimited")
    done = world.cli("update", NAME)
    assert done.returncode == 0, done.stderr
    assert world.in_step()
    assert world.lab.destination().stagings() == []


@pytest.mark.parametrize("big", KINDS, indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_mid_transfer(big: tuple[World, Big], number: signal.Signals) -> None:
    world, _lab = big
    before = world.view_content()
    process = start_update(world)
    process.send_signal(number)
    _out, errors = process.communicate(timeout=DEADLINE_S)
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert errors.startswith("error: interrupted")
        assert "Traceback" not in errors
    finish(world, before)


@pytest.mark.parametrize("big", KINDS, indirect=True)
@pytest.mark.parametrize("hard", [False, True])
def test_abort_from_another_process(big: tuple[World, Big], hard: bool) -> None:
    world, lab = big
    before = world.view_content()
    process = start_update(world)
    aborted = world.cli("abort", NAME, *(["--hard"] if hard else []))
    _out, errors = process.communicate(timeout=DEADLINE_S)
    assert aborted.returncode == 0, aborted.stderr
    assert process.returncode == 1 and "aborted" in errors
    assert world.view_content() == before
    checkpoints = [s for s in lab.destination().stagings() if s.checkpoint]
    if hard:
        assert checkpoints == []
        assert len(lab.source().snapshots()) == 1
    else:
        assert checkpoints[0].received_bytes >= 16 << 20
        assert "resumes from there" in aborted.stdout
    world.again().throttle(NAME, "unlimited")
    done = json.loads(world.cli("update", NAME, "--json").stdout)
    assert (done["resumed_bytes"] > 0) == bool(checkpoints)
    assert world.in_step()


def test_a_second_run_says_who_holds_the_mirror(big: tuple[World, Big]) -> None:
    world, _lab = big
    process = start_update(world)
    second = world.cli("update", NAME)
    assert second.returncode == 1
    assert f"process {process.pid} (update) since " in second.stderr
    status = json.loads(world.cli("status", NAME, "--json").stdout)["mirrors"][0]
    world.again().throttle(NAME, "unlimited")
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert status["activity"] in ("transferring", "committing")
    assert status["running"]["pid"] == process.pid
    assert world.in_step()


def test_break_in_mid_transfer_ends_it_first(big: tuple[World, Big]) -> None:
    world, _lab = big
    before = world.view_content()
    process = start_update(world)
    broken = world.cli("break", NAME)
    process.communicate(timeout=DEADLINE_S)
    assert broken.returncode == 0, broken.stderr
    assert world.view_content() == before
    world.again().throttle(NAME, "unlimited")
    resynced = world.cli("resync", NAME, "--yes")
    assert resynced.returncode == 0, resynced.stderr
    assert world.in_step()


@pytest.mark.parametrize("big", KINDS, indirect=True)
@pytest.mark.parametrize("verb", ["abort", "break"])
def test_a_suspended_transfer_is_ended_too(big: tuple[World, Big], verb: str) -> None:
    world, _lab = big
    process = start_update(world)
    process.send_signal(signal.SIGSTOP)
    try:
        done = world.cli(verb, NAME, timeout_s=60)
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert process.returncode == 128 + signal.SIGTERM


def test_a_killed_receiver_fails_the_transfer_cleanly(big: tuple[World, Big]) -> None:
    world, lab = big
    if lab.kind != "btrfs":
        return  # a block volume's receiver is no process of its own
    before = world.view_content()
    process = start_update(world)
    [(pid, _line)] = working_on("receive", str(lab.destination().location))
    os.kill(pid, signal.SIGKILL)
    _out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1 and errors.startswith("error:") and "Traceback" not in errors
    finish(world, before)
