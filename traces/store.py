"""A stored trace: Parquet with the columns of a batch and the facts in the file's metadata.

Records of a stored trace are ordered by time. A file is written under a temporary name and renamed
when it is complete and durable; only then is an existing file replaced.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mirrord.core.errors import (
    Damaged,
    IoFailed,
    MirrordError,
    NoSpace,
    NotFound,
    PermissionMissing,
    Refused,
)
from mirrord.system import clock, files, locks
from mirrord.system.explain import quota_exceeded
from mirrord.traces import batches as make
from mirrord.traces.model import NO_LATENCY, Batch, Facts

#: From this age on a scratch folder that is not locked was left by a process that was killed.
_LEFT_NS = 60 * 10**9
#: Key of the metadata that holds the facts as JSON.
METADATA_KEY = b"mirrord"
#: Version of that JSON; readers refuse newer ones.
VERSION = 1
#: Records in a row group: how many are held in memory to read or write.
GROUP_ROWS = 1 << 20
#: Records that are read at a time: few enough for their memory to be reused.
READ_ROWS = 1 << 17
#: Times are within 146 years, so that no difference of two overflows.
_TIME_MAX = 1 << 62

_SCHEMA = pa.schema(
    [
        ("time_ns", pa.int64()), ("volume", pa.uint32()), ("op", pa.uint8()),
        ("offset", pa.int64()), ("length", pa.int64()), ("latency_ns", pa.int64()),
    ]
)  # fmt: skip


def facts_from_json(text: bytes, where: str) -> tuple[Facts, dict[str, Any]]:
    """The facts and the complete document; `Damaged` when it is malformed."""
    try:
        found = json.loads(text)
        if found["version"] > VERSION:
            raise Damaged(
                f"the trace has version {found['version']} of the format, newer than {VERSION}",
                where=where,
                hint="A newer mirrord wrote it: upgrade mirrord to read it.",
            )
        epoch_ns = found["epoch_ns"]
        facts = Facts(
            name=str(found["name"]),
            source_format=str(found["source_format"]),
            volumes=tuple(str(each) for each in found["volumes"]),
            epoch_ns=None if epoch_ns is None else int(epoch_ns),
            notes={str(key): str(value) for key, value in found["notes"].items()},
        )
        found["findings"] = [
            {key: str(each[key]) for key in ("name", "text", "option")}
            for each in found.get("findings", [])
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        raise Damaged("malformed metadata of the trace", where=where, why=str(error)) from None
    return facts, found


@contextmanager
def trace_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of Arrow and of the system into errors of mirrord."""
    where = str(path)
    try:
        yield
    except FileNotFoundError:
        raise NotFound("there is no such file", where=where) from None
    except IsADirectoryError:
        raise Refused("this is a folder, not a trace", where=where) from None
    except PermissionError as error:
        raise PermissionMissing("no permission", where=where, why=str(error.strerror)) from None
    except pa.ArrowInvalid as error:
        why = str(error).splitlines()[0]
        raise Damaged(
            "the trace cannot be read",
            where=where,
            why=why,
            hint="Import it again from its source.",
        ) from None
    except OSError as error:
        if error.errno == errno.EDQUOT:
            raise quota_exceeded(where, str(error.strerror)) from None
        if error.errno == errno.ENOSPC:
            raise NoSpace(
                "the file system is full",
                where=where,
                hint="Nothing was left behind. Free some space, or write elsewhere.",
            ) from None
        why = error.strerror or str(error).splitlines()[0]
        if error.errno is None:  # an error of Arrow: a page that cannot be decompressed
            raise Damaged("the trace cannot be read", where=where, why=why) from None
        raise IoFailed("reading or writing failed", where=where, why=why) from None


def scratch_folder(where: str | Path, prefix: str) -> TemporaryDirectory[str]:
    """A new folder for scratch files. `NotFound` when its parent folder does not exist."""
    with trace_errors(where):
        if not Path(where).is_dir():
            raise NotFound(
                "there is no such folder",
                where=str(where),
                hint="Create it, or give an existing one with --scratch.",
            )
        for left in Path(where).glob(f"{prefix}*"):
            _remove_left(left)
        return _ScratchFolder(prefix=prefix, dir=where, ignore_cleanup_errors=True)


