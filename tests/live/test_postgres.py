"""PostgreSQL on a served image, by nbdfuse(1) and a loop mount, recovered from the replica.

First of all this path has to forward FLUSH: a database's fsync must reach both ends in sync. In
semi-sync the replica has a prefix of the writes: the database recovers as from an earlier moment.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.lab import BLOCK, End, Pair, wait_until
from tests.live.test_dynamic import SlowProxy
from tests.live.test_semi_sync import _semi

SIZE = 256 << 20
#: Of semi-sync. A row that is committed writes at least a page of the database's log.
_WINDOW, _PAGE = 512 << 10, 8192
_FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin"))

pytestmark = [
    pytest.mark.skipif(not _FOUND, reason="no PostgreSQL server"),
    pytest.mark.skipif(shutil.which("nbdfuse") is None, reason="no nbdfuse"),
]


def _run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def _mounted(device: Path) -> Iterator[Path]:
    """An image's ext4, by a loop device; where the database's user can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="mirrord-pg-"))
    folder.chmod(0o755)
    loop = _run("losetup", "--find", "--show", device).strip()
    try:
        _run("mount", loop, folder)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False, timeout=60)
        subprocess.run(["losetup", "-d", loop], check=False, timeout=60)
        folder.rmdir()


@contextlib.contextmanager
def _device(pair: Pair, folder: Path) -> Iterator[Path]:
    """The served image as a file."""
    file = folder / "device"
    file.touch()
    server = subprocess.Popen(["nbdfuse", file, "--unix", pair.primary.nbd])
    try:
        wait_until(lambda: file.stat().st_size == SIZE, "the device")
        yield file
    finally:
        subprocess.run(["umount", "-l", file], check=False, timeout=60)
        server.terminate()
        server.wait(20)


class Database:
    """A cluster in a folder, reached over a unix socket in it."""

    def __init__(self, folder: Path) -> None:
        self.data, self.socket = folder / "data", folder / "socket"
        self.process = 0

    def _command(self, name: str, *words: str | Path) -> list[str]:
        tool = str(_FOUND[-1] / name)
        return ["runuser", "-u", "postgres", "--", tool, *(str(word) for word in words)]

    def create(self) -> None:
        for folder in (self.data, self.socket):
            folder.mkdir(mode=0o700)
            shutil.chown(folder, "postgres")
        _run(*self._command("initdb", "-D", self.data, "--auth=trust"))

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.socket}"
        words: list[str | Path] = [
            "-D",
            self.data,
            "-w",
            "-l",
            self.socket / "log",
            "-o",
            options,
            "start",
        ]
        subprocess.run(
            self._command("pg_ctl", *words), check=True, timeout=90, stdout=subprocess.DEVNULL
        )
        self.process = int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self) -> None:
        """At once, also when its files are gone."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGQUIT)
            wait_until(lambda: not Path(f"/proc/{self.process}").exists(), "the server's end", 60)
            self.process = 0

    def psql(self) -> list[str]:
        return self._command("psql", "-h", self.socket, "-qAt", "-v", "ON_ERROR_STOP=1", "postgres")

    def check(self) -> None:
        """Every table and index is sound (pg_amcheck)."""
        where: tuple[str | Path, ...] = ("-h", self.socket, "postgres")
        said = _run(*self._command("pg_amcheck", "--install-missing", "--heapallindexed", *where))
        assert said == "", said

    def ask(self, query: str) -> str:
        return _run(*self.psql(), "-c", query)


def _insert(database: Database, known: list[int], goes_on: threading.Event) -> None:
    """Inserts one row after the other while `goes_on`, until it fails; `known` gets what was
    committed.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(database.psql(), stderr=subprocess.DEVNULL, **pipes) as session:
        assert session.stdin and session.stdout
        for number in range(1, 1_000_000):
            goes_on.wait()
            try:
                session.stdin.write(f"insert into t values ({number}) returning n;\n")
                session.stdin.flush()
            except OSError:
                return
            line = session.stdout.readline()
            if line.strip() != str(number):
                return
            known.append(number)


@contextlib.contextmanager
def _inserting(
    device: Path, known: list[int], goes_on: threading.Event
) -> Iterator[threading.Thread]:
    """A new database on the served image, to which rows are added."""
    goes_on.set()
    with _mounted(device) as folder:
        database = Database(folder)
        database.create()
        try:
            database.start()
            database.ask("create table t (n integer primary key)")
            thread = threading.Thread(target=_insert, args=(database, known, goes_on))
            thread.start()
            yield thread
        finally:
            goes_on.set()
            database.stop()


