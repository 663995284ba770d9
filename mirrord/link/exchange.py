"""One call over a session: its answer, and the data of the call in either direction.

Data is split into numbered pieces. A piece may be sent only when the receiver has granted credit
for its raw bytes, so neither end ever holds more than the window. A stream ends with its number of
pieces, its length and its BLAKE3 digest: it is complete only if all three match.
"""

from __future__ import annotations

import queue
import struct
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
from mirrord.link.lane import Lane
from mirrord.link.pace import Pace
from mirrord.system import clock
from mirrord.system.memory import keep_buffers
from mirrord.system.native import Panic, StreamDigest
from mirrord.system.waiting import Waiting
from mirrord.wire.compress import RAW, Packer, unpack
from mirrord.wire.frames import CHUNK_BYTES, Budget, Frame, Type, value_of, weight_of
from mirrord.wire.values import printable

#: Raw bytes that may be in flight or unread: at most this much is sent again after a failure.
WINDOW_BYTES = 8 << 20
#: Credit is returned after this many bytes were read, or after this time: the sender measures the
#: link by it.
_GRANT_BYTES = WINDOW_BYTES // 32
_GRANT_S = 0.4
#: Streams longer than this are sent by threads while the next piece is read.
_THREADS_FROM_BYTES = 1 << 20
#: When a stream is cancelled: timeout for sending the pieces that are queued already.
_LAST_S = 0.3
#: Before the payload of a data frame: number, raw length, compression.
_PIECE = struct.Struct("<IIB3x")


#: Minimum that a piece counts against the credit: it has overhead beyond its bytes.
_PIECE_BYTES_LEAST = 512
#: Maximum that compression may add to a piece, in addition to 1/128 of it.
_PACKING_BYTES_MAX = 64


class Cancelled(Exception):
    """The other end cancelled the call. Never raised outside the agent."""


class Carrier(Protocol):
    """What an exchange needs from its session."""

    #: The limit on memory held for the other end's values and data.
    budget: Budget

    def control_lane(self) -> Lane:
        """The lane for control frames, which keep their order."""

    def data_lanes(self) -> list[Lane]:
        """The lanes for data, in any order."""

    def packer(self) -> Packer:
        """Compresses one stream's pieces."""

    def tell_cancelled(self, exchange: Exchange, within_s: float) -> bool:
        """Tell the other end that the call is cancelled; whether that was sent in time."""


