"""Clocks that jump, failing syncs, a client that changes what it writes, ends of other mirrors."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.live.lab import Client, End, Pair, Writer, stamp, wait_until
from tests.support import preload

MIB = 1 << 20
YEAR_S = 365 * 86400
#: The time of day is moved by what a file says; syncs of the image fail while another one exists.
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *to)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, to);
    FILE *file = id == CLOCK_REALTIME ? fopen(getenv("ODD_CLOCK"), "r") : 0;
    long moved = 0;
    if (file) {
        if (fscanf(file, "%ld", &moved) == 1) to->tv_sec += moved;
        fclose(file);
    }
    return result;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    char link[64], path[4096];
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    int is_image = length > 6 && !memcmp(path + length - 6, "/image", 6);
    if (!is_image || access(getenv("ODD_SYNC"), F_OK)) return real(fd);
    errno = EIO;
    return -1;
}
"""


class Odd:
    """What the world of one end is like."""

    def __init__(self, end: End, library: Path) -> None:
        self._clock, self.sync = end.folder / "clock", end.folder / "sync-fails"
        end.options += ["--io", "threads"]  # io_uring does not call the library
        end.environment = {
            "LD_PRELOAD": str(library),
            "ODD_CLOCK": str(self._clock),
            "ODD_SYNC": str(self.sync),
        }

    def move_clock(self, seconds: int) -> None:
        new = self._clock.with_name("clock.new")
        new.write_text(f"{seconds}\n")
        new.rename(self._clock)


@pytest.fixture
def odd(pair: Pair, tmp_path: Path) -> dict[str, Odd]:
    library = preload.build(_SHIM, tmp_path / "odd.so")
    return {"primary": Odd(pair.primary, library), "secondary": Odd(pair.secondary, library)}


def test_a_clock_that_jumps_changes_nothing(pair: Pair, odd: dict[str, Odd]) -> None:
    pair.hold_long()
    pair.start()
    writer = Writer(pair.primary, 1024)
    writer.start()
    for moved in (YEAR_S, -YEAR_S, 0):
        for each in odd.values():
            before = writer.answered
            each.move_clock(moved)
            time.sleep(0.5)
            wait_until(lambda: writer.answered > before + 100, "writes")  # noqa: B023

        def is_of_now() -> bool:
            status = pair.secondary.status()
            return status is not None and abs(status["since"] - time.time() - moved) < 5  # noqa: B023

        wait_until(is_of_now, "the time as the primary has it")
    pair.wait_in_sync()
    status = pair.primary.status()
    assert status is not None and status["left_sync"] == 0
    writer.finish()
    assert writer.errors == []
    pair.assert_equal()
    writer.check(pair.secondary.bytes())


def test_a_sync_that_fails_at_the_replica(pair: Pair, odd: dict[str, Odd]) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        odd["secondary"].sync.touch()
        # It is durable here, and the ends are out of sync.
        assert client.flush() == 0
        assert (pair.primary.status() or {})["left_sync"] == 1
        assert client.write(4096, stamp(1, 1)) == 0
        odd["secondary"].sync.unlink()
        pair.wait_in_sync()
    pair.assert_equal()


def test_a_sync_that_fails_at_the_primary_ends_its_service(pair: Pair, odd: dict[str, Odd]) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        odd["primary"].sync.touch()
        assert client.flush() == 5
        status = pair.primary.status() or {}
        assert status["state"] == "failed"
        assert status["reason"] == "the local disk failed: sync: Io; serving stopped"
        assert client.write(0, stamp(0, 2)) == 5
        client.send(0, 4, 0, 4096)
        assert client.answer() == (4, 5)
    assert pair.secondary.ask("break") == {"ok": True}
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def test_a_client_that_changes_memory_while_it_writes(pair: Pair) -> None:
    """Its pages are in the socket, and change there."""
    pair.start()
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, MIB)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    is_over = threading.Event()

    def scribble() -> None:
        number = 0
        while not is_over.is_set():
            number = (number + 1) % 256
            memory[:] = bytes([number]) * MIB

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, MIB)
    torn = 0
    try:
        with Client(pair.primary) as client:
            client.socket.setblocking(True)
            for number in range(2000):
                if number >= 30 and torn:
                    break
                head = struct.pack(">IHHQQI", 0x25609513, 0, 1, number, 0, MIB)
                client.socket.sendall(head)
                given = 0
                while given < MIB:
                    part = struct.pack("@PN", first + given, MIB - given)
                    taken = libc.vmsplice(writing, part, 1, 0)
                    assert taken > 0, ctypes.get_errno()
                    given += taken
                    while taken:
                        taken -= os.splice(reading, client.socket.fileno(), taken)
                assert client.answer() == (number, 0)
                with pair.primary.image.open("rb") as one, pair.secondary.image.open("rb") as two:
                    found = one.read(MIB)
                    assert found == two.read(MIB)
                torn += len(set(found)) > 1
    finally:
        is_over.set()
        scribbler.join()
        os.close(reading)
        os.close(writing)
    assert torn, "the memory did not change on its way"
    pair.assert_equal()


def _other(pair: Pair, folder: Path, volume: int, size: int) -> End:
    """A secondary that is not the pair's, in its place."""
    other = End(pair.primary.program, folder / "other", "secondary")
    with other.image.open("wb") as image:
        image.truncate(size)
    other._run("create", "--role", "secondary", "--volume", f"{volume:032x}")
    other.start()
    pair.primary.peer = other.link
    pair.primary.start()
    return other


@pytest.mark.parametrize(
    ("volume", "size", "reason"),
    [
        (
            78,
            8 * MIB,
            "the other end belongs to another mirror; give this one the address of its own replica",
        ),
        (77, 16 * MIB, "the other end's image has another size"),
    ],
)
def test_the_end_of_another_mirror(
    pair: Pair, tmp_path: Path, volume: int, size: int, reason: str
) -> None:
    other = _other(pair, tmp_path, volume, size)
    try:
        wait_until(lambda: (pair.primary.status() or {})["reason"] == reason, "the refusal")
        with Client(pair.primary) as client:
            assert client.write(0, stamp(0, 1)) == 0
            time.sleep(1)
        assert not any(other.bytes())
        status = other.status()
        assert status is not None and (status["state"], status["epoch"]) == ("empty", 1)
    finally:
        other.kill()
    pair.secondary.start()
    assert pair.primary.ask(f"peer {pair.secondary.link}") == {"ok": True}
    pair.wait_in_sync()
    pair.assert_equal()


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_an_image_that_is_missing(pair: Pair, side: str) -> None:
    end = getattr(pair, side)
    pair.start()
    pair.stop()
    kept = end.image.rename(end.folder / "kept")
    words = [end.program, "run", *end._files(), "--control", end.control, "--link", end.link]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1 and str(end.image) in refused.stderr
    assert not end.image.exists()
    kept.rename(end.image)
    pair.start()


def test_an_end_without_threads_says_so(pair: Pair, tmp_path: Path) -> None:
    """As at the limit of the tasks of a unit."""
    source = "#include <errno.h>\nint pthread_create(void) { return EAGAIN; }\n"
    library = preload.build(source, tmp_path / "none.so")
    end = pair.primary
    words = [str(end.program), "run", *end._files(), "--control", str(end.control)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, env=environment)
    assert done.returncode == 1
    said = "error[refused]: no thread for a disk: Resource temporarily unavailable"
    assert done.stderr.startswith(said)
