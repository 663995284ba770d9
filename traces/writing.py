"""Writing a trace in other tools' formats, for `mirrord trace convert`."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, cast

import zstandard

from mirrord.core.errors import UsageError
from mirrord.system import files
from mirrord.traces.batches import rows
from mirrord.traces.formats.base import FILETIME_EPOCH_NS
from mirrord.traces.model import Batch, Facts, Op
from mirrord.traces.store import beside, trace_errors

_NAMES = {int(op): op.name.lower() for op in Op}
_ENDINGS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".blkparse": "blkparse",
    ".iolog": "fio3",
    ".msr": "msr",
}


@dataclass
class Written:
    """What a conversion wrote, and what the format cannot represent (by name of operation)."""

    records: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def leave(self, op: int) -> None:
        """Count a record that the format cannot represent."""
        name = _NAMES[op]
        self.left_out[name] = self.left_out.get(name, 0) + 1


def format_of(target: str | Path, wanted: str | None) -> str:
    """The format to write: the given one, else by the target's suffix. `UsageError` for neither."""
    if wanted is not None:
        if wanted not in WRITERS and wanted != "parquet":
            raise UsageError(
                f"the format '{wanted}' cannot be written",
                hint=f"Formats are: parquet, {', '.join(WRITERS)}.",
            )
        return wanted
    name = str(target).removesuffix(".zst").removesuffix(".gz")
    found = _ENDINGS.get(Path(name).suffix)
    if found is None:
        raise UsageError(
            f"the suffix of '{target}' is not that of a format",
            hint=f"Give the format: --to parquet, or {', '.join(WRITERS)}.",
        )
    return found


def check_stored(target: Path) -> Path:
    """The path of a stored trace, which is Parquet. `UsageError` when its suffix is that of a text
    or compressed format: the file would not be what its name says.
    """
    check_file(target)
    if target.suffix in (".gz", ".zst") or _ENDINGS.get(target.suffix, "parquet") != "parquet":
        better = Path(str(target).removesuffix(".zst").removesuffix(".gz")).with_suffix(".parquet")
        raise UsageError(
            f"a stored trace is Parquet, and '{target}' has the suffix of another format",
            hint=f"Name it {better}, or use 'mirrord trace convert' to write text.",
        )
    return target


def check_file(target: Path) -> None:
    """`UsageError` when the target is a device or a pipe: a file would take its place. `Refused`
    when it is a folder.
    """
    with trace_errors(target):
        if target.is_dir():
            raise IsADirectoryError
        files.check_target(target, "Write to another file.")


def check_apart(target: Path, sources: Sequence[str]) -> None:
    """`UsageError` when the target would replace a source."""
    for source in sources:
        if (
            source != "-"
            and target.exists()
            and os.path.exists(source)
            and os.path.samefile(source, target)
        ):
            raise UsageError(
                f"'{target}' is the source itself, which would be overwritten",
                hint="Write to another file.",
            )


def write_text(batches: Iterable[Batch], facts: Facts, target: str | Path, kind: str) -> Written:
    """Write all records as text of that format; `.gz` and `.zst` compress. On error no file
    remains.

    Times are truncated to the format's resolution; operations that it does not have are counted.
    """
    written = Written()
    lines = WRITERS[kind](batches, facts, written)
    with _beside(Path(target)) as out:
        buffer: list[str] = []
        for line in lines:
            buffer.append(line)
            if len(buffer) >= 1 << 15:
                out.write("".join(buffer).encode())
                buffer.clear()
        out.write("".join(buffer).encode())
    return written


@contextmanager
def _beside(target: Path) -> Iterator[IO[bytes]]:
    """A file that is written under a temporary name and renamed when it is complete."""
    new = beside(target)
    with trace_errors(target):
        if target.is_dir():
            raise IsADirectoryError
        try:
            with new.open("wb") as raw:
                with _compressing(raw, target.suffix) as out:
                    yield out
                raw.flush()
                os.fsync(raw.fileno())
            files.rename("TRACE:CONVERT:RENAME", new, target)
        finally:
            new.unlink(missing_ok=True)


@contextmanager
def _compressing(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    if suffix == ".gz":
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6) as packed:
            yield cast(IO[bytes], packed)
    elif suffix == ".zst":
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as squeezed:
            yield cast(IO[bytes], squeezed)
    else:
        yield cast(io.BufferedWriter, raw)


