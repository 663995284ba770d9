"""One source, several destinations: mirrors that run together take one snapshot and read it once.

No configuration is needed. A mirror whose verb had begun when another one of the same source took
its reference snapshot uses that one; and while a stream from the same base to the same incremental
has only just started, another mirror joins it instead of reading the source again. Both happen
within one process, among the mirrors that have the same `Fanout`: those of a daemon.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from mirrord.core.errors import Aborted, MirrordError, TransferFailed, copy_of
from mirrord.core.model import Snapshot
from mirrord.drivers.contract import Driver
from mirrord.drivers.streams import SendStream
from mirrord.system import clock
from mirrord.system.native import Panic
from mirrord.system.waiting import Waiting

#: Bytes kept from the start of a stream for mirrors that join late, and the most a reader may lag.
_KEPT_BYTES = 8 << 20
#: How long the others wait for a reader that lags; then it reads the source itself.
_PATIENCE_S = 3.0


class Fanout:
    """What the mirrors of one process share: each is given the same object."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        #: By the name of the source: how many verbs are running on it, and the last snapshot.
        self._busy: dict[str, int] = {}
        self._taken: dict[str, tuple[Snapshot, float]] = {}
        self._readings: dict[tuple[str, str | None, str], _Reading] = {}

    @contextmanager
    def at_work(self, source: Driver, members: Sequence[Driver] = ()) -> Iterator[None]:
        """A verb on a mirror of this source, which has these members, runs in this block."""
        names = list(dict.fromkeys(map(str, (source, *members))))
        with self._guard:
            for name in names:
                self._busy[name] = self._busy.get(name, 0) + 1
        try:
            yield
        finally:
            with self._guard:
                for name in names:
                    self._leave(name)

    def _leave(self, name: str) -> None:
        self._busy[name] -= 1
        if not self._busy[name]:
            del self._busy[name]
            self._taken.pop(name, None)
            for key in [key for key in self._readings if key[0] == name]:
                del self._readings[key]

    def offered(self, source: Driver, since_s: float) -> Snapshot | None:
        """A reference snapshot that another mirror began to take after that moment (monotonic)."""
        with self._guard:
            found = self._taken.get(str(source))
        return found[0] if found is not None and found[1] >= since_s else None

    def offer(self, source: Driver, snapshot: Snapshot, began_s: float) -> bool:
        """A reference snapshot was taken, begun at that moment. Returns whether there are other
        mirrors that may use it.
        """
        with self._guard:
            others = self._busy.get(str(source), 0) > 1
            if others:
                self._taken[str(source)] = snapshot, began_s
        return others

    def send(self, source: Driver, base: str | None, guid: str) -> SendStream:
        """`source.send`, shared with other mirrors that send the same at the same time."""
        key = (str(source), base, guid)
        made: _Reading | None = None
        reader: _Reader | None = None
        with self._guard:
            reading = self._readings.get(key)
            if reading is not None:
                reader = reading.join(source)
            elif self._busy.get(key[0], 0) > 1:
                made = self._readings[key] = _Reading(key, source)
                reader = made.join(source)
        if made is not None:
            made.start()
        return reader or source.send(base, guid)


