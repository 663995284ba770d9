"""One byte stream of a session: writes frames, reads them in a thread, detects a dead peer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mirrord.core.errors import LinkLost, MirrordError, ProtocolError
from mirrord.system import clock
from mirrord.system.native import TlsSession, WriteGate
from mirrord.system.waiting import Waiting
from mirrord.transport.base import ByteStream
from mirrord.wire.frames import Frame, FrameReader, Type, control, header
from mirrord.wire.values import printable

#: Hint for malformed frames: TCP and encryption already exclude errors of the network.
DAMAGED_HINT = (
    "Nothing of it was applied. Run the same command again. If it fails again, install the same "
    "version of mirrord at both ends, and test the memory of both hosts."
)
_READ_BYTES = 256 << 10
#: Each end sends at least one frame in this interval, so that a dead peer can be detected.
BEAT_S = 3.0
#: A peer that sent nothing for this long is lost: detected within 15 s.
SILENCE_S = 12.0
#: Timeout for sending the GOODBYE frame.
_LEAVE_S = 0.3
#: Fewer bytes than this in that time, without a complete frame, do not count as activity.
_TRICKLE_BYTES = 1 << 10
#: Interval at which a lane checks whether a BEAT is due.
_TICK_S = 1.0

_Result = TypeVar("_Result")


class Lane:
    """A stream of frames. `start` begins to read; `deliver` gets each frame."""

    def __init__(self, stream: ByteStream, reader: FrameReader | None = None) -> None:
        self.stream = stream
        self.reader = reader or FrameReader()
        self._gate = WriteGate()
        self._closed = threading.Event()
        self._wrote_s = clock.monotonic_s()
        self._lived_s = clock.monotonic_s()
        self._trickle = self._routed = 0

    def write(
        self, kind: Type, stream: int, *body: bytes | memoryview, waiting: Waiting | None = None
    ) -> None:
        """Send a frame with a raw body in parts. `LinkLost`. waiting: for the lock."""
        self._put([header(kind, stream, *body), *body], waiting, urgent=kind is not Type.DATA)

    def tell(self, kind: Type, stream: int, value: Any, waiting: Waiting | None = None) -> None:
        """Send a frame with a value. `LinkLost`. waiting: for the lock."""
        self._put(control(kind, stream, value), waiting, urgent=True)

    def _put(self, parts: list[Any], waiting: Waiting | None, *, urgent: bool) -> None:
        (waiting or Waiting()).granted(lambda limit_s: self._gate.take(urgent, limit_s))
        try:
            try:
                self.stream.write(*parts)
            except OSError as error:
                raise lost(self.stream, str(error)) from error
            except BaseException:
                # A signal: part of a frame may be sent, so no other frame can follow.
                self.close()
                raise
            self._wrote_s = clock.monotonic_s()
        finally:
            self._gate.release()

    def use(self, work: Callable[[TlsSession, int, WriteGate], _Result]) -> _Result | None:
        """Let native code write frames: it gets the encryption, the socket and who may write. None
        when the stream does not permit that. `LinkLost` when it was closed; other errors of `work`
        are passed on.
        """
        native = self.stream.native()
        if native is None:
            return None
        try:
            with native as (tls, socket):
                return work(tls, socket, self._gate)
        except ConnectionAbortedError as error:
            raise lost(self.stream, str(error)) from error

    def take_leave(self, why: str) -> None:
        """Send the last frame, if the other end accepts it immediately."""
        if not self._gate.take(True, _LEAVE_S):
            return
        overdue = threading.Timer(_LEAVE_S, self.stream.close)
        overdue.daemon = True
        overdue.start()
        try:
            self.stream.write(*control(Type.GOODBYE, 0, why))
        except OSError:
            return
        finally:
            overdue.cancel()
            self._gate.release()

    def read(self) -> list[Frame]:
        """The next frames, at least one; `LinkLost` at the end, `ProtocolError`."""
        while True:
            try:
                count, frames = self._receive()
            except OSError as error:
                raise lost(self.stream, str(error)) from error
            if not count:
                raise lost(self.stream, "closed by the other end")
            self._trickle += count
            before, self._routed = self._routed, self.reader.routed
            if frames or self._routed > before or self._trickle >= _TRICKLE_BYTES:
                self._lived_s, self._trickle = clock.monotonic_s(), 0
            if frames:
                return frames

    def _receive(self) -> tuple[int, list[Frame]]:
        if self.reader.begun:
            return self.reader.take(self.stream.read_frames)
        data = self.stream.read(_READ_BYTES)
        return len(data), self.reader.feed(data)

    def start(
        self, deliver: Callable[[Frame], None], failed: Callable[[MirrordError], None], name: str
    ) -> None:
        """Start reading, in a thread."""

        def run() -> None:
            try:
                while True:
                    for frame in self.read():
                        deliver(frame)
            except MirrordError as error:
                if isinstance(error, ProtocolError):
                    error.where = error.where or self.stream.peer
                    error.hint = error.hint or DAMAGED_HINT
                failed(error)
            except BaseException as error:  # any error must reach the waiting callers
                failed(lost(self.stream, f"{type(error).__name__}: {error}"))

        def beat() -> None:
            try:
                while not self._closed.wait(_TICK_S):
                    if clock.monotonic_s() - self._wrote_s >= BEAT_S:
                        self.write(Type.BEAT, 0, b"")
            except MirrordError as error:
                failed(error)

        self._lived_s = clock.monotonic_s()
        threading.Thread(target=run, name=f"lane-{name}", daemon=True).start()
        # In a separate thread: it may block while the other end does not read.
        threading.Thread(target=beat, name=f"beat-{name}", daemon=True).start()

    def check_life(self) -> None:
        """Check whether the peer is alive; called every second, never blocks. `LinkLost`."""
        if self.silent_s() > SILENCE_S:
            raise lost(self.stream, f"nothing was received for {SILENCE_S:.0f} s")

    def silent_s(self) -> float:
        """Seconds since the other end was last active."""
        return clock.monotonic_s() - self._lived_s

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        self.stream.close()


def lost(stream: ByteStream, why: str) -> LinkLost:
    """The error for a broken stream, with the last line of the remote program's stderr."""
    stderr = printable(stream.stderr_tail()).strip().splitlines()
    return LinkLost(
        "the connection is lost",
        where=stream.peer,
        why=f"{why} ({stderr[-1]})" if stderr else why,
        hint="Run the same command again: it resumes where this one stopped.",
    )
