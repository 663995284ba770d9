"""Recording block devices: each request is there, with its time, place and kind.

Where the kernel has no such events, or none that may be read, one line says what is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from mirrord.core.errors import Unsupported
from mirrord.traces import kernel
from mirrord.traces.model import Batch, Op
from mirrord.traces.store import TraceFile
from tests.recording.conftest import Record
from tests.support.btrfs import require_btrfs

pytestmark = pytest.mark.platform

SIZE_BYTES = 64 << 20


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tracefs(tmp_path: Path) -> Iterator[Path]:
    """tracefs, mounted for this test when it is nowhere; a kernel without it ends the test once it
    was told so in the one line that it should be.
    """
    require_btrfs()
    with ExitStack() as undo:
        try:
            found = kernel.tracing()
        except Unsupported as error:
            if "not mounted" not in str(error):
                pytest.skip(str(error))  # it was told in one line, which is all that can be asked
            place = tmp_path / "tracefs"
            place.mkdir()
            run("mount", "-t", "tracefs", "tracefs", place)
            undo.callback(run, "umount", place)
            found = kernel.tracing()
        before = set((found / "instances").iterdir())
        yield found
        assert set((found / "instances").iterdir()) == before, "an instance was left"


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A loop device."""
    require_btrfs()  # (root, that is)
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    device = run("losetup", "--find", "--show", "--partscan", image)
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


def write(device: str, offset: int, length: int) -> None:
    """One request, past the page cache."""
    run(
        "dd",
        "if=/dev/urandom",
        f"of={device}",
        f"bs={length}",
        "count=1",
        "oflag=direct,seek_bytes",
        f"seek={offset}",
        "iflag=fullblock",
        "conv=notrunc",
    )


def rows(batch: Batch, op: Op) -> list[tuple[int, int]]:
    chosen = batch.op == op
    return list(zip(batch.offset[chosen].tolist(), batch.length[chosen].tolist(), strict=True))


def joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Requests that follow each other as one: the kernel may cut what was asked for in one go."""
    found: list[tuple[int, int]] = []
    for offset, length in runs:
        if found and sum(found[-1]) == offset:
            found[-1] = found[-1][0], found[-1][1] + length
        else:
            found.append((offset, length))
    return found


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None and "recording" in process.stderr.readline()


@pytest.mark.usefixtures("tracefs")
def test_each_request_is_there(tmp_path: Path, loop: str, record: Record) -> None:
    out = tmp_path / "out.parquet"
    process = record(loop, "--output", out, "--name", "my disk")
    begun(process)
    write(loop, 1 << 20, 65_536)
    write(loop, 3 << 20, 4096)
    run("dd", f"if={loop}", "of=/dev/null", "bs=8192", "count=1", "iflag=direct")
    run("blkdiscard", "--offset", str(8 << 20), "--length", str(1 << 20), loop)
    write(loop, 1 << 20, 65_536)
    process.terminate()
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, ""), said
    trace = TraceFile(out)
    assert (trace.facts.name, trace.facts.volumes) == ("my disk", (loop,))
    assert trace.facts.notes["device_bytes"] == str(SIZE_BYTES) and trace.facts.epoch_ns
    [batch] = trace.batches()
    expected = [(1 << 20, 65_536), (3 << 20, 4096), (1 << 20, 65_536)]
    assert joined(rows(batch, Op.WRITE)) == expected
    assert joined(rows(batch, Op.TRIM)) == [(8 << 20, 1 << 20)]
    assert (0, 8192) in rows(batch, Op.READ)
    assert np.all(np.diff(batch.time_ns) >= 0) and 0 < trace.last_ns < 60e9


_BLKPG, _ADD, _DELETE = 0x1269, 1, 2


def partition(disk: str, op: int, number: int, start: int = 0, length: int = 0) -> None:
    """In the kernel's eyes only. (Debian 13 has no addpart.)"""
    made = ctypes.create_string_buffer(struct.pack("=qqi128x4x", start, length, number))
    words = struct.pack("@iiiP", op, 0, len(made), ctypes.addressof(made))
    with Path(disk).open("rb") as file:
        fcntl.ioctl(file, _BLKPG, words)


