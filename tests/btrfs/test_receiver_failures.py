"""`mirrord-receive` through the driver, where its destination fails: full, limited, read-only, on a
device that fails, without its base. Each is one clear error, nothing is committed, what is kept is
right, and the next attempt succeeds when the cause is gone.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mirrord.core.errors import (
    Diverged,
    InvariantError,
    IoFailed,
    MirrordError,
    NoSpace,
    Refused,
    TransferFailed,
)
from mirrord.core.model import ReceiveRequest, Snapshot
from mirrord.drivers.btrfs import native_receive
from mirrord.system import files
from tests.btrfs.pair import MIRROR, Pair, same, stream_of
from tests.btrfs.streams import MKDIR, PATH, boundaries, command
from tests.support import btrfs
from tests.support.service import until

MIB = 1 << 20


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def volume(pair: Pair) -> Path:
    return pair.home


def pair_to(volume: Path, mount: Path) -> Pair:
    return Pair(volume, mount / "backup", receiver="native")


class Update:
    """A base at both ends, and the stream of a newer snapshot."""

    def __init__(self, pair: Pair, change: Callable[[Path], None], *, resumable: bool) -> None:
        self.pair, self.resumable = pair, resumable
        self.staged = pair.backup / ".mirrord/current/staging/t/next/next"
        self.base: Snapshot = pair.initialize()
        self.before = btrfs.digest(pair.view)
        change(pair.home)
        self.snapshot = pair.source.take_snapshot("next")
        self.stream = stream_of(pair.source, self.base, self.snapshot)

    def receive(self, then: Callable[[int], None] | None = None, *, close: bool = False) -> None:
        """Pass the stream, or what is missing of it, on. then: called after each MiB. close: break
        off instead of finishing.
        """
        request = ReceiveRequest("t", MIRROR, self.base.guid, self.snapshot, self.resumable)
        kept = self.kept()
        with self.pair.destination.receive(request) as receiver:
            for at in range(kept, len(self.stream), MIB):
                receiver.write(self.stream[at : at + MIB])
                if then:
                    then(at)
            if not close:
                receiver.finish()

    def kept(self) -> int:
        return sum(one.received_bytes for one in self.pair.destination.stagings())

    def fails(self, kind: type[MirrordError], then: Callable[[int], None] | None = None) -> str:
        """It does, with one clear error; nothing is committed, and nothing is left half-made."""
        with pytest.raises(kind) as caught:
            self.receive(then)
        error = caught.value
        assert type(error) is kind and error.why and error.hint and "\n" not in str(error)
        self.is_as_before()
        self.hint = error.hint
        return str(error)

    def is_as_before(self) -> None:
        assert btrfs.digest(self.pair.view) == self.before
        assert os.listdir(self.pair.backup / ".mirrord" / "current" / "staging") == []
        with pytest.raises(MirrordError):
            self.pair.destination.commit("t", show=True)

    def succeeds(self) -> None:
        self.receive()
        self.pair.destination.commit("t", show=True)
        assert same(self.pair.home, self.pair.view)
        assert self.pair.destination.stagings() == []


def large(mib: int) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        (home / "large").write_bytes(random.Random(mib).randbytes(mib * MIB))

    return make


def fill(mount: Path, *, left_mib: int) -> Path:
    """A file that takes all but so much of a file system."""
    ballast = mount / "ballast"
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    run("fallocate", "-l", str(free - left_mib * MIB), ballast)
    files.sync_filesystem("TEST", mount)
    return ballast


@pytest.mark.parametrize("resumable", [False, True])
def test_no_space_for_data(volume: Path, resumable: bool) -> None:
    with btrfs.filesystem(size_mib=400) as mount:
        update = Update(pair_to(volume, mount), large(100), resumable=resumable)
        ballast = fill(mount, left_mib=40)
        update.fails(NoSpace)
        ballast.unlink()
        files.sync_filesystem("TEST", mount)
        update.succeeds()


@pytest.mark.parametrize("resumable", [False, True])
def test_no_space_for_metadata(volume: Path, resumable: bool) -> None:
    def many_attributes(home: Path) -> None:
        for number in range(9000):
            path = home / f"f{number}"
            path.touch()
            os.setxattr(path, "user.x", bytes(3800))

    with btrfs.filesystem(size_mib=256) as mount:
        update = Update(pair_to(volume, mount), many_attributes, resumable=resumable)
        ballast = fill(mount, left_mib=0)
        update.fails(NoSpace)
        ballast.unlink()
        run("btrfs", "balance", "start", "-dusage=0", mount)
        update.succeeds()


@pytest.mark.parametrize("resumable", [False, True])
def test_a_quota(volume: Path, resumable: bool) -> None:
    """That somebody sets for the staged subvolume: the next one has none."""

    def limit(at: int) -> None:
        if at == 0:
            until(update.staged.exists)
            run("btrfs", "qgroup", "limit", "5M", update.staged)

    with btrfs.filesystem(size_mib=400) as mount:
        run("btrfs", "quota", "enable", mount)
        update = Update(pair_to(volume, mount), large(60), resumable=resumable)
        error = update.fails(NoSpace, limit)
        assert "the quota is exceeded" in error and "no space" not in error
        assert f"'btrfs qgroup show -re {update.pair.backup}'" in update.hint
        update.succeeds()


@contextmanager
def thin(*, spare_mib: int) -> Iterator[tuple[Path, Path]]:
    """A mounted file system, and the tmpfs of its image, in which data soon finds no space: like a
    thin volume whose pool is full. Its metadata, and what it already has, can be written.
    """
    with TemporaryDirectory(prefix="mirrord-thin-", dir="/dev/shm") as folder, ExitStack() as undo:
        store, mount = Path(folder, "store"), Path(folder, "mount")
        store.mkdir()
        mount.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={130 + spare_mib}m", "none", store)
        undo.callback(btrfs.unmount, store)
        with (store / "image").open("wb") as image:
            image.write(bytes(130 * MIB))
            image.truncate(600 * MIB)
        btrfs.make_filesystem(store / "image", "-K")
        run("mount", "-o", "loop,nodiscard", store / "image", mount)
        undo.callback(btrfs.unmount, mount)
        yield mount, store


@pytest.mark.parametrize(
    ("receiver", "resumable"), [("native", False), ("native", True), ("btrfs-progs", False)]
)
def test_data_that_the_device_refuses_is_never_committed(
    volume: Path, receiver: str, resumable: bool
) -> None:
    """The kernel takes the data, and writes it later. When that fails it says so only once, to
    whoever asks first; snapshots are taken of the rest all the same.
    """

    def forgotten() -> bool:
        """Whether the kernel does not tell of it any more: it was told to us."""
        try:
            files.sync_filesystem("TEST", mount)
        except OSError:
            return False
        return True

    def another_asks(at: int) -> None:
        if at == 60 * MIB:
            until(forgotten)
            run("mount", "-o", "remount,size=900m", store)

    with thin(spare_mib=30) as (mount, store):
        pair = Pair(volume, mount / "backup", receiver=receiver)
        update = Update(pair, large(100), resumable=resumable)
        update.fails(NoSpace, another_asks)
        update.succeeds()


def test_a_checkpoint_has_all_data_that_it_says(volume: Path) -> None:
    with thin(spare_mib=30) as (mount, store):
        update = Update(pair_to(volume, mount), large(100), resumable=True)
        with suppress(MirrordError):
            update.receive(close=True)
        with suppress(OSError):
            files.sync_filesystem("TEST", mount)
        update.is_as_before()
        run("mount", "-o", "remount,size=900m", store)
        update.succeeds()


@contextmanager
def failing(mib: int) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A mounted file system, and what makes its device refuse all but the first MiBs."""
    descriptor = os.memfd_create("image", os.MFD_ALLOW_SEALING)
    with TemporaryDirectory(prefix="mirrord-failing-") as folder, ExitStack() as undo:
        undo.callback(os.close, descriptor)
        os.truncate(descriptor, 400 * MIB)
        image, mount = f"/proc/{os.getpid()}/fd/{descriptor}", Path(folder)
        btrfs.make_filesystem(image, "-K")
        run("mount", "-o", "loop,nodiscard", image, mount)
        undo.callback(btrfs.unmount, mount)

        def fail() -> None:
            os.truncate(descriptor, mib * MIB)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)

        yield mount, fail


