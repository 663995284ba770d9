"""One call over a session: its answer, and the data of the call in either direction.

Data is split into numbered pieces. A piece may be sent only when the receiver has granted credit
for its raw bytes, so neither end ever holds more than the window. A stream ends with its number of
pieces, its length and its checksum: it is complete only if all three match.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from mirrord.core.errors import (
    Busy,
    Damaged,
    LinkLost,
    MirrordError,
    ProtocolError,
    copy_of,
    unpack_error,
)
from mirrord.drivers.streams import SendStream, Sink
from mirrord.link.lane import Lane, lost
from mirrord.link.outflow import Outflow, send_piece
from mirrord.system import clock
from mirrord.system.memory import keep_buffers
from mirrord.system.native import (
    Inlet,
    Outlet,
    Routes,
    StreamChecksum,
    StreamDigest,
)
from mirrord.system.waiting import Waiting
from mirrord.wire.compress import RAW, Packer, unpack
from mirrord.wire.frames import CHUNK_BYTES, Budget, Frame, Type, faults, value_of, weight_of
from mirrord.wire.values import printable

#: Raw bytes that may be in flight or unread: at most this much is sent again after a failure.
WINDOW_BYTES = 8 << 20
#: Streams longer than this are sent by threads while the next piece is read.
_THREADS_FROM_BYTES = 1 << 20
#: When a stream is cancelled: timeout for sending the pieces that are queued already.
_LAST_S = 0.3
#: How long native code may move data before cancellation is checked again.
_MOVE_S = 0.1


class Cancelled(Exception):
    """The other end cancelled the call. Never raised outside the agent."""


class Carrier(Protocol):
    """What an exchange needs from its session."""

    #: The limit on memory held for the other end's values and data.
    budget: Budget
    #: Where the data and the credit of streams go.
    routes: Routes

    def control_lane(self) -> Lane:
        """The lane for control frames, which keep their order."""

    def data_lanes(self) -> list[Lane]:
        """The lanes for data, in any order."""

    def packer(self) -> Packer:
        """Compresses one stream's pieces."""

    def stream_checksum(self) -> StreamChecksum | StreamDigest:
        """The checksum of a complete stream that both ends agreed on."""

    def tell_cancelled(self, exchange: Exchange, within_s: float) -> bool:
        """Tell the other end that the call is cancelled; whether that was sent in time."""