def _recovered(image: Path) -> list[int]:
    """The rows of the database on an image, after its recovery."""
    with _mounted(image) as folder:
        database = Database(folder)
        # On this host the server that wrote them may still run.
        for lock in (database.data / "postmaster.pid", *database.socket.glob(".s.*.lock")):
            lock.unlink(missing_ok=True)
        try:
            database.start()
            database.check()
            return [int(row) for row in database.ask("select n from t order by n").split()]
        finally:
            database.stop()


@pytest.fixture
def pair(program: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(program, tmp_path, SIZE)
    _run("mkfs.ext4", "-q", pair.primary.image)
    try:
        yield pair
    finally:
        pair.stop()


def _flushes(pair: Pair) -> int:
    return int((pair.primary.status() or {})["flushes"])


def test_an_fsync_in_the_mount_is_a_flush_at_both_ends(pair: Pair, tmp_path: Path) -> None:
    pair.start()
    with _device(pair, tmp_path) as device, _mounted(device) as folder:
        for number in range(5):
            before = _flushes(pair)
            with (folder / "file").open("wb") as file:
                file.write(bytes([number + 1]) * 8192)
                file.flush()
                os.fsync(file.fileno())
            assert _flushes(pair) > before
            # The replica has what the file holds.
            assert bytes([number + 1]) * 8192 in pair.secondary.bytes()


def test_postgresql_is_recovered_from_the_replica(pair: Pair, tmp_path: Path) -> None:
    pair.start()
    known: list[int] = []
    goes_on = threading.Event()
    with _device(pair, tmp_path) as device, _inserting(device, known, goes_on) as thread:
        wait_until(lambda: len(known) > 100, "rows", 60)
        pair.wait_in_sync()
        pair.primary.kill()
        thread.join(60)
        assert not thread.is_alive()
    assert pair.secondary.ask("break") == {"ok": True}
    pair.secondary.kill()
    rows = _recovered(pair.secondary.image)
    # Every committed row is there, and at most the one that was being inserted.
    assert rows[: len(known)] == known
    assert len(rows) <= len(known) + 1


def _copied(end: End, folder: Path) -> End:
    """An end as its process leaves it when it is killed now."""
    assert end.process is not None
    copy = End(end.program, folder, "")
    end.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(0.05)  # what the kernel was told to write
        _run("cp", "-r", "--sparse=always", end.image, end.state, folder)
    finally:
        end.process.send_signal(signal.SIGCONT)
    return copy


def _lose_power(end: End, before: bytes, chance: random.Random) -> None:
    """Of what was written to the image since `before`, the disk has half of the blocks: none of it
    was synced, only the log was.
    """
    end.boot = f"{chance.getrandbits(128):032x}"
    with end.image.open("r+b") as image:
        for offset in range(0, SIZE, BLOCK):
            old = before[offset : offset + BLOCK]
            if os.pread(image.fileno(), BLOCK, offset) != old and chance.random() < 0.5:
                os.pwrite(image.fileno(), old, offset)


_NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("instants", [10, pytest.param(200, marks=_NIGHTLY)])
def test_postgresql_is_recovered_from_the_replica_of_semi_sync_at_any_instant(
    pair: Pair, tmp_path: Path, instants: int
) -> None:
    """The replica is behind, and its host loses power: its image alone is of no use."""
    chance = random.Random(instants)
    known: list[int] = []
    goes_on = threading.Event()
    proxy = SlowProxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    try:
        _semi(pair, str(_WINDOW))
        with _device(pair, tmp_path) as device, _inserting(device, known, goes_on):
            proxy.late_s = 0.03
            behind, image = 0, pair.secondary.bytes()
            for instant in range(instants):
                goes_on.set()
                before = len(known)
                wait_until(lambda: len(known) > before + 20, "rows", 60)  # noqa: B023
                time.sleep(chance.random() * 0.3)
                committed = len(known)
                copy = _copied(pair.secondary, tmp_path / f"at-{instant}")
                goes_on.clear()
                later = len(known)
                whole = copy.bytes()
                _lose_power(copy, image, chance)
                image = whole
                try:
                    copy.start()
                    assert copy.ask("break") == {"ok": True}
                finally:
                    copy.kill()
                rows = _recovered(copy.image)
                shutil.rmtree(copy.folder)
                assert rows == list(range(1, len(rows) + 1))
                assert committed - len(rows) <= _WINDOW // _PAGE, (committed, len(rows))
                assert len(rows) <= later + 1
                behind += len(rows) < committed
            assert behind > 0
    finally:
        proxy.close()
