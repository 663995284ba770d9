"""Records what both ends write to their disks, and what their disks may hold after a power cut.

A library that is loaded into each process writes into one log, in the order in which it happens,
every write with its data and every fdatasync; the test's client adds its requests and the answers.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: A record: its kind, the end, the file, the number of the call, offset, length; then data.
_HEAD = struct.Struct("<4sIIIQQ")
FILES = ("image", "tracking", "side")
SECTOR = 512

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int recording = -1;
static uint32_t end;
static struct stat files[3];
static atomic_uint calls;

struct head { char kind[4]; uint32_t end, file, call; uint64_t offset, length; };

static void record(const char *kind, uint32_t file, uint32_t call, uint64_t offset,
                   uint64_t length, const void *data, size_t size)
{
    struct head head = {{0}, end, file, call, offset, length};
    memcpy(head.kind, kind, 4);
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
    if (writev(recording, parts, 2) != (ssize_t)(sizeof head + size)) abort();
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096], *next = path;
    const char *log = getenv("RECORD_LOG");
    if (!log) return;
    recording = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    end = atoi(getenv("RECORD_END"));
    strncpy(path, getenv("RECORD_FILES"), sizeof path - 1);
    for (int i = 0; i < 3; i++)
        if (stat(strsep(&next, ":"), &files[i])) abort();
}

static int found(int fd)
{
    struct stat now;
    if (recording < 0 || fstat(fd, &now)) return -1;
    for (int i = 0; i < 3; i++)
        if (now.st_ino == files[i].st_ino && now.st_dev == files[i].st_dev) return i;
    return -1;
}

#define PASS(name, type, kinds, offset, length, data, size, ...) \
    static type real = 0; \
    if (!real) real = (type)dlsym(RTLD_NEXT, name); \
    int file = found(fd); \
    if (file < 0) return real(__VA_ARGS__); \
    uint32_t call = atomic_fetch_add(&calls, 1); \
    record(kinds, file, call, offset, length, data, size); \
    __typeof__(real(__VA_ARGS__)) result = real(__VA_ARGS__); \
    record(result < 0 ? "fail" : "done", file, call, 0, 0, 0, 0); \
    return result;

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at)
{
    typedef ssize_t (*type)(int, const void *, size_t, off64_t);
    PASS("pwrite64", type, "writ", at, size, from, size, fd, from, size, at)
}

/* What may not wait is made to: an attempt that fails would have to be taken back. */
ssize_t pwritev2(int fd, const struct iovec *from, int count, off_t at, int flags)
{
    if (count != 1) abort();
    void *data = from->iov_base;
    size_t size = from->iov_len;
    typedef ssize_t (*type)(int, const void *, size_t, off64_t);
    PASS("pwrite64", type, "writ", at, size, data, size, fd, data, size, at)
}

int fdatasync(int fd)
{
    typedef int (*type)(int);
    PASS("fdatasync", type, "sync", 0, 0, 0, 0, fd)
}

int ftruncate64(int fd, off64_t size)
{
    typedef int (*type)(int, off64_t);
    PASS("ftruncate64", type, "size", 0, size, 0, 0, fd, size)
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    typedef int (*type)(int, int, off_t, off_t);
    PASS("fallocate", type, mode ? "zero" : "grow", at, size, 0, 0, fd, mode, at, size)
}
"""


class Record(NamedTuple):
    """One line of the log. position: its place. kind: of an end's call `writ`, `zero`, `grow`,
    `size`, `sync`, later `done` or `fail`; of the client see `Log.note`.
    """

    position: int
    kind: str
    end: int
    file: str
    call: int
    offset: int
    length: int
    data: bytes


class Log:
    """The log of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: str, number: int = 0, block: int = 0) -> None:
        """The client's part: a write is `issu`ed and `ackn`owledged (number, block), a flush is
        `want`ed and `flus`hed (number: the same); `both`: in sync, `part`: perhaps not.
        """
        os.write(self._fd, _HEAD.pack(kind.encode(), 9, 0, 0, number, block))

    def close(self) -> None:
        os.close(self._fd)

    def records(self) -> Iterator[Record]:
        content = memoryview(self.path.read_bytes())
        at = position = 0
        while at < len(content):
            kind, end, file, call, offset, length = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            size = length if kind == b"writ" else 0
            data = bytes(content[at : at + size])
            yield Record(position, kind.decode(), end, FILES[file], call, offset, length, data)
            at += size
            position += 1


class _Change(NamedTuple):
    """A call that is not known to be durable."""

    call: int
    kind: str
    offset: int
    length: int
    data: bytes

    def apply(self, to: bytearray, sectors: set[int] | None = None) -> None:
        """sectors: which of its sectors reached the disk; None: all."""
        if self.kind in ("grow", "size"):
            if self.kind == "size":
                del to[self.length :]
            to.extend(bytes(max(0, self.offset + self.length - len(to))))
            return
        data = self.data or bytes(self.length)
        to.extend(bytes(max(0, self.offset + self.length - len(to))))
        for at in range(self.offset, self.offset + self.length, SECTOR):
            if sectors is None or at // SECTOR in sectors:
                first = at - self.offset
                to[at : min(at + SECTOR, self.offset + self.length)] = data[first : first + SECTOR]


class Medium:
    """A file on a disk with a volatile cache."""

    def __init__(self, content: bytes) -> None:
        self.durable = bytearray(content)
        self._pending: list[_Change] = []
        self._done: set[int] = set()
        self._covered: dict[int, set[int]] = {}

    def take(self, record: Record) -> bool:
        """Follow the log; whether this was the end of a sync."""
        if record.kind == "sync":
            self._covered[record.call] = set(self._done)
        elif record.kind in ("done", "fail"):
            assert record.kind == "done", record
            if record.call in self._covered:
                self._sync(self._covered.pop(record.call))
                return True
            self._done.add(record.call)
        else:
            self._pending.append(
                _Change(record.call, record.kind, record.offset, record.length, record.data)
            )
        return False

    def _sync(self, covered: set[int]) -> None:
        for change in self._pending:
            if change.call in covered:
                change.apply(self.durable)
        self._pending = [change for change in self._pending if change.call not in covered]
        self._done -= covered

    def after_kill(self, chance: random.Random) -> bytes:
        """What the kernel has when the process was killed: what was under way may be missing."""
        found = bytearray(self.durable)
        for change in self._pending:
            if change.call in self._done or chance.random() < 0.5:
                change.apply(found)
        return bytes(found)

    def after_power_cut(self, chance: random.Random, loss: str) -> bytes:
        """What the disk has: of what was not synced `none`, `all`, or `some` sectors."""
        found = bytearray(self.durable)
        for change in self._pending if loss != "none" else ():
            sectors = range(change.offset // SECTOR, (change.offset + change.length) // SECTOR + 1)
            is_torn = loss == "some" and chance.random() < 0.3
            if is_torn:
                change.apply(found, {each for each in sectors if chance.random() < 0.5})
            elif loss == "all" or chance.random() < 0.5:
                change.apply(found)
        return bytes(found)