class Exchange:
    """One call, at either end. Its methods may be called by one thread for each direction."""

    def __init__(self, carrier: Carrier, number: int, waiting: Waiting | None = None) -> None:
        """waiting: the caller's; None at the called end, which waits while it is not cancelled."""
        self.waiting = waiting or Waiting(self.check)
        self.number = number
        self._carrier = carrier
        self._changed = threading.Condition(threading.RLock())
        self._error: MirrordError | None = None
        self._answer: tuple[Any] | None = None
        self._cancelled = False
        self._opened = False
        #: Bytes taken from the session's budget: the window, once data may arrive, and values.
        self._budgeted = 0
        self._windowed = self._over = False
        # Receiving.
        self._pieces: dict[int, bytes] = {}
        self._next = 0
        self._held_bytes = 0
        self._consumed = 0
        self._granted_s = clock.monotonic_s()
        self._end: tuple[int, int, str] | None = None
        self._digest_in = StreamDigest()
        self._bytes_in = 0
        # Sending.
        self._credit = WINDOW_BYTES
        self._pace = Pace(WINDOW_BYTES)
        self._outflow: _Outflow | None = None
        self._packer: Packer | None = None
        self._digest_out = StreamDigest()
        self._pieces_out = 0
        self._bytes_out = 0

    # From the session's reading threads

    def deliver(self, frame: Frame) -> None:
        """Process a frame of this stream. `ProtocolError` when it is not allowed."""
        kind, body = frame.type, frame.body
        if kind is Type.DATA:
            with self._changed:
                self._take_piece(body)
                self._changed.notify_all()
            return
        if kind in (Type.RETURN, Type.ERROR):
            self.hold(weight_of(kind, body))
        value = value_of(body, kind)
        with self._changed:
            if kind is Type.RETURN:
                self._answer = (printable(value),)
            elif kind is Type.ERROR:
                found = printable(value)
                self._error = unpack_error(found if isinstance(found, dict) else {})
            elif kind is Type.END:
                self._end = _end_of(value)
            elif kind is Type.CREDIT:
                if type(value) is not int or not 0 < value <= WINDOW_BYTES - self._credit:
                    raise ProtocolError("malformed grant of credit")
                self._credit += value
                self._pace.acknowledged(value, clock.monotonic_s())
            elif kind is Type.CANCEL:
                self._cancelled = True
            elif kind is Type.OPENED:
                self._opened = True
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

    def _take_piece(self, body: bytes) -> None:
        self._make_window()
        if len(body) < _PIECE.size:
            raise ProtocolError("a data frame is too short")
        number, raw_bytes, _ = _PIECE.unpack_from(body)
        self._held_bytes += _weight(raw_bytes)
        packed_max = raw_bytes + (raw_bytes >> 7) + _PACKING_BYTES_MAX
        if (
            not 0 < raw_bytes <= CHUNK_BYTES
            or self._held_bytes > WINDOW_BYTES
            or len(body) - _PIECE.size > packed_max
        ):
            raise ProtocolError("the other end sent more data than it may")
        if number < self._next or number in self._pieces:
            raise ProtocolError("a piece of data was received twice")
        self._pieces[number] = body

    def fail(self, error: MirrordError) -> None:
        """The session is over."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

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

        Raises `Damaged` if its digest does not match, the other end's error, `LinkLost`.
        """
        self._grant()
        with self._changed:
            self._await(self._readable)
            body = self._pieces.pop(self._next, None)
            if body is None:
                self.check()
                self._check_end()
                return b""
            self._next += 1
        _, raw_bytes, packing = _PIECE.unpack_from(body)
        payload = memoryview(body)[_PIECE.size :]
        data = payload if packing == RAW else unpack(packing, payload, CHUNK_BYTES)
        if len(data) != raw_bytes:
            raise ProtocolError("a piece of data does not have the length that it declares")
        if self._bytes_in > _THREADS_FROM_BYTES:
            keep_buffers()
        self._digest_in.update(data)
        self._bytes_in += raw_bytes
        self._consumed += _weight(raw_bytes)
        return data

    def _readable(self) -> bool:
        ended = self._end is not None and self._next >= self._end[0]
        return self._next in self._pieces or ended or self._cancelled or self._error is not None

    def _check_end(self) -> None:
        assert self._end is not None
        pieces, length, digest = self._end
        complete = pieces == self._next and length == self._bytes_in
        if not complete or digest != self._digest_in.hexdigest():
            raise Damaged(
                "the received stream is not the one that was sent",
                why="its digest or its length does not match",
                hint="Nothing was applied; run the same command again.",
            )

    def _grant(self) -> None:
        """Return the credit of the data that was read before."""
        now_s = clock.monotonic_s()
        overdue = self._consumed and now_s - self._granted_s >= _GRANT_S
        if self._consumed < _GRANT_BYTES and not overdue:
            return
        granted, self._consumed, self._granted_s = self._consumed, 0, now_s
        with self._changed:
            self._held_bytes -= granted
        self._tell(Type.CREDIT, granted)

    # Sending

    def send(self, chunk: bytes | memoryview) -> None:
        """Send raw bytes, in pieces; waits for credit. Raises the other end's error."""
        view = memoryview(chunk)
        if self._packer is None:
            self._packer = self._carrier.packer()
        self._digest_out.update(view)
        while view:
            piece = view[: min(CHUNK_BYTES, self._pace.piece_bytes)]
            self._send_piece(piece, self._packer)
            view = view[len(piece) :]

    def _send_piece(self, piece: memoryview, packer: Packer) -> None:
        weight = _weight(len(piece))
        with self._changed:
            while not self._await(lambda: self._may_send(weight), Pace.PATIENCE_S):
                self._pace.waited()
            self.check()
            if self._answer is not None:
                raise Cancelled
            self._credit -= weight
            self._pace.sent(weight, clock.monotonic_s())
        number = self._pieces_out
        self._pieces_out += 1
        self._bytes_out += len(piece)
        if self._outflow is None and self._bytes_out > _THREADS_FROM_BYTES:
            keep_buffers()
            self._outflow = _Outflow(self, self._carrier.data_lanes(), packer)
        # In the form in which it is sent when it is not compressed.
        body = b"".join((_PIECE.pack(number, len(piece), RAW), piece))
        if self._outflow is not None:
            self._outflow.put(body)
        else:
            lane = self._carrier.data_lanes()[0]
            send_piece(lane, packer, self.number, body, self.waiting)

    def _may_send(self, weight: int) -> bool:
        if self._error is not None or self._cancelled or self._answer is not None:
            return True
        return self._credit >= weight and self._pace.allows(weight)

    def end(self) -> None:
        """Send the end of the stream."""
        if self._outflow is not None:
            self._outflow.finish()
        ending = [self._pieces_out, self._bytes_out, self._digest_out.hexdigest()]
        self._tell(Type.END, ending)

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
            self._pieces.clear()
            given, self._budgeted = self._budgeted, 0
        self._carrier.budget.give(given)

    @property
    def settled(self) -> bool:
        """Whether an answer, or an error, has come."""
        with self._changed:
            return self._answer is not None or self._error is not None


