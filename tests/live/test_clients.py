"""Well-known NBD clients, garbage on the socket, and disks that are full."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.live.kinds_of_io import EACH_IO
from tests.live.lab import Client, End, Pair, ext4, small_file_system, stamp, wait_until
from tests.support import preload

#: While the file exists, no connection is accepted.
_SHORT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int accept4(int fd, struct sockaddr *from, socklen_t *length, int flags)
{
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    if (!real) real = dlsym(RTLD_NEXT, "accept4");
    if (access(getenv("SHORT"), F_OK)) return real(fd, from, length, flags);
    errno = ENFILE;
    return -1;
}
"""


def _uri(pair: Pair) -> str:
    return f"nbd+unix:///?socket={pair.primary.nbd}"


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@EACH_IO
def test_nbdinfo_and_qemu(pair: Pair) -> None:
    pair.start()
    shown = _run("nbdinfo", _uri(pair))
    for line in ("can_flush: true", "can_fua: true", "can_multi_conn: true", "can_trim: true"):
        assert line in shown
    commands = ["write -P 0xab 4096 64k", "flush", "read -P 0xab 4096 64k", "discard 8192 4096"]
    commands += ["read -P 0 8192 4096", "write -z 16384 4096", "read -P 0 16384 4096"]
    words = [word for command in [*commands, "write -P 1 -f 100k 4k"] for word in ("-c", command)]
    shown = _run("qemu-io", "-f", "raw", *words, _uri(pair))
    assert "verification failed" not in shown
    assert "hole,zero" in _run("nbdinfo", "--map", _uri(pair))
    pair.assert_equal()


@EACH_IO
def test_nbdcopy_both_ways(pair: Pair, tmp_path: Path) -> None:
    pair.start()
    data = random.Random(1).randbytes(8 << 20)
    (tmp_path / "in").write_bytes(data)
    _run("nbdcopy", str(tmp_path / "in"), _uri(pair))
    _run("nbdcopy", _uri(pair), str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data
    pair.assert_equal()


@EACH_IO
def test_fio_verifies_what_it_wrote(pair: Pair) -> None:
    pair.start()
    words = ["fio", "--name=v", "--ioengine=nbd", f"--uri={_uri(pair)}", "--rw=randwrite"]
    words += ["--bs=4k-64k", "--iodepth=16", "--size=8M", "--verify=crc32c", "--fsync=16"]
    words += ["--verify_state_save=0"]
    assert "err= 0" in _run(*words, "--loops=3", "--output=/dev/stdout")
    pair.assert_equal()


def test_garbage_closes_one_connection_only(pair: Pair) -> None:
    pair.hold_long()
    pair.start()
    chance = random.Random(3)
    with Client(pair.primary) as client:
        for _ in range(200):
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(pair.primary.nbd))
                good = b"\0\0\0\3IHAVEOPT\0\0\0\7\0\0\0\6\0\0\0\0\0\0"
                head = good[: chance.randrange(len(good) + 1)]
                other.sendall(head + chance.randbytes(chance.randrange(400)))
        assert client.write(0, stamp(0, 1)) == 0
    for port in (pair.primary.link_port, pair.secondary.link_port):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as stray:
                stray.sendall(chance.randbytes(chance.randrange(1, 300)))
    pair.wait_in_sync()
    status = pair.primary.status()
    assert status is not None and status["left_sync"] == 0
    pair.assert_equal()


def test_a_full_disk_at_the_replica_leaves_it_behind(program: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", "3m") as folder:
        pair = Pair(program, tmp_path, 16 << 20)
        pair.secondary = End(program, folder / "t", "secondary", 16 << 20)
        pair.primary.peer = f"127.0.0.1:{pair.secondary.link_port}"
        try:
            pair.start()
            with Client(pair.primary) as client:
                for block in range(1024):
                    assert client.write(block * 4096, stamp(block, 1)) == 0
            wait_until(lambda: (pair.primary.status() or {})["left_sync"] > 0, "leaving sync")
            subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
            wait_until(lambda: pair.primary.is_state("in-sync"), "sync with more space")
            pair.assert_equal()
        finally:
            pair.stop()


def test_a_full_disk_at_the_primary_fails_the_write(program: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", "3m") as folder:
        pair = Pair(program, tmp_path, 16 << 20)
        pair.primary = End(program, folder / "t", "primary", 16 << 20)
        pair.primary.peer = f"127.0.0.1:{pair.secondary.link_port}"
        try:
            pair.start()
            with Client(pair.primary) as client:
                codes = [client.write(block * 4096, stamp(block, 1)) for block in range(1024)]
            assert set(codes) == {0, 28}
            subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
            wait_until(lambda: pair.primary.is_state("in-sync"), "sync with more space")
            pair.assert_equal()
        finally:
            pair.stop()


def test_a_log_for_which_there_is_no_space_takes_none(program: Path, tmp_path: Path) -> None:
    """ext4 keeps the part of a reservation for which there was space."""
    with ext4(tmp_path / "small", "64M") as folder:
        pair = Pair(program, tmp_path)
        pair.secondary = End(program, folder / "t", "secondary", 8 << 20)
        pair.primary.peer = f"127.0.0.1:{pair.secondary.link_port}"
        try:
            pair.start()
            before = shutil.disk_usage(folder).free
            assert pair.primary.ask("mode semi-sync") == {"ok": True}

            def is_refused() -> bool:
                return "no redo log: NoSpace" in (pair.secondary.status() or {})["reason"]

            wait_until(is_refused, "the refusal")
            assert (pair.secondary.state / "redo").stat().st_size == 0
            assert shutil.disk_usage(folder).free > before - (1 << 20)
            with Client(pair.primary) as client:
                for block in range(64):
                    assert client.write(block * 4096, stamp(block, 1)) == 0
        finally:
            pair.stop()


@pytest.mark.parametrize("depth", [1, 16])
def test_a_client_that_vanishes_leaves_nothing_behind(pair: Pair, depth: int) -> None:
    pair.start()
    for _ in range(20):
        with Client(pair.primary) as client:
            for number in range(depth):
                client.send(1, number, number * 4096, stamp(number, 1))

    def is_idle() -> bool:
        status = pair.primary.status()
        return status is not None and status["outstanding_requests"] == 0

    wait_until(is_idle, "the end of its requests")
    pair.assert_equal()


def test_a_client_that_came_at_a_bad_moment_is_accepted_later(pair: Pair, tmp_path: Path) -> None:
    short = tmp_path / "short"
    library = preload.build(_SHORT, tmp_path / "short.so")
    pair.primary.environment = {"LD_PRELOAD": str(library), "SHORT": str(short)}
    pair.start()
    short.touch()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(pair.primary.nbd))
        time.sleep(0.5)
        short.unlink()
        assert client.recv(8) == b"NBDMAGIC"
