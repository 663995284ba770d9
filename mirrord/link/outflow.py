"""The threads that compress and send the pieces of one stream while the next ones are read."""

from __future__ import annotations

import queue
import struct
import threading
from typing import TYPE_CHECKING, Any

from mirrord.core.errors import LinkLost, MirrordError
from mirrord.link.lane import Lane
from mirrord.system import clock
from mirrord.system.native import Panic
from mirrord.system.waiting import Waiting
from mirrord.wire.compress import Packer
from mirrord.wire.frames import Type

if TYPE_CHECKING:
    from mirrord.link.exchange import Exchange

#: Before the payload of a data frame: number, raw length, compression.
_PIECE = struct.Struct("<IIB3x")


class Outflow:
    """Compresses and sends pieces in threads, one per lane, while the next ones are read."""

    def __init__(self, exchange: Exchange, lanes: list[Lane], packer: Packer) -> None:
        self._exchange = exchange
        #: Numbers and raw bytes of pieces.
        self._queue: queue.Queue[tuple[int, memoryview] | None] = queue.Queue(2 * len(lanes))
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(lane, packer), name="outflow", daemon=True)
            for lane in lanes
        ]
        for thread in self._threads:
            thread.start()

    def put(self, one: tuple[int, memoryview]) -> None:
        """Queue a piece, with its number; waits for room."""
        self._exchange.waiting.until(lambda left_s: self._put(one, left_s))

    def _put(self, one: tuple[int, memoryview] | None, within_s: float | None) -> bool:
        try:
            self._queue.put(one, timeout=within_s)
        except queue.Full:
            return False
        return True

    def _run(self, lane: Lane, packer: Packer) -> None:
        while (one := self._queue.get()) is not None:
            if self._stopped:
                continue  # so that no thread waits for room in the queue
            try:
                send_piece(lane, packer, self._exchange.number, *one)
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


def send_piece(
    lane: Lane,
    packer: Packer,
    stream: int,
    number: int,
    piece: memoryview,
    waiting: Waiting | None = None,
) -> None:
    """Compress one piece, and write it."""
    packing, payload = packer.pack(piece)
    before_s = clock.monotonic_s()
    head = _PIECE.pack(number, len(piece), packing)
    lane.write(Type.DATA, stream, head, payload, waiting=waiting)
    packer.sent(len(payload), clock.monotonic_s() - before_s)