@pytest.mark.usefixtures("tracefs")
def test_a_partition_has_addresses_of_its_own(tmp_path: Path, loop: str, record: Record) -> None:
    for number, first in ((1, 2048), (2, 32768)):
        partition(loop, _ADD, number, first * 512, 20480 * 512)
    part = f"{loop}p2"
    assert kernel.device(part) == (part, kernel.device(loop).number, 32768 * 512, 20480 * 512)
    out = tmp_path / "out.parquet"
    process = record(part, "--output", out)
    begun(process)
    write(part, 40_960, 8192)
    write(f"{loop}p1", 0, 8192)
    process.terminate()
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "") and "8.00 KiB written" in said
    [batch] = TraceFile(out).batches()
    assert rows(batch, Op.WRITE) == [(40_960, 8192)]
    for number in (1, 2):
        partition(loop, _DELETE, number)


@pytest.mark.usefixtures("tracefs")
def test_many_requests_from_all_processors_come_in_order(
    tmp_path: Path, loop: str, record: Record
) -> None:
    out = tmp_path / "out.parquet"
    process = record(loop, "--output", out)
    begun(process)
    count = 4000
    jobs = [
        subprocess.Popen(
            [
                "taskset",
                "-c",
                str(cpu % (os.cpu_count() or 1)),
                "dd",
                "if=/dev/zero",
                f"of={loop}",
                "bs=4096",
                f"count={count}",
                f"seek={cpu * 8000}",
                "oflag=direct",
                "conv=notrunc",
            ],
            stderr=subprocess.DEVNULL,
        )
        for cpu in range(2)
    ]
    assert [job.wait() for job in jobs] == [0, 0]
    process.terminate()
    said, _errors = process.communicate(timeout=120)
    assert process.returncode == 0 and "missing" not in said
    batches = list(TraceFile(out).batches())
    offsets = [offset for batch in batches for offset, _ in rows(batch, Op.WRITE)]
    expected = {4096 * (cpu * 8000 + index) for cpu in range(2) for index in range(count)}
    assert len(offsets) == 2 * count and set(offsets) == expected
    for cpu in range(2):
        own = [offset for offset in offsets if offset // 4096 // 8000 == cpu]
        assert own == sorted(own)


def test_a_killed_recording_is_taken_away_by_the_next(
    tmp_path: Path, tracefs: Path, loop: str, record: Record, home: Path
) -> None:
    out = tmp_path / "out.parquet"
    process = record(loop, "--output", out)
    begun(process)
    process.kill()
    process.communicate()
    assert list((tracefs / "instances").glob("mirrord-*"))
    process = record(loop, "--output", out, "--duration", "1s")
    process.communicate(timeout=120)
    assert process.returncode == 0 and out.exists()
    assert not list((tracefs / "instances").glob("mirrord-*"))
    assert list((home / "state" / "recordings").iterdir()) == []


def test_what_the_kernel_lacks_is_one_line(tmp_path: Path, loop: str, record: Record) -> None:
    """In a namespace in which tracefs is mounted nowhere."""
    process = record(
        loop,
        "--output",
        tmp_path / "out",
        prefix=("unshare", "--mount", "sh", "-c", 'umount -l -a -t tracefs; exec "$@"', "sh"),
    )
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, said) == (1, "")
    assert errors.startswith("error: the kernel's tracing is not available: tracefs is not mounted")
    assert "hint: As root: mount -t tracefs tracefs /sys/kernel/tracing." in errors
    process = record(loop, "--output", tmp_path / "out", "--interval", "5s")
    _said, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "--interval is for volumes" in errors
