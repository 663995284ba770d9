"""Recording a block device: the requests as the kernel's block layer receives them.

The event is `block_bio_queue`, blktrace's "Q", read from a separate buffer in tracefs. blktrace
itself reads the same from debugfs; a kernel in lockdown mode (Secure Boot) forbids that, and
permits this. Other tracing on the machine is not affected: recording uses a trace instance of its
own, and removing that instance's folder ends it.
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
    NotFound,
    PermissionMissing,
    Refused,
    Unsupported,
)
from mirrord.system import clock, mounts
from mirrord.system.native import block_events
from mirrord.traces import batches
from mirrord.traces.model import NO_LATENCY, Batch

_EVENT = "events/block/block_bio_queue"
_STANDARD = Path("/sys/kernel/tracing")
_MINOR_BITS = 20
_SECTOR_BYTES = 512
#: Buffer for events not yet read: per processor, and in total. 1 MiB holds 15,000 requests.
_BUFFER_KIB, _BUFFERS_KIB = 8 << 10, 256 << 10
_POLL_S = 0.2
#: An event is in the buffer at most this long after its time.
_SETTLED_NS = 50_000_000


class Device(NamedTuple):
    """A disk, or a part of it, that is recorded.

    number: the disk's device number in the kernel. first_byte, bytes: the range on the disk: all
    of it, or a partition.
    """

    path: str
    number: int
    first_byte: int
    bytes: int


def device(path: str | Path) -> Device:
    """Describe a block device. `NotFound`; `Refused` when it is something else."""
    try:
        found = os.stat(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise NotFound("there is no such device", where=str(path), why=why) from None
    if not stat.S_ISBLK(found.st_mode):
        raise Refused(
            "this is not a block device",
            where=str(path),
            hint="Give a disk or a partition (/dev/…), or a volume as KIND:PATH.",
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
    """The mount point of tracefs, if this kernel has the events. `Unsupported` tells what is
    missing; `PermissionMissing`.
    """
    found = sorted(map(Path, mounts.of_type("tracefs")), key=lambda path: path != _STANDARD)
    for path in found:
        try:
            (path / _EVENT / "enable").stat()
        except PermissionError:
            raise PermissionMissing(
                "no permission to read the kernel's events",
                where=str(path),
                hint="Run the command as root (or with sudo).",
            ) from None
        except FileNotFoundError:
            continue
        return path
    if found:
        raise Unsupported(
            "this kernel does not trace requests to block devices",
            where=str(found[0]),
            why="it was built without CONFIG_BLK_DEV_IO_TRACE",
            hint="Record the volume by snapshots: give it as KIND:PATH.",
        )
    raise Unsupported(
        "the kernel's tracing is not available: tracefs is not mounted",
        hint=f"As root: mount -t tracefs tracefs {_STANDARD}. Or record the volume by snapshots: "
        "give it as KIND:PATH.",
    )


@dataclass(slots=True)
class Seen:
    """What has been recorded so far. began_ns: wall time of the trace's zero. lost: events dropped
    by the kernel because its buffer was full. The bytes are sums of lengths.
    """

    began_ns: int = 0
    records: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    trimmed_bytes: int = 0
    lost: int = 0


@dataclass(slots=True)
class KernelRecorder:
    """Records one device. instance: the folder in tracefs that is created for it (and removed).
    write: takes the records, ordered by time. tell: called when it has begun, and a few times per
    second.
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
        with _translated(self.instance), self._instance() as (pages, fields):
            self._zero_ns, self.seen.began_ns = _now_ns(), clock.now_ns()
            (self.instance / _EVENT / "enable").write_text("1")
            self.tell(self.seen)
            end_ns = None
            if self.duration_s is not None:
                end_ns = self._zero_ns + round(self.duration_s * 1e9)
            while not stop.is_set():
                now_ns = _now_ns()
                if end_ns is not None and now_ns >= end_ns:
                    break
                left_s = _POLL_S if end_ns is None else min(_POLL_S, (end_ns - now_ns) / 1e9)
                stop.wait(left_s)
                self._poll(pages, fields, _now_ns() - _SETTLED_NS)
                self.tell(self.seen)
            (self.instance / _EVENT / "enable").write_text("0")
            self._poll(pages, fields, None)

    @contextlib.contextmanager
    def _instance(self) -> Iterator[tuple[list[int], _Fields]]:
        """Set up the buffers of all processors; they are removed afterwards."""
        with contextlib.ExitStack() as undo:
            self.instance.mkdir()
            undo.callback(os.rmdir, self.instance)
            (self.instance / "trace_clock").write_text("mono")
            processors = len(list((self.instance / "per_cpu").iterdir()))
            size_kib = min(_BUFFER_KIB, _BUFFERS_KIB // processors)
            (self.instance / "buffer_size_kb").write_text(str(size_kib))
            (self.instance / _EVENT / "filter").write_text(f"dev == {self.device.number}")
            fields = _fields((self.instance / _EVENT / "format").read_text())
            pages: list[int] = []
            for folder in sorted((self.instance / "per_cpu").iterdir()):
                raw = os.open(folder / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
                undo.callback(os.close, raw)
                pages.append(raw)
            yield pages, fields

    def _poll(self, pages: list[int], fields: _Fields, until_ns: int | None) -> None:
        """Write the events up to `until_ns`, ordered by time over all processors."""
        read = b"".join(page for raw in pages for page in _read_pages(raw, fields.page_bytes))
        try:
            *columns, lost = block_events(read, fields.page_bytes, fields.places)
        except ValueError as error:
            raise Damaged("malformed events from the kernel", why=str(error)) from None
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
        """The records within the device: for a partition, the disk's records within it."""
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
    """The page size of the buffer, and the places of the event's fields (`block_events`)."""

    page_bytes: int
    places: tuple[int, int, int, int, int]


def _fields(text: str) -> _Fields:
    number = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    found = re.findall(r"field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);", text)
    places = {name: (int(offset), int(size)) for name, offset, size in found}
    if number is None or not {"sector", "nr_sector", "rwbs"} <= places.keys():
        raise Unsupported("this kernel describes its events in an unknown format")
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
    """The time by the clock of the events, "mono"."""
    return round(clock.monotonic_s() * 1e9)


@contextlib.contextmanager
def _translated(where: Path) -> Iterator[None]:
    """Turn errors of the kernel into errors of mirrord."""
    try:
        yield
    except OSError as error:
        what = "the kernel's tracing does not work"
        if error.errno in (errno.EPERM, errno.EACCES):
            raise PermissionMissing(
                what,
                where=str(where),
                why=str(error),
                hint="Run the command as root (or with sudo).",
            ) from None
        raise IoFailed(what, where=str(where), why=str(error)) from None
