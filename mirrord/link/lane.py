"""One byte stream of a session: writes whole frames, reads in a thread, knows whether it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mirrord.core.errors import LinkLost, MirrordError, ProtocolError
from mirrord.system import clock
from mirrord.system.waiting import Waiting
from mirrord.transport.base import ByteStream
from mirrord.wire.frames import Frame, FrameReader, Type, control, header
from mirrord.wire.values import printable

#: What to do when frames make no sense: TCP and encryption let no error of the network through.
DAMAGED_HINT = (
    "Nothing of it was applied. Run the same command again; if it comes again, install the same "
    "version of mirrord at both ends, and test the memory of both."
)
_READ_BYTES = 256 << 10
#: Each end says something at least so often, so that silence means something.
BEAT_S = 3.0
#: A peer that said nothing for so long is lost: noticed within 15 s.
SILENCE_S = 12.0
#: How long a lane waits for whom it says goodbye to.
_LEAVE_S = 0.3
#: So few bytes in that time, and no whole frame, are no sign of life either.
_TRICKLE_BYTES = 1 << 10
#: How often a lane looks whether it is time to say something.
_TICK_S = 1.0


class _Turns:
    """Who may write next: what is small and waited for goes before bulk data."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0

    def take(self, waiting: Waiting, *, urgent: bool) -> None:
        """Wait for a turn."""
        with self._changed:
            self._urgent += urgent
            try:
                waiting.until(
                    lambda left_s: self._changed.wait_for(
                        lambda: not self._taken and (urgent or not self._urgent), left_s
                    )
                )
                self._taken = True
            finally:
                self._urgent -= urgent

    def offered(self, within_s: float) -> bool:
        """As `take`, if it comes in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._taken, within_s):
                return False
            self._taken = True
            return True

    def leave(self) -> None:
        """The next one, please."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()


class Lane:
    """A stream with frames on it. `start` begins to read; `deliver` gets each frame."""

    def __init__(self, stream: ByteStream, reader: FrameReader | None = None) -> None:
        self.stream = stream
        self.reader = reader or FrameReader()
        self._turns = _Turns()
        self._closed = threading.Event()
        self._wrote_s = clock.monotonic_s()
        self._lived_s = clock.monotonic_s()
        self._trickle = 0

    def write(
        self, kind: Type, stream: int, *body: bytes | memoryview, waiting: Waiting | None = None
    ) -> None:
        """A frame with a raw body of one or two parts. `LinkLost`. waiting: for its turn."""
        whole = body[0] if len(body) == 1 else b"".join(body)
        self._put([header(kind, stream, whole), whole], waiting, urgent=kind is not Type.DATA)

    def tell(self, kind: Type, stream: int, value: Any, waiting: Waiting | None = None) -> None:
        """A frame with a value. `LinkLost`. waiting: for its turn."""
        self._put(control(kind, stream, value), waiting, urgent=True)

    def _put(self, parts: list[Any], waiting: Waiting | None, *, urgent: bool) -> None:
        self._turns.take(waiting or Waiting(), urgent=urgent)
        try:
            try:
                self.stream.write(*parts)
            except OSError as error:
                raise lost(self.stream, str(error)) from error
            except BaseException:
                # A signal: perhaps half a frame is out, and nothing can come behind that.
                self.close()
                raise
            self._wrote_s = clock.monotonic_s()
        finally:
            self._turns.leave()

    def take_leave(self, why: str) -> None:
        """The last frame, if the other end takes it at once."""
        if not self._turns.offered(_LEAVE_S):
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
            self._turns.leave()

    def read(self) -> list[Frame]:
        """The next frames, at least one; `LinkLost` at the end, `ProtocolError`."""
        while True:
            try:
                data = self.stream.read(_READ_BYTES)
            except OSError as error:
                raise lost(self.stream, str(error)) from error
            if not data:
                raise lost(self.stream, "the other end closed it")
            frames = self.reader.feed(data)
            self._alive(len(data), bool(frames))
            if frames:
                return frames

    def _alive(self, count: int, whole: bool) -> None:
        self._trickle += count
        if whole or self._trickle >= _TRICKLE_BYTES:
            self._lived_s, self._trickle = clock.monotonic_s(), 0

    def start(
        self, deliver: Callable[[Frame], None], failed: Callable[[MirrordError], None], name: str
    ) -> None:
        """Read from now on, in a thread."""

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
            except BaseException as error:  # whatever it is, those who wait must learn of it
                failed(lost(self.stream, f"{type(error).__name__}: {error}"))

        def beat() -> None:
            try:
                while not self._closed.wait(_TICK_S):
                    self._beat()
            except MirrordError as error:
                failed(error)

        self._lived_s = clock.monotonic_s()
        threading.Thread(target=run, name=f"lane-{name}", daemon=True).start()
        # Of its own: it may have to wait, where nobody reads at the other end.
        threading.Thread(target=beat, name=f"beat-{name}", daemon=True).start()

    def _beat(self) -> None:
        """Say that we live, when nothing else was said."""
        if clock.monotonic_s() - self._wrote_s >= BEAT_S:
            self.write(Type.BEAT, 0, b"")

    def check_life(self) -> None:
        """Called every second: see whether they live. Waits for nobody. `LinkLost`."""
        if self.silent_s() > SILENCE_S:
            raise lost(self.stream, f"nothing came over it for {SILENCE_S:.0f} s")

    def silent_s(self) -> float:
        """Since when the other end has said nothing."""
        return clock.monotonic_s() - self._lived_s

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        self.stream.close()


def lost(stream: ByteStream, why: str) -> LinkLost:
    """The error for a broken stream, with what the other end complained of."""
    said = printable(stream.said()).strip().splitlines()
    return LinkLost(
        "the connection is lost",
        where=stream.peer,
        why=f"{why} ({said[-1]})" if said else why,
        hint="Run the same command again: it goes on where this one stopped.",
    )