class _ScratchFolder(TemporaryDirectory[str]):
    """It is locked while it is in use: one that is not was left by a process that was killed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        held = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
        self._held = weakref.finalize(self, os.close, held)
        with suppress(OSError):  # a file system without locks
            locks.try_lock(held)

    def cleanup(self) -> None:
        """Remove it."""
        super().cleanup()
        self._held()


def _remove_left(folder: Path) -> None:
    """Remove a scratch folder that no process uses, and that is not about to be locked."""
    with suppress(OSError), files.opened(folder, os.O_DIRECTORY | os.O_NOFOLLOW) as held:
        age_ns = clock.now_ns() - os.fstat(held).st_mtime_ns
        if age_ns > _LEFT_NS and locks.try_lock(held):
            shutil.rmtree(folder)


class TraceFile:
    """A stored trace, opened to read. `NotFound` without a file, `Damaged` when it is not a trace.

    facts: as they were stored. records: how many. first_ns, last_ns: the times of the first and the
    last record, nanoseconds since the trace's zero (0 and 0 without a record). findings: those of
    the import: each a name, a text, and the option that handles it. scratch: the temporary folder
    that it is in, if any: removed by `close`, or at the end of a `with`.
    """

    def __init__(self, path: str | Path, scratch: TemporaryDirectory[str] | None = None) -> None:
        self.path, self._scratch = Path(path), scratch
        with trace_errors(path):
            metadata = pq.read_metadata(self.path)
        kept = (metadata.metadata or {}).get(METADATA_KEY)
        if kept is None or metadata.schema.to_arrow_schema().names != _SCHEMA.names:
            raise Damaged(
                "this Parquet file is not a trace of mirrord",
                where=str(path),
                hint="Import a trace with 'mirrord trace import' (formats: docs/traces.md).",
            )
        self.facts, stored = facts_from_json(kept, str(path))
        self.findings: list[dict[str, str]] = stored["findings"]
        self.records: int = metadata.num_rows
        with trace_errors(path):
            self.first_ns, self.last_ns = _span(metadata)

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def batches(
        self, columns: Sequence[str] | None = None, rows: int = READ_ROWS
    ) -> Iterator[Batch]:
        """All records, ordered by time, at most `rows` at a time; may be called repeatedly.

        columns: read only these. The others are zeros (`NO_LATENCY`), broadcast rather than
        filled for each record.
        """
        wanted = list(make.COLUMNS if columns is None else columns)
        # (Buffers read ahead are kept to the end: the complete file would be in memory.)
        with trace_errors(self.path), pq.ParquetFile(self.path, pre_buffer=False) as opened:
            for each in opened.iter_batches(batch_size=rows, columns=wanted, use_threads=False):
                yield _to_batch(each, wanted)


def _span(metadata: Any) -> tuple[int, int]:
    """From the statistics of the row groups, which are ordered by time."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    if not groups:
        return 0, 0
    first, last = groups[0].column(0).statistics, groups[-1].column(0).statistics
    if not (first and last and first.has_min_max and last.has_min_max):
        raise pa.ArrowInvalid("there are no statistics of the times")
    begin, end = int(first.min), int(last.max)
    if not -_TIME_MAX <= begin <= end <= _TIME_MAX:
        raise pa.ArrowInvalid("the times are not in order, or too far apart")
    return begin, end


def _to_batch(read: Any, wanted: Sequence[str]) -> Batch:
    count = read.num_rows
    columns = []
    for name, kind in zip(make.COLUMNS, make.TYPES, strict=True):
        if name in wanted:
            column = read.column(name).to_numpy(zero_copy_only=False)
            if column.dtype != kind:
                raise pa.ArrowInvalid(f"the column {name} is not of the type {kind.__name__}")
            columns.append(column)
        else:
            fill = NO_LATENCY if name == "latency_ns" else 0
            columns.append(np.broadcast_to(np.asarray(fill, kind), (count,)))
    return Batch(*columns)