class Exchange:
    """One call, at either end. Its methods may be called by one thread for each direction. Where it
    `pumps` it is a `Sink`: the other end verifies what it receives.
    """

    #: See `Sink.pipe`.
    pipe = None

    def __init__(self, carrier: Carrier, number: int, waiting: Waiting | None = None) -> None:
        """waiting: the caller's; None at the called end, which waits while it is not cancelled."""
        self.waiting = waiting or Waiting(self.check)
        self.number = number
        self._carrier = carrier
        self._changed = threading.Condition(threading.RLock())
        self._error: MirrordError | None = None
        self._answer: tuple[Any] | None = None
        #: When the answer arrived (monotonic).
        self.answered_s = 0.0
        self._cancelled = False
        self._opened = False
        #: Bytes taken from the session's budget: the window, once data may arrive, and values.
        self._budgeted = 0
        self._windowed = self._over = False
        # Receiving.
        self.checksum_in = carrier.stream_checksum()
        self._inlet = Inlet(shared(self.checksum_in))
        self._end: tuple[int, int, str] | None = None
        # Sending.
        self.checksum_out = carrier.stream_checksum()
        self._outlet = Outlet(shared(self.checksum_out))
        self._outflow: Outflow | None = None
        self._packer: Packer | None = None

    # From the session's reading threads

    def deliver(self, frame: Frame) -> None:
        """Process a frame of this stream. `ProtocolError` when it is not allowed."""
        kind, body = frame.type, frame.body
        if kind is Type.DATA:
            self._take_piece(body)
            return
        if kind in (Type.RETURN, Type.ERROR):
            self.hold(weight_of(kind, body))
        value = value_of(body, kind)
        with self._changed:
            if kind is Type.RETURN:
                self._answer, self.answered_s = (printable(value),), clock.monotonic_s()
            elif kind is Type.ERROR:
                found = printable(value)
                self._error = unpack_error(found if isinstance(found, dict) else {})
            elif kind is Type.END:
                self._end = _end_of(value)
                self._inlet.finish(self._end[0])
            elif kind is Type.CREDIT:
                if type(value) is not int or value < 0:
                    raise ProtocolError("malformed grant of credit")
                with faults():
                    self._outlet.grant(value)
            elif kind is Type.CANCEL:
                self._cancelled = True
            elif kind is Type.OPENED:
                self._opened = True
            self._stir()

    def _stir(self) -> None:
        """Wake those that wait for the other end."""
        if self._error is not None or self._cancelled:
            self._inlet.stop()
        if self._halted:
            self._outlet.stop()
        self._changed.notify_all()

    def hold(self, count: int) -> None:
        """Charge `count` bytes to the session's budget until the call is over. `ProtocolError` when
        the budget is exhausted.
        """
        with self._changed:
            if not self._over:
                self._carrier.budget.take(count)
                self._budgeted += count

    def _make_window(self) -> None:
        """Charge a window of data to the session's budget, once data may arrive."""
        with self._changed:
            if not self._windowed:
                self.hold(WINDOW_BYTES)
                self._windowed = True

    def _take_piece(self, body: bytes | memoryview) -> None:
        """The first data of a stream; what follows takes the route."""
        self._make_window()
        with faults():
            self._inlet.deliver(body)
        with self._changed:
            if not self._over:
                self._carrier.routes.add_inlet(self.number, self._inlet)

    def fail(self, error: MirrordError) -> None:
        """The session is over."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._stir()

    def _await(self, over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        return self.waiting.until(lambda left_s: self._changed.wait_for(over, left_s), timeout_s)

    def _tell(self, kind: Type, value: Any) -> None:
        """Send a control frame. If the session has ended, raises the reason of its end."""
        try:
            self._carrier.control_lane().tell(kind, self.number, value, self.waiting)
        except LinkLost:
            with self._changed:
                if self._error is not None:
                    raise copy_of(self._error) from None
            raise

    # Answers

    def result(self, timeout_s: float | None = None) -> Any:
        """The value that the call returned; raises its error, or `LinkLost` after `timeout_s`."""
        with self._changed:
            ready = self._await(
                lambda: self._answer is not None or self._error is not None, timeout_s
            )
            if self._answer is not None:
                return self._answer[0]
            if self._error is not None:
                raise copy_of(self._error)
            assert not ready
        raise LinkLost(
            "the other end does not respond",
            why=f"no reply within {timeout_s:.0f} s; a disk there may hang",
        )

    def opened(self) -> None:
        """Tell the other end that the call has begun and data may be sent. `Busy` when the session
        has no room for another window of data.
        """
        with self._changed:
            try:
                self._make_window()
            except ProtocolError:
                raise Busy(
                    "too many transfers at once over one connection",
                    hint="Run the same command again when other transfers have finished.",
                ) from None
        self._tell(Type.OPENED, None)

    def check(self) -> None:
        """Raise if the call is no longer wanted: `Cancelled`, or the error that ended it."""
        with self._changed:
            if self._error is not None:
                raise copy_of(self._error)
            if self._cancelled:
                raise Cancelled

    def await_opened(self) -> None:
        """Wait until the call has begun; raises the error that prevented it."""
        with self._changed:
            self._await(lambda: self._opened or self._answer is not None or self._error is not None)
            if not self._opened and self._error is not None:
                raise copy_of(self._error)

    # Receiving

    def read(self) -> bytes | memoryview:
        """The next raw bytes; b"" when the stream is complete and verified.

        Raises `Damaged` if its checksum does not match, the other end's error, `LinkLost`.
        """
        if granted := self._inlet.due():  # the credit of the data that was read before
            self._tell(Type.CREDIT, granted)
        self.waiting.granted(self._inlet.wait)
        found = self._inlet.take()
        if found is None:
            self.check()
            self._check_end()
            return b""
        raw_bytes, packing, body, start, summed = found
        payload = memoryview(body)[start:]
        data = payload if packing == RAW else unpack(packing, payload, CHUNK_BYTES)
        if len(data) != raw_bytes:
            raise ProtocolError("a piece of data does not have the length that it declares")
        self._expect_more(self._inlet.read()[1])
        if not summed:
            self.checksum_in.update(data)
        return data

    def pour(self, pipe: int, most: int) -> int | None:
        """Write 1 to `most` of the next raw bytes to a pipe that does not block, without looking at
        them. None: not possible now, `read` is to be used. Raises as `read`, and `BrokenPipeError`.
        """
        if not isinstance(self.checksum_in, StreamChecksum):
            return None
        lane, inlet, stream = self._carrier.control_lane(), self._inlet, self.number
        self._expect_more(inlet.read()[1])
        while True:
            done = lane.use(
                lambda tls, socket, gate: inlet.pour(pipe, tls, socket, gate, stream, most, _MOVE_S)
            )
            if done != 0:
                return done
            self.waiting.look()

    @staticmethod
    def _expect_more(moved_bytes: int) -> None:
        if moved_bytes > _THREADS_FROM_BYTES:
            keep_buffers()

    def _check_end(self) -> None:
        assert self._end is not None
        pieces, length, checksum = self._end
        if (pieces, length) != self._inlet.read() or checksum != self.checksum_in.hexdigest():
            raise Damaged(
                "the received stream is not the one that was sent",
                why="its checksum or its length does not match",
                hint="Nothing was applied; run the same command again.",
            )

    # Sending

    def send(self, chunk: bytes | memoryview) -> None:
        """Send raw bytes, in pieces; waits for credit. Raises the other end's error.

        They may still be sent by a thread after the return: they must not be changed any more.
        """
        view, packer = memoryview(chunk), self._begun()
        self.checksum_out.update(view)
        while view:
            piece = view[: self._outlet.piece_bytes()]
            self._send_piece(piece, packer)
            view = view[len(piece) :]

    def _begun(self) -> Packer:
        if self._packer is None:
            self._packer = self._carrier.packer()
            with self._changed:
                if not self._over:
                    self._carrier.routes.add_outlet(self.number, self._outlet)
        return self._packer

    def _send_piece(self, piece: memoryview, packer: Packer) -> None:
        number: int | None = None

        def reserved(limit_s: float) -> bool:
            nonlocal number
            number = self._outlet.reserve(len(piece), limit_s)
            return number is not None or self._halted

        self.waiting.granted(reserved)
        if number is None:
            self._raise_halt()
            return
        if self._outflow is None and self._outlet.sent()[1] > _THREADS_FROM_BYTES:
            keep_buffers()
            self._outflow = Outflow(self, self._carrier.data_lanes(), packer)
        if self._outflow is not None:
            self._outflow.put((number, piece))
        else:
            lane = self._carrier.data_lanes()[0]
            send_piece(lane, packer, self.number, number, piece, self.waiting)

    @property
    def _halted(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._error is not None or self._cancelled or self._answer is not None

    def _raise_halt(self) -> None:
        self.check()
        if self._answer is not None:
            raise Cancelled

    @property
    def pumps(self) -> bool:
        """Whether `take` can be used: over a single lane; several are filled by `Outflow`."""
        lanes = self._carrier.data_lanes()
        native = len(lanes) == 1 and lanes[0].stream.native() is not None
        return native and isinstance(self.checksum_out, StreamChecksum)

    def take(self, source: int, most: int) -> tuple[int, bytes | memoryview]:
        """See `Sink.take`: what is not sent is what `send` should try to compress. Raises as
        `send`.
        """
        lane, packer, outlet, stream = (
            self._carrier.data_lanes()[0],
            self._begun(),
            self._outlet,
            self.number,
        )
        sample = packer.chooser.level(clock.monotonic_s()) > 0
        while True:
            self._raise_halt()
            try:
                found = lane.use(
                    lambda tls, socket, gate: outlet.pump(
                        source, tls, socket, gate, stream, most, sample, _MOVE_S
                    )
                )
            except (OSError, LinkLost) as error:
                self.fail(error if isinstance(error, LinkLost) else lost(lane.stream, str(error)))
                continue
            assert found is not None
            done, writing_s, ended, rest = found
            packer.sent(done, writing_s)
            if done or ended or len(rest):
                return done, memoryview(rest)
            self.waiting.look()

    def end(self) -> None:
        """Send the end of the stream."""
        if self._outflow is not None:
            self._outflow.finish()
        self._tell(Type.END, [*self._outlet.sent(), self.checksum_out.hexdigest()])

    def cancel(self) -> bool:
        """Cancel the call at the other end, and stop sending. Queued pieces are still sent if that
        is quick, so that they need not be sent again. Whether the other end was told in time.
        """
        if self._outflow is not None:
            self._outflow.stop(_LAST_S)
        return self._carrier.tell_cancelled(self, _LAST_S)

    def over(self) -> None:
        """The call is over: end its threads, and release what it held."""
        if self._outflow is not None:
            self._outflow.end()
        with self._changed:
            self._over = True
            self._carrier.routes.remove(self.number)
            self._inlet.clear()
            given, self._budgeted = self._budgeted, 0
        self._carrier.budget.give(given)

    @property
    def settled(self) -> bool:
        """Whether an answer, or an error, has come."""
        with self._changed:
            return self._answer is not None or self._error is not None


def shared(checksum: StreamChecksum | StreamDigest) -> StreamChecksum | None:
    """The checksum, if native code can update it."""
    return checksum if isinstance(checksum, StreamChecksum) else None


def _end_of(value: Any) -> tuple[int, int, str]:
    if not isinstance(value, list) or [type(one) for one in value] != [int, int, str]:
        raise ProtocolError("malformed end of a stream")
    return value[0], value[1], value[2]


class Incoming(SendStream):
    """The data of a call, which the other end sends."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def read(self) -> bytes | memoryview:
        """See `Exchange.read`."""
        return self._exchange.read()

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """See `SendStream.pass_on`: into a pipe."""
        return None if sink.pipe is None else self._exchange.pour(sink.pipe, most)

    def close(self) -> None:
        """The call ends it."""