class _Outflow:
    """Compresses and sends pieces in threads, one per lane, while the next ones are read."""

    def __init__(self, exchange: Exchange, lanes: list[Lane], packer: Packer) -> None:
        self._exchange = exchange
        self._queue: queue.Queue[bytes | None] = queue.Queue(2 * len(lanes))
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(lane, packer), name="outflow", daemon=True)
            for lane in lanes
        ]
        for thread in self._threads:
            thread.start()

    def put(self, body: bytes) -> None:
        self._exchange.waiting.until(lambda left_s: self._put(body, left_s))

    def _put(self, body: bytes | None, within_s: float | None) -> bool:
        try:
            self._queue.put(body, timeout=within_s)
        except queue.Full:
            return False
        return True

    def _run(self, lane: Lane, packer: Packer) -> None:
        while (one := self._queue.get()) is not None:
            if self._stopped:
                continue  # so that no thread waits for room in the queue
            try:
                send_piece(lane, packer, self._exchange.number, one)
            except MirrordError as error:
                self._stopped = True
                self._exchange.fail(error)
            except (Exception, Panic) as error:  # any error must reach the waiting sender
                self._stopped = True
                self._exchange.fail(LinkLost("a piece could not be sent", why=str(error)))

    def finish(self) -> None:
        """Wait until everything is sent. `LinkLost`."""
        for _ in self._threads:
            self._exchange.waiting.until(lambda left_s: self._put(None, left_s))
        for thread in self._threads:
            self._exchange.waiting.joined(thread)
        if self._stopped:
            raise LinkLost("the connection is lost", why="a part of the stream could not be sent")

    def stop(self, within_s: float) -> None:
        """Send the queued pieces if that can be done in time, and stop."""
        until_s = clock.monotonic_s() + within_s
        for _ in self._threads:
            try:
                self._queue.put(None, timeout=max(0.0, until_s - clock.monotonic_s()))
            except queue.Full:
                self._stopped = True
                _drain(self._queue)
                self._queue.put_nowait(None)
        for thread in self._threads:
            thread.join(max(0.0, until_s - clock.monotonic_s()))
        self._stopped = True

    def end(self) -> None:
        """Stop sending, without waiting. May be called after `finish` and `stop`."""
        self._stopped = True
        _drain(self._queue)
        for _ in self._threads:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                return  # full of end markers that were queued before


def _drain(pieces: queue.Queue[Any]) -> None:
    while True:
        try:
            pieces.get_nowait()
        except queue.Empty:
            return


def _weight(raw_bytes: int) -> int:
    return max(raw_bytes, _PIECE_BYTES_LEAST)


def send_piece(
    lane: Lane, packer: Packer, stream: int, body: bytes, waiting: Waiting | None = None
) -> None:
    """Compress one piece, given in the form in which it is sent raw, and write it."""
    packing, payload = packer.pack(memoryview(body)[_PIECE.size :])
    before_s = clock.monotonic_s()
    if packing == RAW:
        lane.write(Type.DATA, stream, body, waiting=waiting)
    else:
        number, raw_bytes, _ = _PIECE.unpack_from(body)
        head = _PIECE.pack(number, raw_bytes, packing)
        lane.write(Type.DATA, stream, head, payload, waiting=waiting)
    packer.sent(len(payload), clock.monotonic_s() - before_s)


def _end_of(value: Any) -> tuple[int, int, str]:
    if not isinstance(value, list) or [type(one) for one in value] != [int, int, str]:
        raise ProtocolError("malformed end of a stream")
    return value[0], value[1], value[2]
