"""A session: calls between two mirrords over one or several lanes, with heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mirrord.core.errors import (
    Busy,
    LinkLost,
    MirrordError,
    ProtocolError,
    Unsupported,
    pack_error,
)
from mirrord.link.exchange import Cancelled, Exchange
from mirrord.link.hello import CHECKSUM_SINCE, VERSIONS
from mirrord.link.lane import BEAT_S, Lane, lost
from mirrord.system import clock
from mirrord.system.native import Panic, Routes, StreamChecksum, StreamDigest
from mirrord.system.waiting import Waiting, deadline
from mirrord.wire.compress import Packer
from mirrord.wire.frames import (
    CALL_BYTES_MAX,
    CONTROL_BYTES_MAX,
    Budget,
    Frame,
    Type,
    value_of,
    weight_of,
)
from mirrord.wire.values import printable

#: Concurrent calls of a peer: each may hold a window of data.
CALLS_MAX = 64
#: Maximum memory that a session holds for its peer's values and data.
SESSION_BYTES_MAX = 2 * CONTROL_BYTES_MAX

#: A peer that sent nothing for this long may be dead: it must send something every `BEAT_S`.
_QUIET_S = 2 * BEAT_S
#: Maximum number of streams whose data arrives before their calls.
_EARLY_MAX = 4
#: Frames that only the called end may send.
_ANSWERS = (Type.RETURN, Type.ERROR, Type.OPENED)

#: Handles a call at the agent: its return value is the answer.
Handler = Callable[[Exchange, str, list[Any]], Any]


class Session:
    """One end of a session. `handler`: answers the other end's calls; None: it may not call.

    compress: "auto", "off" or a level, for what this end sends.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        handler: Handler | None = None,
        compress: str = "auto",
        version: int = VERSIONS[0],
    ) -> None:
        self.budget = Budget(SESSION_BYTES_MAX)
        #: Where data and credit go.
        self.routes = Routes()
        self._lanes = [lane]
        self._fast: list[Lane] = []
        self._handler = handler
        self._compress = compress
        self._lock = threading.Lock()
        #: Calls are sent in the order of their numbers.
        self._calling = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        #: Exchanges of calls that have not arrived yet: see `_early_call`.
        self._early: dict[int, Exchange] = {}
        self._last = 0
        self._error: MirrordError | None = None
        self._over = threading.Event()
        self._workers = ThreadPoolExecutor(CALLS_MAX, "call") if handler else None
        self.peer = lane.stream.peer
        #: The protocol version that both ends agreed on.
        self.version = version
        #: Whether the other end ever answered a call.
        self.answered = False
        #: How many volumes this end has open. Not kept: it ends with the last of them.
        self._used = 0
        self.kept = True

    def start(self) -> None:
        """Start reading and sending heartbeats, after the greetings."""
        self._read(self._lanes[0], "0")
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def attach(self, lane: Lane) -> None:
        """Add a lane, and start reading it."""
        with self._lock:
            if self._error is not None:
                lane.close()
                raise lost_again(self._error)
            self._lanes.append(lane)
            number = len(self._lanes) - 1
        self._read(lane, str(number))

    def widen(self, count: int) -> None:
        """From now on send data over the `count` additional lanes, and control frames over the
        first of them: the other end reads them. Only while no call is in progress. `LinkLost` when
        one of them has failed since it was attached.
        """
        with self._lock:
            if len(self._lanes) != 1 + count:
                raise LinkLost("a data connection is lost", where=self.peer)
            self._fast = self._lanes[1:]

    def narrow(self) -> list[Lane]:
        """Drop the additional lanes again, and return them. The caller closes them: the client only
        when the other end has dropped them, too, because a lane that is closed while an older
        version has it ends the session there.
        """
        with self._lock:
            dropped, self._lanes, self._fast = self._lanes[1:], self._lanes[:1], []
        return dropped

    def _read(self, lane: Lane, name: str) -> None:
        # Calls are small; answers may be large.
        most = CALL_BYTES_MAX if self._handler else CONTROL_BYTES_MAX
        lane.reader.bound(self.budget, most, self.routes)

        def failed(error: MirrordError) -> None:
            self._lane_failed(lane, error)

        lane.start(self._deliver, failed, f"{self.peer}-{name}")

    def _lane_failed(self, lane: Lane, error: MirrordError) -> None:
        """A lane that carries nothing yet is dropped; the session goes on without it."""
        with self._lock:
            if lane not in self._lanes:
                return
            idle = lane is not self._lanes[0] and lane not in self._fast
            dropped = idle and isinstance(error, LinkLost)
            if dropped:
                self._lanes.remove(lane)
        if dropped:
            lane.close()
        else:
            self.fail(error)

    # Life

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self._error is None

    def wait(self) -> MirrordError | None:
        """Wait until the session has ended; the reason."""
        while not self._over.wait(BEAT_S):  # a signal just before a wait does not interrupt it
            pass
        return self._error

    def fail(self, error: MirrordError) -> None:
        """End the session; all waiting calls raise `error`."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            exchanges, lanes = list(self._exchanges.values()), list(self._lanes)
        # First, so that a write that fails because the other end left is not taken for the reason.
        for exchange in exchanges:
            exchange.fail(error)
        if isinstance(error, ProtocolError):
            self._goodbye(str(error))
        for lane in lanes:
            lane.close()
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self._over.set()

    def drain(self) -> None:
        """Wait until all calls have ended; only after the end of the session."""
        if self._workers is not None:
            self._workers.shutdown(wait=True)

    def close(self) -> None:
        """End the session with a GOODBYE."""
        if self._error is None:
            self._goodbye("")
        self.fail(LinkLost("the connection was closed", where=self.peer))

    def use(self, change: int) -> None:
        """Count the volumes that this end has open in it: `change` more."""
        with self._lock:
            self._used += change
            unused = not self._used and not self.kept
        if unused:
            self.close()

    def _goodbye(self, why: str) -> None:
        for lane in self._lanes[:1]:
            lane.take_leave(why)

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            for lane in list(self._lanes):
                try:
                    lane.check_life()
                except MirrordError as error:
                    self._lane_failed(lane, error)

    # Carrying

    def control_lane(self) -> Lane:
        """The lane for control frames, in order: the first of the fast lanes if there are any."""
        return self._fast[0] if self._fast else self._lanes[0]

    def data_lanes(self) -> list[Lane]:
        """The lanes for data."""
        return self._fast or self._lanes[:1]

    def packer(self) -> Packer:
        """A packer for one stream."""
        return Packer(self._compress, lanes=len(self.data_lanes()), now_s=clock.monotonic_s)

    def stream_checksum(self) -> StreamChecksum | StreamDigest:
        """The checksum of a complete stream that both ends agreed on."""
        return StreamChecksum() if self.version >= CHECKSUM_SINCE else StreamDigest()

    # Calls

    def call(
        self,
        method: str,
        *words: Any,
        timeout_s: float | None = None,
        waiting: Waiting | None = None,
    ) -> Any:
        """Call the other end; raises its error, or `LinkLost`."""
        exchange = self.begin(method, *words, waiting=waiting)
        try:
            return exchange.result(timeout_s)
        finally:
            self.forget(exchange)

    def probe(self, within_s: float, *, quiet_s: float = _QUIET_S) -> bool:
        """Whether the other end responds in time. If it does not, and has sent nothing else for
        `quiet_s` either, the session is ended; a slow link is not dead.

        quiet_s: by default longer than a live peer is silent; less for a caller that has just
        cancelled something, to which a live peer would respond.
        """
        if self._error is not None:
            return False
        try:
            self.call("ping", waiting=deadline(within_s))
        except LinkLost:
            if min(lane.silent_s() for lane in self._lanes) > quiet_s:
                self.fail(lost(self._lanes[0].stream, f"no response within {within_s:g} s"))
            return False
        return True

    def begin(self, method: str, *words: Any, waiting: Waiting | None = None) -> Exchange:
        """Call the other end without waiting for the answer; end it with `forget`."""
        waiting = waiting or Waiting()
        waiting.acquire(self._calling)
        try:
            with self._lock:
                if self._error is not None:
                    raise lost_again(self._error)
                self._last += 1
                exchange = self._exchanges[self._last] = Exchange(self, self._last, waiting)
            try:
                self.control_lane().tell(Type.CALL, exchange.number, [method, list(words)], waiting)
            except LinkLost as error:
                self.fail(error)
                raise
            except BaseException:
                self.forget(exchange)
                raise
        finally:
            self._calling.release()
        return exchange

    def tell_cancelled(self, exchange: Exchange, within_s: float) -> bool:
        """Tell the other end that the call is cancelled; whether that was sent in time. If not, it
        is sent later, before any other call.
        """
        told = threading.Event()

        def tell() -> None:
            with self._calling:
                try:
                    self.control_lane().tell(Type.CANCEL, exchange.number, None)
                    told.set()
                except MirrordError as error:
                    self.fail(error)

        threading.Thread(target=tell, name="cancel", daemon=True).start()
        return told.wait(within_s)

    def forget(self, exchange: Exchange) -> None:
        """End an exchange: ignore what still arrives for it, and send nothing more."""
        with self._lock:
            # (One of a session that has ended may have the number of one of this session.)
            if self._exchanges.get(exchange.number) is exchange:
                del self._exchanges[exchange.number]
        exchange.over()

    def _deliver(self, frame: Frame) -> None:
        if frame.type is Type.BEAT:
            return
        if frame.type is Type.GOODBYE:
            why = str(printable(value_of(frame.body, Type.GOODBYE)))[:500]
            if not why:
                raise LinkLost(
                    "the other end ended the connection",
                    where=self.peer,
                    hint="Run the same command again: it resumes where this one stopped.",
                )
            raise ProtocolError("the other end rejected what was sent", why=why)
        if frame.type is Type.CALL:
            self._called(frame)
            return
        if frame.type is Type.HELLO:
            raise ProtocolError("a second greeting of the other end")
        if self._handler is not None and frame.type in _ANSWERS:
            raise ProtocolError("the other end answered a call that was not made")
        with self._lock:
            exchange = self._exchanges.get(frame.stream)
            if exchange is None and frame.stream > self._last:
                exchange = self._early_call(frame)
        if exchange is not None:
            exchange.deliver(frame)
            self.answered = True

    def _early_call(self, frame: Frame) -> Exchange:
        """Data on one lane may overtake its call on another: allowed for a few streams."""
        exchange = self._early.get(frame.stream)
        if exchange is None:
            possible = self._handler is not None and len(self._lanes) > 1
            if not possible or frame.type is not Type.DATA or len(self._early) >= _EARLY_MAX:
                raise ProtocolError("a frame does not belong to any call")
            exchange = self._early[frame.stream] = Exchange(self, frame.stream)
        return exchange

    # Being called

    def _called(self, frame: Frame) -> None:
        if self._handler is None or self._workers is None:
            raise ProtocolError("the other end may not call")
        weight = weight_of(Type.CALL, frame.body)
        call = value_of(frame.body, Type.CALL)
        if (
            not isinstance(call, list)
            or [type(one) for one in call] != [str, list]
            or frame.stream <= self._last
        ):
            raise ProtocolError("malformed call")
        with self._lock:
            self._last = frame.stream
            exchange = self._early.pop(frame.stream, None) or Exchange(self, frame.stream)
            # Calls arrive in order: those before this one will not arrive.
            skipped = [
                self._early.pop(number) for number in list(self._early) if number < self._last
            ]
            too_many = len(self._exchanges) >= CALLS_MAX
            if not too_many:
                self._exchanges[frame.stream] = exchange
        for one in skipped:
            one.over()
        if too_many:
            exchange.over()
            error = Busy("too many calls at once", why=f"{CALLS_MAX} are in progress")
            self.control_lane().tell(Type.ERROR, frame.stream, pack_error(error))
            return
        exchange.hold(weight)
        try:
            self._workers.submit(self._answer, exchange, *call)
        except RuntimeError as error:
            if self._error is None:  # the system permits no more threads
                raise LinkLost("a call cannot be answered", why=str(error)) from None

    def _answer(self, exchange: Exchange, method: str, words: list[Any]) -> None:
        assert self._handler is not None
        try:
            answer: tuple[Type, Any] = (Type.RETURN, self._handler(exchange, method, words))
        except Cancelled:
            answer = (Type.RETURN, None)
        except MirrordError as error:
            answer = (Type.ERROR, pack_error(error))
        except (Exception, Panic) as error:  # a panic of the native code is no `Exception`
            bug = MirrordError(f"unexpected: {type(error).__name__}: {error}")
            answer = (Type.ERROR, pack_error(bug))
        self.forget(exchange)
        try:
            self._tell_answer(exchange.number, *answer)
        except MirrordError as error:
            self.fail(error)

    def _tell_answer(self, number: int, kind: Type, value: Any) -> None:
        try:
            self.control_lane().tell(kind, number, value)
        except Unsupported as error:  # too large: nothing of it was sent
            self.control_lane().tell(Type.ERROR, number, pack_error(error))


def lost_again(error: MirrordError) -> LinkLost:
    """The error that a call over an ended session raises."""
    return LinkLost(
        "the connection is lost", where=error.where, why=error.why or error.what, hint=error.hint
    )
