"""A client's FLUSH reaches the other end's disk; by QEMU's mirror it does not.

The disk is an NBD server that logs what it is asked, the same for both.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.command import qemu_io
from tests.live.lab import Pair, wait_until
from tests.support.mounts import unmount
from tests.support.service import takes_clients

SIZE = 8 << 20
ROUNDS = 10


class Disk:
    """A disk in memory, and what was asked of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.socket, self.log = folder / f"{name}.nbd", folder / f"{name}.log"
        words = ["nbdkit", "--foreground", "--unix", str(self.socket), "--filter=log", "memory"]
        self.process = subprocess.Popen([*words, str(SIZE), f"logfile={self.log}"])
        wait_until(lambda: takes_clients(self.socket), "the disk")

    def count(self, request: str) -> int:
        return self.log.read_text().count(f" {request} id=")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    disks = [Disk(tmp_path, name) for name in ("source", "target")]
    yield disks
    for disk in disks:
        disk.close()


@contextlib.contextmanager
def _mirrored_by_qemu(folder: Path, disks: list[Disk]) -> Iterator[str]:
    """The address of an image that QEMU mirrors synchronously."""
    control, served = folder / "qmp", folder / "served"
    words = ["qemu-storage-daemon", "--chardev", f"socket,id=c,path={control},server=on,wait=off"]
    words += ["--monitor", "chardev=c", "--nbd-server", f"addr.type=unix,addr.path={served}"]
    for disk in disks:
        node = disk.socket.stem
        words += ["--blockdev", f"driver=nbd,node-name={node},server.type=unix"]
        words[-1] += f",server.path={disk.socket}"
    words += ["--export", "type=nbd,id=e,node-name=source,writable=on,name=db"]
    server = subprocess.Popen(words)
    try:
        wait_until(lambda: takes_clients(control), "QEMU")
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(30)
            connected.connect(str(control))
            with connected.makefile("rw") as monitor:
                _ask(monitor, "qmp_capabilities", {})
                job = {"job-id": "m", "device": "source", "target": "target", "sync": "full"}
                _ask(monitor, "blockdev-mirror", {**job, "copy-mode": "write-blocking"})
                wait_until(
                    lambda: _ask(monitor, "query-jobs", {})[0]["status"] == "ready", "the mirror"
                )
                yield f"nbd+unix:///db?socket={served}"
    finally:
        server.terminate()
        server.wait(20)


def _ask(monitor: Any, command: str, arguments: dict[str, str]) -> Any:
    monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    monitor.flush()
    while "return" not in (answer := json.loads(monitor.readline())):
        assert "error" not in answer, answer
    return answer["return"]


def _write_and_flush(uri: str) -> None:
    for number in range(ROUNDS):
        qemu_io(uri, f"write -P {number + 1} {number * 64}k 64k", "flush")


def test_by_qemu_s_mirror_a_flush_does_not_reach_the_target(
    tmp_path: Path, disks: list[Disk]
) -> None:
    source, target = disks
    with _mirrored_by_qemu(tmp_path, disks) as uri:
        # It flushes once, when the first copy is complete.
        before = target.count("Flush")
        _write_and_flush(uri)
        assert source.count("Write") >= ROUNDS
        assert target.count("Write") >= ROUNDS
        assert source.count("Flush") >= ROUNDS
        assert target.count("Flush") == before


def test_each_flush_reaches_the_replica_s_disk(
    pair: Pair, tmp_path: Path, disks: list[Disk]
) -> None:
    image = tmp_path / "device"
    image.touch()
    mounted = subprocess.Popen(["nbdfuse", str(image), "--unix", str(disks[1].socket)])
    try:
        wait_until(lambda: image.stat().st_size == SIZE, "the device")
        pair.secondary.image = image
        pair.start()
        before = disks[1].count("Flush")
        _write_and_flush(f"nbd+unix:///?socket={pair.primary.nbd}")
        assert disks[1].count("Flush") >= before + ROUNDS
    finally:
        pair.stop()
        unmount(image)
        mounted.wait(20)
