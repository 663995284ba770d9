"""A session: calls between two mirrords over one or several lanes, with signs of life."""

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
from mirrord.link.hello import VERSIONS
from mirrord.link.lane import BEAT_S, Lane, lost
from mirrord.system import clock
from mirrord.system.native import Panic
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

#: Calls of a peer at once: each may hold a window of data.
CALLS_MAX = 64
#: What a session may hold of what its peer says and sends, all in all.
SESSION_BYTES_MAX = 2 * CONTROL_BYTES_MAX

#: Who said nothing for so long, although something must be said every `BEAT_S`, may be dead.
_QUIET_S = 2 * BEAT_S
#: Streams at once whose data come before their calls.
_EARLY_MAX = 4
#: What only who was called may say.
_ANSWERS = (Type.RETURN, Type.ERROR, Type.OPENED)

#: What an agent does with a call: its value is the answer.
Handler = Callable[[Exchange, str, list[Any]], Any]


class Session:
    """One end. `handler`: answers the other end's calls; None: it may make none.

    compress: "auto", "off" or a level, for what this end sends.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        handler: Handler | None = None,
        compress: str = "auto",
        version: int = VERSIONS[0],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.budget = Budget(SESSION_BYTES_MAX)
        self._lanes = [lane]
        self._fast: list[Lane] = []
        self._handler = handler
        self._compress = compress
        self._on_end = on_end
        self._lock = threading.Lock()
        #: Calls go out in the order of their numbers.
        self._calling = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        #: Of calls that have not come yet: see `_early_call`.
        self._early: dict[int, Exchange] = {}
        self._last = 0
        self._error: MirrordError | None = None
        self._over = threading.Event()
        self._workers = ThreadPoolExecutor(CALLS_MAX, "call") if handler else None
        self.peer = lane.stream.peer
        #: Of the protocol, as both ends agreed.
        self.version = version
        #: Whether the other end ever answered a call.
        self.answered = False

    def start(self) -> None:
        """Greetings were exchanged: read, and show signs of life."""
        self._read(self._lanes[0], "0")
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def attach(self, lane: Lane) -> None:
        """Read a further lane from now on, too."""
        with self._lock:
            if self._error is not None:
                lane.close()
                raise lost_again(self._error)
            self._lanes.append(lane)
            number = len(self._lanes) - 1
        self._read(lane, str(number))

    def widen(self) -> None:
        """Send data over the further lanes, and what is small over the first of them, from now
        on: the other end reads them. Only while no call is under way.
        """
        with self._lock:
            self._fast = self._lanes[1:]

    def narrow(self) -> None:
        """Drop the further lanes again."""
        with self._lock:
            dropped, self._lanes, self._fast = self._lanes[1:], self._lanes[:1], []
        for lane in dropped:
            lane.close()

    def _read(self, lane: Lane, name: str) -> None:
        # Who may call says little; who answers may have much to say.
        lane.reader.bound(self.budget, CALL_BYTES_MAX if self._handler else CONTROL_BYTES_MAX)

        def failed(error: MirrordError) -> None:
            if lane in self._lanes:
                self.fail(error)

        lane.start(self._deliver, failed, f"{self.peer}-{name}")

    # Life

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self._error is None

    def wait(self) -> MirrordError | None:
        """Until the session is over; why."""
        self._over.wait()
        return self._error

    def fail(self, error: MirrordError) -> None:
        """It is over: all that waits learns why."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            exchanges, lanes = list(self._exchanges.values()), list(self._lanes)
        # First, so that a write which the other end's leave cuts off is not taken for the reason.
        for exchange in exchanges:
            exchange.fail(error)
        if isinstance(error, ProtocolError):
            self._goodbye(str(error))
        for lane in lanes:
            lane.close()
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        if self._on_end is not None:
            self._on_end()
        self._over.set()

    def drain(self) -> None:
        """Wait until what was called has ended: after the end of the session only."""
        if self._workers is not None:
            self._workers.shutdown(wait=True)

    def close(self) -> None:
        """End it in order."""
        if self._error is None:
            self._goodbye("")
        self.fail(LinkLost("the connection was closed", where=self.peer))

    def _goodbye(self, why: str) -> None:
        for lane in self._lanes[:1]:
            lane.take_leave(why)

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            try:
                for lane in list(self._lanes):
                    lane.check_life()
            except MirrordError as error:
                self.fail(error)

    # Carrying

    def control_lane(self) -> Lane:
        """Where control frames go, in order: the first of the fast lanes if there are any."""
        return self._fast[0] if self._fast else self._lanes[0]

    def data_lanes(self) -> list[Lane]:
        """Where data may go."""
        return self._fast or self._lanes[:1]

    def packer(self) -> Packer:
        """A packer for one stream."""
        return Packer(self._compress, lanes=len(self.data_lanes()), now_s=clock.monotonic_s)

    # Calls

    def call(
        self,
        method: str,
        *words: Any,
        timeout_s: float | None = None,
        waiting: Waiting | None = None,
    ) -> Any:
        """Ask the other end; raises what it raises, or `LinkLost`."""
        exchange = self.begin(method, *words, waiting=waiting)
        try:
            return exchange.result(timeout_s)
        finally:
            self.forget(exchange)

    def probe(self, within_s: float, *, quiet_s: float = _QUIET_S) -> bool:
        """Whether the other end answers in time. When it does not, and has not said anything else
        for `quiet_s` either, the session is over; a slow link is not dead.

        quiet_s: by default longer than it may be silent; less for who has just ended something,
        about which something would come if it could.
        """
        if self._error is not None:
            return False
        try:
            self.call("ping", waiting=deadline(within_s))
        except LinkLost:
            if min(lane.silent_s() for lane in self._lanes) > quiet_s:
                self.fail(lost(self._lanes[0].stream, f"no answer came within {within_s:g} s"))
            return False
        return True

    def begin(self, method: str, *words: Any, waiting: Waiting | None = None) -> Exchange:
        """Ask the other end, and do not wait for the answer: `forget` it when it is over."""
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
        """Tell the other end that nobody wants the rest; whether that was done in time. If not it
        is done later, before any other call.
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
        """What still comes for it is passed over, and nothing more goes."""
        with self._lock:
            self._exchanges.pop(exchange.number, None)
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
                    hint="Run the same command again: it goes on where this one stopped.",
                )
            raise ProtocolError("the other end could not make sense of what was sent", why=why)
        if frame.type is Type.CALL:
            self._called(frame)
            return
        if frame.type is Type.HELLO:
            raise ProtocolError("the other end greets again")
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
        """Data on one lane may overtake their call on another: a few, for as long as it takes."""
        exchange = self._early.get(frame.stream)
        if exchange is None:
            possible = self._handler is not None and len(self._lanes) > 1
            if not possible or frame.type is not Type.DATA or len(self._early) >= _EARLY_MAX:
                raise ProtocolError("a frame belongs to no call")
            exchange = self._early[frame.stream] = Exchange(self, frame.stream)
        return exchange

    # Being called

    def _called(self, frame: Frame) -> None:
        if self._handler is None or self._workers is None:
            raise ProtocolError("the other end may not call")
        weight = weight_of(Type.CALL, frame.body)
        said = value_of(frame.body, Type.CALL)
        if (
            not isinstance(said, list)
            or [type(one) for one in said] != [str, list]
            or frame.stream <= self._last
        ):
            raise ProtocolError("malformed call")
        with self._lock:
            self._last = frame.stream
            exchange = self._early.pop(frame.stream, None) or Exchange(self, frame.stream)
            # Calls come in order: those before this one will not come any more.
            late = [self._early.pop(number) for number in list(self._early) if number < self._last]
            crowded = len(self._exchanges) >= CALLS_MAX
            if not crowded:
                self._exchanges[frame.stream] = exchange
        for one in late:
            one.over()
        if crowded:
            exchange.over()
            error = Busy("too many calls at once", why=f"{CALLS_MAX} are under way")
            self.control_lane().tell(Type.ERROR, frame.stream, pack_error(error))
            return
        exchange.hold(weight)
        try:
            self._workers.submit(self._answer, exchange, *said)
        except RuntimeError:
            return  # the session has just ended

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
    """What a call over a session that has ended raises."""
    return LinkLost(
        "the connection is lost", where=error.where, why=error.why or error.what, hint=error.hint
    )