@pytest.mark.parametrize("resumable", [False, True])
def test_an_io_error(volume: Path, resumable: bool) -> None:
    """In data: metadata is in the part of the device that still works."""
    with failing(120) as (mount, fail):
        update = Update(pair_to(volume, mount), large(100), resumable=resumable)
        fill(mount, left_mib=150)
        update.fails(IoFailed, lambda at: fail() if at == 20 * MIB else None)


def test_a_file_system_that_became_read_only(volume: Path) -> None:
    """As btrfs does when it cannot write its metadata. Nothing can be removed there, until it is
    writable again.
    """
    with failing(20) as (mount, fail):
        update = Update(pair_to(volume, mount), large(20), resumable=True)

        def sync(at: int) -> None:
            if at == 5 * MIB:
                fail()
                with suppress(OSError):
                    files.sync_filesystem("TEST", mount)

        with pytest.raises((Refused, IoFailed)) as caught:
            update.receive(sync)
        assert "\n" not in str(caught.value) and "dmesg" in caught.value.hint
        with pytest.raises((Refused, IoFailed)) as caught:
            update.receive()
        assert "dmesg" in caught.value.hint


def test_a_destination_that_was_remounted_read_only(volume: Path) -> None:
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(20), resumable=True)
        update.receive(close=True)
        kept = update.kept()
        assert kept == len(update.stream) - 10
        run("mount", "-o", "remount,ro", mount)
        with pytest.raises(Refused, match="read-only"):
            update.receive()
        assert btrfs.digest(update.pair.view) == update.before and update.kept() == kept
        run("mount", "-o", "remount,rw", mount)
        update.succeeds()


