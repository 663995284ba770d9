"""A disk that is gone for a moment: what was not synced is lost, and that is said once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.live.lab import BLOCK, Client, End, Pair, stamp, wait_until
from tests.support import preload

#: While the folder has a file of its name, a sync of the image or a write to the records fails.
#: The image then has what it had at its last sync; the kernel says so once. While it has `full`, a
#: write to the image fails; `late`: a sync after the record was written; `cut`: a truncation of the
#: before-images, as on a full btrfs.
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_failing(int fd, const char *name, const char *with)
{
    char link[64], path[4096], mark[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    const char *last = strrchr(path, '/');
    if (!last || strcmp(last + 1, name)) return -1;
    snprintf(mark, sizeof mark, "%s/%s", getenv("DISK_FAILS"), with);
    return !access(mark, F_OK);
}

int ftruncate64(int fd, off64_t size)
{
    static int (*real)(int, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "ftruncate64");
    if (is_failing(fd, "side", "cut") != 1) return real(fd, size);
    errno = ENOSPC;
    return -1;
}

static char is_late;

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (is_failing(fd, "tracking", "tracking") != 1 && is_failing(fd, "image", "full") != 1) {
        if (at < 8192 && is_failing(fd, "tracking", "late") == 1) is_late = 1;
        return real(fd, from, size, at);
    }
    errno = EIO;
    return -1;
}

ssize_t pwritev2(int fd, const struct iovec *from, int count, off_t at, int flags)
{
    errno = EAGAIN;
    return -1;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    static char lost;
    char path[4096];
    struct stat facts;
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    int failing = is_failing(fd, "image", "image");
    if (failing < 0) {
        if (is_late && is_failing(fd, "tracking", "late") == 1) {
            errno = EIO;
            return -1;
        }
        return real(fd);
    }
    if (!failing) lost = 0;
    if (lost || fstat(fd, &facts)) return 0;
    snprintf(path, sizeof path, "%s/durable", getenv("DISK_FAILS"));
    int disk = open(path, O_RDWR | O_CREAT, 0600);
    void *data = malloc(facts.st_size);
    int from = failing ? disk : fd, to = failing ? fd : disk;
    if (disk < 0 || ftruncate(disk, facts.st_size) || !data
        || pread(from, data, facts.st_size, 0) != facts.st_size
        || pwrite(to, data, facts.st_size, 0) != facts.st_size) abort();
    free(data);
    close(disk);
    if (!failing) return real(fd);
    lost = 1;
    errno = EIO;
    return -1;
}
"""


class _Disk:
    """Where an end has its image and its records."""

    def __init__(self, end: End, library: Path) -> None:
        self._folder = end.folder / "failing"
        self._folder.mkdir()
        end.options += ["--io", "threads"]  # io_uring does not call the library
        end.environment = {"LD_PRELOAD": str(library), "DISK_FAILS": str(self._folder)}

    def fail(self, *names: str) -> None:
        for name in names or ("tracking", "image"):
            (self._folder / name).touch()

    def repair(self) -> None:
        for name in ("tracking", "image", "full", "late"):
            (self._folder / name).unlink(missing_ok=True)


@pytest.fixture
def disks(pair: Pair, tmp_path: Path) -> dict[str, _Disk]:
    library = preload.build(_SHIM, tmp_path / "disk.so")
    ends = {"primary": pair.primary, "secondary": pair.secondary}
    return {name: _Disk(end, library) for name, end in ends.items()}


def _start(pair: Pair, mode: str = "sync") -> None:
    """In sync, with no barriers but those of clients."""
    pair.hold_long()
    pair.primary.options += ["--barrier", "60"]
    pair.start()
    assert pair.primary.ask(f"mode {mode}") == {"ok": True}


def _assert_pulled(pair: Pair, disk: _Disk) -> None:
    """The primary failed; when it is started again it has what the secondary has."""
    assert pair.primary.is_state("failed")
    disk.repair()
    time.sleep(0.5)
    pair.primary.kill()
    pair.primary.start()
    pair.wait_in_sync()
    pair.assert_equal()
    assert pair.primary.bytes()[:BLOCK] == stamp(0, 1)


