"""Recording a block device: the requests as the kernel's block layer gets them.

The event is `block_bio_queue`, blktrace's "Q", read from a buffer of its own in tracefs. blktrace
itself reads the same from debugfs; a kernel that is locked down (Secure Boot) forbids that, and
permits this. Nothing else on the machine that traces is disturbed: all is in an instance of ours,
and removing its folder ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mirrord.core.errors import (
    Damaged,
    IoFailed,
    MirrordError,
    NotFound,
    PermissionMissing,
    Refused,
    Unsupported,
)
from mirrord.system import clock
from mirrord.system.native import block_events
from mirrord.traces import batches
from mirrord.traces.model import NO_LATENCY, Batch

_EVENT = "events/block/block_bio_queue"
_STANDARD = Path("/sys/kernel/tracing")
_MINOR_BITS = 20
_SECTOR_BYTES = 512
#: Memory for what is not read yet: of each processor, and of all together. A MiB has room for
#: 15,000 requests.
_BUFFER_KIB, _BUFFERS_KIB = 8 << 10, 256 << 10
_LOOK_S = 0.2
#: An event is in the buffer at the latest so long after its time.
_SETTLED_NS = 50_000_000


class Device(NamedTuple):
    """What of which whole disk is recorded.

    number: the disk's, as the kernel has it. first_byte, bytes: where on the disk it is: all of
    it, or a partition.
    """

    path: str
    number: int
    first_byte: int
    bytes: int


def device(path: str | Path) -> Device:
    """The facts of a block device. `NotFound`; `Refused` when it is something else."""
    try:
        found = os.stat(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise NotFound("there is no such device", where=str(path), why=why) from None
    if not stat.S_ISBLK(found.st_mode):
        raise Refused(
            "this is not a block device",
            where=str(path),
            hint="Give a disk or partition (/dev/…), or a volume as KIND:PATH.",
        )
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    here = Path(os.path.realpath(f"/sys/dev/block/{major}:{minor}"))
    size = int((here / "size").read_text()) * _SECTOR_BYTES
    if not (here / "partition").exists():
        return Device(str(path), major << _MINOR_BITS | minor, 0, size)
    disk_major, _, disk_minor = (here.parent / "dev").read_text().strip().partition(":")
    first = int((here / "start").read_text()) * _SECTOR_BYTES
    return Device(str(path), int(disk_major) << _MINOR_BITS | int(disk_minor), first, size)


def tracing() -> Path:
    """Where tracefs is mounted, when this kernel has the events. `Unsupported` says what is
    missing, in one line; `PermissionMissing`.
    """
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(words[1]) for words in mounts if words[2] == "tracefs"]
    found.sort(key=lambda path: path != _STANDARD)
    for path in found:
        try:
            (path / _EVENT / "enable").stat()
        except PermissionError:
            raise PermissionMissing(
                "the kernel's events are not for this user",
                where=str(path),
                hint="Run it as root (or with sudo).",
            ) from None
        except FileNotFoundError:
            continue
        return path
    if found:
        raise Unsupported(
            "this kernel does not tell of requests to block devices",
            where=str(found[0]),
            why="it was built without CONFIG_BLK_DEV_IO_TRACE",
            hint="Record the volume by snapshots: give it as KIND:PATH.",
        )
    raise Unsupported(
        "the kernel's tracing cannot be reached: tracefs is not mounted",
        hint=f"As root: mount -t tracefs tracefs {_STANDARD}. Or record the volume by snapshots: "
        "give it as KIND:PATH.",
    )


@dataclass(slots=True)
class Seen:
    """What was recorded so far. began_ns: wall time of the trace's zero. lost: events for which
    the kernel's buffer had no room. The bytes are sums of lengths.
    """

    began_ns: int = 0
    records: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    trimmed_bytes: int = 0
    lost: int = 0


@dataclass(slots=True)
class KernelRecorder:
    """Records one device. instance: the folder in tracefs that is made for it (and removed). write:
    takes the records, in order of time. tell: called when it has begun, and
    a few times a second.
    """

    device: Device
    instance: Path
    write: Callable[[Batch], None]
    tell: Callable[[Seen], None]
    duration_s: float | None = None
    seen: Seen = field(default_factory=Seen)
    _zero_ns: int = 0
    _waiting: Batch = field(default_factory=batches.empty)

    def run(self, stop: threading.Event) -> None:
        """Record until the duration is over or `stop` is set."""
        with _told(self.instance), self._instance() as (pages, fields):
            self._zero_ns, self.seen.began_ns = _now_ns(), clock.now_ns()
            _set(self.instance / _EVENT / "enable", "1")
            self.tell(self.seen)
            end_ns = None
            if self.duration_s is not None:
                end_ns = self._zero_ns + round(self.duration_s * 1e9)
            while not stop.is_set():
                now_ns = _now_ns()
                if end_ns is not None and now_ns >= end_ns:
                    break
                left_s = _LOOK_S if end_ns is None else min(_LOOK_S, (end_ns - now_ns) / 1e9)
                stop.wait(left_s)
                self._look(pages, fields, _now_ns() - _SETTLED_NS)
                self.tell(self.seen)
            _set(self.instance / _EVENT / "enable", "0")
            self._look(pages, fields, None)

    @contextlib.contextmanager
    def _instance(self) -> Iterator[tuple[list[int], _Fields]]:
        """The buffers of all processors, set up to be filled; gone afterwards."""
        with contextlib.ExitStack() as undo:
            self.instance.mkdir()
            undo.callback(os.rmdir, self.instance)
            _set(self.instance / "trace_clock", "mono")
            processors = len(list((self.instance / "per_cpu").iterdir()))
            size_kib = min(_BUFFER_KIB, _BUFFERS_KIB // processors)
            _set(self.instance / "buffer_size_kb", str(size_kib))
            _set(self.instance / _EVENT / "filter", f"dev == {self.device.number}")
            fields = _fields((self.instance / _EVENT / "format").read_text())
            pages: list[int] = []
            for folder in sorted((self.instance / "per_cpu").iterdir()):
                raw = os.open(folder / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
                undo.callback(os.close, raw)
                pages.append(raw)
            yield pages, fields

    def _look(self, pages: list[int], fields: _Fields, until_ns: int | None) -> None:
        """Write what came, in the order of time over all processors, up to `until_ns`."""
        read = b"".join(page for raw in pages for page in _read_pages(raw, fields.page_bytes))
        try:
            *columns, lost = block_events(read, fields.page_bytes, fields.places)
        except ValueError as error:
            raise Damaged("the kernel's events make no sense", why=str(error)) from None
        self.seen.lost += lost
        found = batches.by_time(batches.join([self._waiting, self._batch(*columns)]))
        count = len(found)
        if until_ns is not None:
            count = int(np.searchsorted(found.time_ns, until_ns - self._zero_ns))
        self._waiting = batches.pick(found, slice(count, None))
        ready = batches.pick(found, slice(0, count))
        if count:
            self.write(ready)
        sums = np.bincount(ready.op, weights=ready.length, minlength=4)
        self.seen.records += count
        self.seen.written_bytes += int(sums[0])
        self.seen.read_bytes += int(sums[1])
        self.seen.trimmed_bytes += int(sums[2])

    def _batch(self, times: bytes, ops: bytes, offsets: bytes, lengths: bytes) -> Batch:
        """The records within the device: of a partition, those of the disk that are in it."""
        op = np.frombuffer(ops, np.uint8)
        length = np.frombuffer(lengths, np.int64)
        offset = np.frombuffer(offsets, np.int64) - np.where(length > 0, self.device.first_byte, 0)
        whole = Batch(
            np.frombuffer(times, np.int64) - self._zero_ns,
            np.zeros(len(op), np.uint32),
            op,
            offset,
            length,
            np.full(len(op), NO_LATENCY, np.int64),
        )
        return batches.pick(whole, (offset >= 0) & (offset < self.device.bytes))


class _Fields(NamedTuple):
    """Pages of the buffer, and where the fields of the event are (`block_events`)."""

    page_bytes: int
    places: tuple[int, int, int, int, int]


def _fields(text: str) -> _Fields:
    number = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    found = re.findall(r"field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);", text)
    places = {name: (int(offset), int(size)) for name, offset, size in found}
    if number is None or not {"sector", "nr_sector", "rwbs"} <= places.keys():
        raise Unsupported("this kernel describes its events in a way that is not known here")
    rwbs, letters = places["rwbs"]
    return _Fields(
        os.sysconf("SC_PAGE_SIZE"),
        (int(number[1]), places["sector"][0], places["nr_sector"][0], rwbs, letters),
    )


def _read_pages(raw: int, page_bytes: int) -> Iterator[bytes]:
    while True:
        try:
            page = os.read(raw, page_bytes)
        except BlockingIOError:
            return
        if not page:
            return
        yield page.ljust(page_bytes, b"\0")


def _now_ns() -> int:
    """By the clock of the events, "mono"."""
    return round(clock.monotonic_s() * 1e9)


def _set(path: Path, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(where: Path) -> Iterator[None]:
    """What the kernel refuses, in words of ours."""
    try:
        yield
    except MirrordError:
        raise
    except OSError as error:
        what = "the kernel's tracing does not work"
        if error.errno in (errno.EPERM, errno.EACCES):
            raise PermissionMissing(
                what, where=str(where), why=str(error), hint="Run it as root (or with sudo)."
            ) from None
        raise IoFailed(what, where=str(where), why=str(error)) from None