def test_it_is_remounted_in_the_middle(volume: Path) -> None:
    """The kernel refuses that while a file is written to; the receiver may have none open."""
    folders = b"".join(command(MKDIR, (PATH, b"d%d" % number)) for number in range(40_000))
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(1), resumable=False)
        whole, beginning = update.stream, boundaries(update.stream)[1]
        update.stream = whole[:beginning] + folders + whole[beginning:]

        def remount(at: int) -> None:
            if at == 0:
                until(update.staged.exists)
                until(lambda: is_remounted(mount))

        with pytest.raises(Refused, match="read-only"):
            update.receive(remount)
        assert btrfs.digest(update.pair.view) == update.before
        run("mount", "-o", "remount,rw", mount)
        update.stream = whole
        update.succeeds()


def is_remounted(mount: Path) -> bool:
    return subprocess.run(["mount", "-o", "remount,ro", mount], check=False).returncode == 0


@pytest.mark.parametrize("resumable", [False, True])
def test_a_base_that_was_made_writable(volume: Path, resumable: bool) -> None:
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(5), resumable=resumable)
        base = (update.pair.backup / "current").resolve()
        run("btrfs", "property", "set", "-f", "-ts", base, "ro", "false")
        assert "made writable" in update.fails(Diverged)


def test_a_base_that_becomes_writable_in_the_middle(volume: Path) -> None:
    """The staged subvolume began as a snapshot of it before that."""
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(5), resumable=True)
        base = (update.pair.backup / "current").resolve()

        def change(at: int) -> None:
            until(update.staged.exists)
            run("btrfs", "property", "set", "-f", "-ts", base, "ro", "false")
            (base / "file").write_bytes(b"changed")

        update.receive(lambda at: change(at) if at == 0 else None)
        assert same(update.pair.home, update.staged)


def test_a_bug_of_the_program_is_one_clear_error(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """native/receive/tests/panic.rs shows that a panic prints this line."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nprintf 'bug\\tout of order (x.rs:7:1)\\n' >&2\nexit 1\n")
    program.chmod(0o755)
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(5), resumable=True)
        with monkeypatch.context() as patch:
            patch.setattr(native_receive, "receive_program", lambda: str(program))
            assert "out of order" in update.fails(InvariantError)
        update.succeeds()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSYS])
def test_a_program_that_is_killed_is_one_clear_error(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho 'memory allocation failed' >&2\nkill -{number} $$\n")
    program.chmod(0o755)
    with btrfs.filesystem() as mount:
        update = Update(pair_to(volume, mount), large(5), resumable=True)
        with monkeypatch.context() as patch:
            patch.setattr(native_receive, "receive_program", lambda: str(program))
            assert f"signal {number}" in update.fails(TransferFailed)
        update.succeeds()
