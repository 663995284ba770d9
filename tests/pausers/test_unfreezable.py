"""Processes that the kernel cannot freeze: everything is resumed, and the message names them."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import PauseFailed
from tests.pausers.conftest import NAME, Group
from tests.pausers.test_guard import order, started
from tests.pausers.test_kinds import ext4
from tests.support.cgroups import Cgroup, top
from tests.support.service import until
from tests.support.stripes import FILE

_REQUEST_BYTES_MAX = 1 << 17
_DETACH = 2


@contextmanager
def stopped_fuse(mount: Path) -> Iterator[None]:
    """A FUSE file system whose program answers nothing but the first message."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        done = libc.mount(b"stopped", os.fsencode(mount), b"fuse.stopped", 0, options)
        assert done == 0, os.strerror(ctypes.get_errno())
        try:
            unique = struct.unpack_from("<Q", os.read(device, _REQUEST_BYTES_MAX), 8)[0]
            started_as = struct.pack("<IIIIHHI", 7, 31, 65536, 0, 12, 9, 65536).ljust(64, b"\0")
            os.write(device, struct.pack("<IiQ", 16 + len(started_as), 0, unique) + started_as)
            yield
        finally:
            libc.umount2(os.fsencode(mount), _DETACH)
    finally:
        os.close(device)  # what waits for it fails


def refused(app: Cgroup, folder: Path) -> PauseFailed:
    """The error of a pause."""
    guard = started(order(folder / "r", f"cgroup:{app.name}", max_s=0.4))
    with pytest.raises(PauseFailed, match="not frozen in time") as failure:
        guard.pause()
    guard.close()
    assert not app.asked() and not (folder / "r").exists()
    return failure.value


def test_a_process_that_waits_for_a_file_system_whose_program_hangs(
    app: Cgroup, tmp_path: Path
) -> None:
    with stopped_fuse(tmp_path / "mount"):
        process = app.run(["stat", tmp_path / "mount" / "file"], stderr=subprocess.DEVNULL)
        stack = Path(f"/proc/{process.pid}/wchan")
        until(lambda: "request_wait_answer" in stack.read_text())
        app.python("import time; time.sleep(100)")
        found = refused(app, tmp_path)
        assert f"process {process.pid} (stat) waits" in found.why
    process.wait(10)


def _journal_of(mount: Path) -> int:
    """The kernel thread of an ext4's journal."""
    words: list[str | Path] = ["findmnt", "-no", "SOURCE", mount]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    wanted = f"jbd2/{Path(device).name}-"
    [found] = [
        int(one.parent.name)
        for one in Path("/proc").glob("[0-9]*/comm")
        if one.exists() and one.read_text().startswith(wanted)
    ]
    return found


def test_a_kernel_thread(app: Cgroup, tmp_path: Path) -> None:
    with ext4(tmp_path) as mount:
        thread = _journal_of(mount)
        (app.folder / "cgroup.procs").write_text(str(thread))
        try:
            found = refused(app, tmp_path)
            assert f"process {thread} (jbd2/" in found.why and "is a kernel thread" in found.why
            assert "move kernel threads out of the cgroup" in found.hint
        finally:
            (top() / "cgroup.procs").write_text(str(thread))


def test_nothing_is_left_of_sets_whose_application_could_not_be_paused(
    group: Group, tmp_path: Path
) -> None:
    """Also when it is tried again and again."""
    group.create(pause=f"cgroup:{group.app.name}")
    group.settings('pause_max = "300ms"')
    group.service.initialize(NAME)
    with stopped_fuse(tmp_path / "mount"):
        process = group.app.run(["stat", tmp_path / "mount" / "x"], stderr=subprocess.DEVNULL)
        until(lambda: "wait" in Path(f"/proc/{process.pid}/wchan").read_text())
        for number in range(3):
            (group.here / "a" / FILE).write_text(str(number))
            with pytest.raises(PauseFailed, match="not frozen in time"):
                group.service.update(NAME)
            assert not group.app.asked() and not group.records()
    process.wait(10)
    assert group.service.update(NAME).status == "done"
    folders = {one.name for one in group.here.glob(".mirrord/*/snapshots/*")}
    assert folders == set(group.snapshots())