def beside(path: Path) -> Path:
    """The temporary name under which this process writes a trace."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")


class TraceWriter:
    """Writes a trace next to `path` and renames it when it is closed; else nothing is left.

    A context manager: an exception within leaves an existing file unchanged. `facts` may be
    replaced until `close`, as volumes are often known only at the end. Batches must be ordered by
    time. `NoSpace`, `PermissionMissing`, `IoFailed` as reported by the file system.

    durable: False for scratch files, which are not needed after a power failure. group_rows:
    records in a row group, which a reader holds in memory.
    """

    def __init__(
        self,
        path: str | Path,
        facts: Facts,
        *,
        durable: bool = True,
        group_rows: int = GROUP_ROWS,
    ) -> None:
        self.path, self.facts, self.records = Path(path), facts, 0
        self._durable, self._group_rows = durable, group_rows
        self.last_ns: int | None = None
        #: Further values to store with the facts.
        self.more: dict[str, object] = {}
        #: Its temporary name.
        self.beside = beside(self.path)
        self._waiting: list[Batch] = []
        self._waiting_rows = 0
        self._writer: Any = None
        # (Opening writes the first bytes, which may fail as any others.)
        with self._cleaning():
            if self.path.is_dir():
                raise IsADirectoryError
            self._writer = pq.ParquetWriter(
                self.beside,
                _SCHEMA,
                compression="lz4",
                use_dictionary=["volume", "op", "length"],
                data_page_version="1.0",
                column_encoding={
                    "time_ns": "DELTA_BINARY_PACKED",
                    "offset": "BYTE_STREAM_SPLIT",
                    "latency_ns": "DELTA_BINARY_PACKED",
                },
                write_statistics=["time_ns", "volume"],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def write(self, batch: Batch) -> None:
        """Append records, none of them earlier than those before."""
        if not len(batch):
            return
        first = int(batch.time_ns[0])
        if (self.last_ns is not None and first < self.last_ns) or not make.in_order(batch):
            raise Refused("records of a stored trace must be ordered by time")
        self.last_ns = int(batch.time_ns[-1])
        self._waiting.append(batch)
        self._waiting_rows += len(batch)
        self.records += len(batch)
        if self._waiting_rows >= self._group_rows:
            self._flush()

    def _flush(self) -> None:
        joined = make.join(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        arrays = [pa.array(getattr(joined, name)) for name in make.COLUMNS]
        with self._cleaning():
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA), self._group_rows)

    @contextmanager
    def _cleaning(self) -> Iterator[None]:
        """On an error remove the temporary file."""
        try:
            with trace_errors(self.path):
                yield
        except MirrordError:
            self.discard()
            raise

    def close(self) -> None:
        """Make the file durable and rename it to its path."""
        if self._writer is None:
            return
        if self._waiting:
            self._flush()
        with self._cleaning():
            kept = {"version": VERSION, **asdict(self.facts), **self.more}
            self._writer.add_key_value_metadata({METADATA_KEY: json.dumps(kept).encode()})
            writer, self._writer = self._writer, None
            writer.close()
            if not self._durable:
                shutil.move(self.beside, self.path)
                return
            with files.opened(self.beside) as descriptor:
                os.fsync(descriptor)
            files.rename("TRACE:STORE:RENAME", self.beside, self.path)

    @property
    def is_open(self) -> bool:
        """Whether it was neither closed nor discarded."""
        return self._writer is not None

    def retarget(self, path: Path) -> None:
        """Change the path, for a file that turned out to be only a part of the trace."""
        self.path, self._durable = path, False

    def discard(self) -> None:
        """Remove the temporary file; an existing trace is unchanged."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError, pa.ArrowException):  # a full disk: it is removed anyway
                writer.close()
        with suppress(OSError):  # there may be no such folder
            self.beside.unlink()