class _Reading:
    """One stream that is read once, in a thread, for several readers."""

    def __init__(self, key: tuple[str, str | None, str], source: Driver) -> None:
        self.key = key
        self._source = source
        self._changed = threading.Condition()
        self._readers: list[_Reader] = []
        #: Everything read so far, while that is little; then None: it is too late to join.
        self._beginning: list[bytes] | None = []
        self._bytes = 0
        self._error: MirrordError | None = None
        self._ended = False

    def join(self, source: Driver) -> _Reader | None:
        """A reader from the start of the stream; None when it is too late."""
        with self._changed:
            if self._beginning is None or self._error is not None:
                return None
            reader = _Reader(self, source, list(self._beginning))
            self._readers.append(reader)
            return reader

    def start(self) -> None:
        """Read."""
        threading.Thread(target=self._run, name="fanout", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._source.send(self.key[1], self.key[2]) as stream:
                stream.waiting = Waiting()  # it is read for others as well
                while self._pass_on(bytes(stream.read())):
                    pass
        except Aborted:
            self._leave_all()
        except MirrordError as error:
            self._fail(error)
        except (Exception, Panic) as error:  # any failure must reach the readers that wait
            self._fail(TransferFailed("the source stopped sending", why=f"{error}"))

    def _leave_all(self) -> None:
        """The mirror that opened it was aborted meanwhile: each of the others reads for itself."""
        with self._changed:
            self._beginning = None
            for reader in list(self._readers):
                self._drop(reader)

    def _fail(self, error: MirrordError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _pass_on(self, chunk: bytes) -> bool:
        """Give a chunk to all; whether any reader wants more."""
        with self._changed:
            if not chunk:
                self._ended = True
                self._changed.notify_all()
                return False
            self._bytes += len(chunk)
            if self._beginning is not None:
                self._beginning.append(chunk)
                if self._bytes > _KEPT_BYTES:
                    self._beginning = None  # too late to join
            for reader in self._readers:
                reader.ahead.append(chunk)
                reader.ahead_bytes += len(chunk)
            self._changed.notify_all()
            self._await_slowest()
            return bool(self._readers) or self._beginning is not None

    def _await_slowest(self) -> None:
        """Wait until no reader lags too far behind; one that does not catch up is dropped."""
        until_s = clock.monotonic_s() + _PATIENCE_S
        while slow := [one for one in self._readers if one.ahead_bytes > _KEPT_BYTES]:
            left_s = until_s - clock.monotonic_s()
            if left_s > 0 or len(slow) == len(self._readers):
                self._changed.wait(max(left_s, 0.1))
                continue
            for one in slow:
                self._drop(one)

    def _drop(self, reader: _Reader) -> None:
        reader.dropped = True
        reader.ahead.clear()
        self._readers.remove(reader)
        self._changed.notify_all()

    def next_for(self, reader: _Reader) -> bytes | None:
        """The next chunk; b"" at the end; None: the reader was dropped."""
        with self._changed:
            reader.waiting.until(partial(self._changed.wait_for, partial(self._is_due, reader)))
            if reader.dropped:
                return None
            if reader.ahead:
                chunk = reader.ahead.popleft()
                reader.ahead_bytes -= len(chunk)
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise copy_of(self._error)
            return b""

    def _is_due(self, reader: _Reader) -> bool:
        """Whether the reader has to wait no longer."""
        over = reader.dropped or self._ended or self._error is not None
        return over or bool(reader.ahead)

    def leave(self, reader: _Reader) -> None:
        """The reader wants no more."""
        with self._changed:
            if reader in self._readers:
                self._drop(reader)


class _Reader(SendStream):
    """One mirror's view of a shared stream."""

    def __init__(self, reading: _Reading, source: Driver, ahead: list[bytes]) -> None:
        super().__init__()
        self._reading, self._source = reading, source
        self._own: SendStream | None = None
        self._bytes = 0
        self.ahead = deque(ahead)
        self.ahead_bytes = sum(map(len, ahead))
        self.dropped = False

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        if self._own is None:
            chunk = self._reading.next_for(self)
            if chunk is not None:
                self._bytes += len(chunk)
                return chunk
            return self._catch_up()
        return self._own.read()

    def _catch_up(self) -> bytes | memoryview:
        """Send the stream again (it is deterministic), from where this reader is."""
        _, base, guid = self._reading.key
        self._own = self._source.send(base, guid)
        self._own.waiting = self.waiting
        skip = self._bytes
        while chunk := self._own.read():
            if len(chunk) > skip:
                return chunk[skip:]
            skip -= len(chunk)
        return b""

    def close(self) -> None:
        """See `SendStream.close`."""
        self._reading.leave(self)
        if self._own is not None:
            self._own.close()
