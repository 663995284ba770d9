"""Recording a live mirror: each write with its times, as its data path has them.

The primary keeps what it recorded in memory (native/live-core/src/primary/recording.rs); here it is
fetched and written to a file, of the format `mirrord-live` (docs/traces.md).
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from io import FileIO
from math import inf
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from mirrord.admin.recording import Tell, Wanted, stoppable
from mirrord.core.errors import MirrordError, Refused, UsageError
from mirrord.drivers.live import Live
from mirrord.engine.recording_journal import journal
from mirrord.live.mirror import LiveMirror
from mirrord.system import clock, files, paths
from mirrord.system.explain import explained
from mirrord.traces.store import beside, trace_errors

#: Between two fetches; bytes of the longest answer.
_EVERY_S, _PIECE = 0.1, 1 << 20
#: Bytes of a record; kinds of records that are no writes.
_RECORD, _MODE, _DROPPED, _END = 64, 16, 17, 18
_NOTES = (_MODE, _DROPPED, _END)


class Found(NamedTuple):
    """What was recorded. dropped: writes that are missing, as they came faster than they were
    fetched. modes: changes of the mode. ended: why it ended by itself, or "".
    """

    records: int = 0
    dropped: int = 0
    modes: int = 0
    ended: str = ""


def record_live(mirror: LiveMirror, wanted: Wanted, tell: Tell) -> dict[str, Any]:
    """Record the writes of a live mirror until the duration is over or `Aborted` is raised. What
    was recorded is kept, also when the recording fails on its way; the error says so.
    """
    for option, value in (("--interval", wanted.interval_s), ("--files", wanted.files)):
        if value:
            raise UsageError(
                f"{option} is for volumes", why="of a live mirror each write is recorded"
            )
    if wanted.name:
        raise UsageError("--name is not for live mirrors", hint="The file's name is the trace's.")
    if wanted.out.suffix == ".parquet":
        raise UsageError(
            "the recording of a live mirror is no stored trace",
            where=str(wanted.out),
            hint="Choose another ending, such as .live; 'mirrord trace import' makes it one.",
        )
    mirror.permit_initialized()
    state = paths.standard().state
    with explained(), ExitStack() as stack:
        kept = stack.enter_context(journal(state))
        kept.left.files.append(str(beside(wanted.out).absolute()))
        kept.save()
        end = mirror.primary()
        end.live_record(True)
        stack.callback(_end, end)
        writer = _Writer(wanted.out)
        stack.callback(writer.discard)
        recorder = _Recorder(end, writer, wanted.duration_s, tell)
        stopped = stoppable(recorder.run, writer)
    told = {"status": "done", "what": mirror.name, "file": str(wanted.out), "stopped": stopped}
    return {**told, **writer.found._asdict()}


def _end(end: Live) -> None:
    """In case that it was not ended yet."""
    with suppress(MirrordError, OSError):
        end.live_record(False)


class _Writer:
    """Writes a recording next to `path` and renames it when it is closed; else nothing is left."""

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, beside(path)
        with trace_errors(path):
            self._file: FileIO | None = FileIO(self._new, "wb")
        self._size = 0
        self.found = Found()

    @property
    def records(self) -> int:
        """So many writes."""
        return self.found.records

    @property
    def is_open(self) -> bool:
        """Whether it was neither closed nor discarded."""
        return self._file is not None

    def write(self, data: bytes) -> None:
        """Write whole records. When that fails, the file has those for which there was space."""
        assert self._file is not None
        left = memoryview(data)
        try:
            with trace_errors(self._path):
                while left:
                    left = left[self._file.write(left) :]
        except MirrordError as error:
            error.hint = "Free some space, or write elsewhere."
            written = (len(data) - len(left)) // _RECORD * _RECORD
            os.ftruncate(self._file.fileno(), self._size + written)
            self._count(data[:written])
            raise
        self._count(data)

    def _count(self, data: bytes) -> None:
        begin = 0 if self._size else _RECORD
        self._size += len(data)
        kinds = data[begin::_RECORD]
        notes = {kind: kinds.count(kind) for kind in _NOTES}
        found = self.found
        self.found = found._replace(
            records=found.records + len(kinds) - sum(notes.values()),
            modes=found.modes + notes[_MODE],
        )
        if notes[_DROPPED] or notes[_END]:
            self._count_dropped(data, begin)

    def _count_dropped(self, data: bytes, begin: int) -> None:
        """The end has the number of all that are missing. A recording that ended by itself has no
        end, but a note at each place where some are missing.
        """
        for at in range(begin, len(data), _RECORD):
            missing = int.from_bytes(data[at + 8 : at + 16], "little")
            if data[at] == _DROPPED:
                self.found = self.found._replace(dropped=self.found.dropped + missing)
            elif data[at] == _END:
                self.found = self.found._replace(dropped=missing)

    def close(self) -> None:
        """Give the file its name."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        files.rename("RECORD:LIVE", self._new, self._path)

    def discard(self) -> None:
        """Leave nothing, unless it was closed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._new.unlink(missing_ok=True)


class _Recorder:
    """Fetches a recording until it is over."""

    def __init__(self, end: Live, writer: _Writer, duration_s: float | None, tell: Tell) -> None:
        self._end, self._writer, self._tell = end, writer, tell
        self._until_s = clock.monotonic_s() + (inf if duration_s is None else duration_s)

    def run(self, stop: Event) -> None:
        """Until `stop` is set, the duration is over, or the process ends the recording."""
        try:
            while not stop.is_set() and clock.monotonic_s() < self._until_s:
                if len(self._fetch()) < _PIECE:
                    self._tell(self._writer.found._asdict())
                    stop.wait(_EVERY_S)
            self._end.live_record(False)
            while (data := self._fetch()) and data[-_RECORD] != _END:
                pass
        except Refused as error:  # its role changed, or it was started again
            why = error.why or error.what
            self._writer.found = self._writer.found._replace(ended=why)
        self._writer.close()

    def _fetch(self) -> bytes:
        data = self._end.live_recorded()
        self._writer.write(data)
        return data