def test_a_secondary_that_could_not_record_its_loss_knows_it(
    pair: Pair, disks: dict[str, _Disk]
) -> None:
    _start(pair, "strict-sync")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        disks["secondary"].fail()
        client.send(3, 2, 0, 0)
        time.sleep(1)
        disks["secondary"].repair()
        client.answer()
    pair.wait_in_sync()
    with Client(pair.primary) as client:
        assert client.flush() == 0
    pair.assert_equal()


def test_a_primary_that_could_not_record_its_loss_does_not_win(
    pair: Pair, disks: dict[str, _Disk]
) -> None:
    _start(pair)
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        disks["primary"].fail()
        assert client.flush() != 0
    _assert_pulled(pair, disks["primary"])


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_an_end_that_is_killed_before_its_loss_is_on_record(
    pair: Pair, disks: dict[str, _Disk], side: str
) -> None:
    """The other one still has it in memory."""
    _start(pair, "strict-sync")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        disks[side].fail()
        client.send(3, 2, 0, 0)
        time.sleep(1)
        end = getattr(pair, side)
        end.kill()
        disks[side].repair()
        end.start()
        pair.wait_in_sync()
    with Client(pair.primary) as client:
        assert client.flush() == 0
    pair.assert_equal()
    assert pair.primary.bytes()[:BLOCK] == stamp(0, 1)


def test_a_primary_that_may_have_lost_what_both_ends_had_does_not_leave_sync(
    pair: Pair, disks: dict[str, _Disk]
) -> None:
    _start(pair, "strict-sync")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        disks["primary"].fail("image", "full")
        assert client.write(BLOCK, stamp(1, 2)) != 0
        assert client.flush() != 0
    _assert_pulled(pair, disks["primary"])


@pytest.mark.parametrize("is_told", [False, True])
def test_what_is_lost_out_of_sync_fails_one_flush(
    pair: Pair, disks: dict[str, _Disk], is_told: bool
) -> None:
    """Also of a client that has connected again and does not know of the restart."""
    pair.primary.options += ["--hold", "0.5"]
    pair.start()
    pair.secondary.kill()
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
    with Client(pair.primary) as client:
        assert client.flush() == 0
        disks["primary"].fail("image")
        assert client.write(0, stamp(0, 1)) == 0
        client.send(3, 7, 0, 0)
    wait_until(lambda: pair.primary.is_state("failed"), "the failure")
    if is_told:
        with Client(pair.primary) as client:
            assert client.flush() != 0
    disks["primary"].repair()
    for is_first in (True, False):
        time.sleep(0.5)  # the record may not have been written yet
        pair.primary.kill()
        pair.primary.start()
        with Client(pair.primary) as client:
            assert client.write(BLOCK, stamp(1, 2)) == 0
            assert (client.flush() == 0) == (is_told or not is_first)
            assert client.flush() == 0
    assert pair.primary.bytes()[:BLOCK] == bytes(BLOCK)


def test_a_change_of_role_that_may_not_be_on_disk_can_be_asked_for_again(
    pair: Pair, disks: dict[str, _Disk]
) -> None:
    pair.start()
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: (pair.primary.status() or {}).get("role") == "fenced", "the fence")
    disks["primary"].fail("late")
    assert pair.primary.ask("rejoin")["ok"] is False
    disks["primary"].repair()
    wait_until(lambda: (pair.primary.status() or {}).get("role") == "secondary", "the new role", 20)
    wait_until(lambda: pair.secondary.is_state("in-sync"), "sync")


def test_before_images_whose_space_cannot_be_released_do_not_end_sync(
    pair: Pair, disks: dict[str, _Disk]
) -> None:
    pair.start()
    disks["secondary"].fail("cut")
    for number in (1, 2):
        assert pair.primary.ask("mode async") == {"ok": True}
        wait_until(lambda: pair.primary.is_state("out-of-sync"), "the mode")
        with Client(pair.primary) as client:
            assert client.write(0, stamp(0, number)) == 0
        assert pair.primary.ask("mode sync") == {"ok": True}
        pair.wait_in_sync()
        pair.assert_equal()
    assert (pair.primary.status() or {})["left_sync"] == 2
    assert "refused" not in (pair.primary.folder / "log").read_text()
