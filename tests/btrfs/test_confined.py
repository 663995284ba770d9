"""Around the program that applies a stream: what it holds, what it can forge, how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, MirrordError, Unsupported
from mirrord.core.model import ReceiveRequest
from mirrord.drivers.btrfs import receive
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.system.waiting import Waiting
from tests.btrfs.pair import Pair, stream_of
from tests.support import btrfs
from tests.support.service import until


@pytest.fixture(autouse=True, params=["native", "btrfs-progs"])
def each_receiver(pair: Pair, request: pytest.FixtureRequest) -> None:
    pair.receiver = request.param


def wanted_of(pair: Pair, transfer: str = "t1") -> ReceiveRequest:
    (pair.home / "large").write_bytes(os.urandom(8 << 20))
    return ReceiveRequest(transfer, "m1", None, pair.source.take_snapshot("s1"))


def test_other_file_systems_can_be_unmounted_while_a_receive_runs(pair: Pair) -> None:
    """Its namespace held them all: neither they nor their devices were given back."""
    wanted = wanted_of(pair)
    data = stream_of(pair.source, None, wanted.snapshot)
    pair.destination.prepare("m1")
    with btrfs.filesystem(size_mib=256) as other, pair.destination.receive(wanted) as receiver:
        receiver.write(data[: len(data) // 2])
        device = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", other], check=True, capture_output=True, text=True
        ).stdout.strip()
        (other / "file").write_text("x")
        subprocess.run(["umount", other], check=True)
        # A loop device that `mount` made goes with the last use of it.
        until(lambda: not Path(f"/sys/block/{Path(device).name}/loop").exists(), what=device)
        subprocess.run(["mount", "-o", "loop", other.parent / "image", other], check=True)
        receiver.write(data[len(data) // 2 :])
        assert receiver.finish().complete


def test_what_the_program_leaves_beside_its_snapshot_counts_for_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that has taken over the program can do what that can: write into its folder."""
    wanted = wanted_of(pair)
    data = stream_of(pair.source, None, wanted.snapshot)
    pair.destination.prepare("m1")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    forged = json.dumps({
        "format": 1, "transfer_id": "t1", "base": None, "complete": True, "ctransid": 1,
        "snapshot": {"guid": wanted.snapshot.guid, "name": "s1", "kind": "reference", "order": 1,
                     "taken_at_ns": 1},
    })  # fmt: skip

    def forge(folder: Path) -> None:
        (folder / "transfer.json").write_text(forged)
        (folder / ".transfer.json.new").symlink_to(victim)

    with pytest.raises(MirrordError), pair.destination.receive(wanted) as receiver:
        assert isinstance(receiver, receive.BtrfsReceiver | NativeReceiver)
        receiver.write(data[: len(data) // 2])
        forge(receiver._wrapper)
        found = {one.transfer_id: one for one in pair.destination.stagings()}
        assert not found["t1"].complete
        with pytest.raises(MirrordError):
            BtrfsDriver(pair.destination.location).commit("t1", show=True)
        receiver.write(data[len(data) // 2 :])
        receiver.finish()
    assert pair.destination.snapshots() == []
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("where", ["write", "finish"])
def test_an_abort_ends_a_transfer_whose_program_is_stopped(pair: Pair, where: str) -> None:
    wanted = wanted_of(pair)
    data = stream_of(pair.source, None, wanted.snapshot)
    pair.destination.prepare("m1")
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise Aborted("somebody wishes it")

    timer = threading.Timer(1.0, ended.set)
    with (
        pytest.raises(Aborted),
        pair.destination.receive(wanted) as receiver,
    ):
        receiver.waiting = Waiting(check)
        assert (
            isinstance(receiver, receive.BtrfsReceiver | NativeReceiver)
            and receiver._child is not None
        )
        if where == "finish":
            receiver.write(data[:-1])  # with the last byte it would end, perhaps at once
            pipe = receiver._writing  # a full one would not even take that byte
            until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4))
        os.kill(receiver._child.pid, signal.SIGSTOP)  # as with a disk that hangs
        if where == "finish":
            receiver.write(data[-1:])
        timer.start()
        began_s = time.monotonic()
        receiver.write(data) if where == "write" else receiver.finish()
    assert time.monotonic() - began_s < 20  # and not as long as the program is stopped


def test_a_kernel_that_cannot_share_data_between_mounts_is_named() -> None:
    """Before Linux 5.18; as 'btrfs receive' says it."""
    why = "failed to clone extents to copy: Invalid cross-device link"
    error = receive.explain(why, "btrfs:/backup", None)
    assert isinstance(error, Unsupported) and "Linux 5.18" in error.why