def _apart(names: Sequence[str], *, before_disk: bool = False) -> list[str]:
    """These names, made different where a format's alphabet made those of two volumes the same.

    before_disk: names are `HOST-DISK`, and the host is changed.
    """
    taken, found = set(names), []
    seen: set[str] = set()
    for name in names:
        number, made = 2, name
        while made in seen or (made != name and made in taken):
            host, dash, disk = name.rpartition("-") if before_disk else (name, "", "")
            made = f"{host}_{number}{dash}{disk}"
            number += 1
        seen.add(made)
        found.append(made)
    return found


def _csv(batches: Iterable[Batch], facts: Facts, written: Written) -> Iterator[str]:
    """mirrord's own CSV: all columns, exact. Times count from the trace's zero."""
    names = _apart([re.sub(r'[,"\n]', "_", name) for name in facts.volumes])
    yield "time_ns,volume,op,offset,length,latency_ns\n"
    for time, volume, op, offset, length, latency in rows(batches):
        written.records += 1
        yield f"{time},{names[volume]},{_NAMES[op]},{offset},{length},{latency}\n"


#: As blkparse prints it: a cache flush has no range.
_RWBS = {Op.WRITE: "W", Op.READ: "R", Op.TRIM: "D", Op.FLUSH: "FWS"}


def _blkparse(batches: Iterable[Batch], facts: Facts, written: Written) -> Iterator[str]:
    """Queue events, in sectors: offsets and lengths are extended to full sectors."""
    given = {name for name in facts.volumes if re.fullmatch(r"\d+,\d+", name)}
    free = (name for name in (f"8,{16 * index}" for index in count()) if name not in given)
    devices = [name if name in given else next(free) for name in facts.volumes]
    for number, (time, volume, op, offset, length, _) in enumerate(rows(batches), 1):
        seconds, nanoseconds = divmod(time, 10**9)
        first, last = offset // 512, -(-(offset + length) // 512)
        span = "" if op == Op.FLUSH else f" {first} + {last - first}"
        written.records += 1
        yield (
            f"{devices[volume]:>7} {0:>2} {number:>8} {seconds:>5}.{nanoseconds:09d} {0:>5} "
            f" Q {_RWBS[Op(op)]:>3}{span} [mirrord]\n"
        )


_FIO = {Op.WRITE: "write", Op.READ: "read", Op.TRIM: "trim"}


def _fio(batches: Iterable[Batch], facts: Facts, written: Written) -> Iterator[str]:
    """iolog v3, which fio replays (`--read_iolog`); times in microseconds."""
    names = _apart([re.sub(r"\s", "_", name) or "0" for name in facts.volumes])
    yield "fio version 3 iolog\n"
    for name in names:
        yield f"0 {name} add\n0 {name} open\n"
    last = 0
    for time, volume, op, offset, length, _ in rows(batches):
        last = time // 1000
        written.records += 1
        if op == Op.FLUSH:
            yield f"{last} {names[volume]} sync\n"
        else:
            yield f"{last} {names[volume]} {_FIO[Op(op)]} {offset} {length}\n"
    for name in names:
        yield f"{last} {name} close\n"


def _msr(batches: Iterable[Batch], facts: Facts, written: Written) -> Iterator[str]:
    """MSR Cambridge; it has neither trim nor flush. Without a date, times count from 1970."""
    hosts = []
    for name in facts.volumes:
        split = re.fullmatch(r"(.+)-(\d+)", name)
        host, disk = (split[1], split[2]) if split else (name, "0")
        hosts.append(f"{host.replace(',', '_')}-{disk}")
    names = [",".join(name.rsplit("-", 1)) for name in _apart(hosts, before_disk=True)]
    start = (facts.epoch_ns or 0) - FILETIME_EPOCH_NS
    kinds = {int(Op.WRITE): "Write", int(Op.READ): "Read"}
    for time, volume, op, offset, length, latency in rows(batches):
        if op not in kinds:
            written.leave(op)
            continue
        written.records += 1
        stamp, took = (start + time) // 100, max(0, latency) // 100
        yield f"{stamp},{names[volume]},{kinds[op]},{offset},{length},{took}\n"


WRITERS: dict[str, Callable[[Iterable[Batch], Facts, Written], Iterator[str]]] = {
    "csv": _csv,
    "blkparse": _blkparse,
    "fio3": _fio,
    "msr": _msr,
}
