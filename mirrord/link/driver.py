"""A driver for a volume on another host: its methods are calls to the agent there."""

from __future__ import annotations

import abc
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, Self, TypeVar, cast

from mirrord.core.errors import Aborted, Busy, LinkLost, MirrordError, Unreachable, Unsupported
from mirrord.core.model import Endpoint, Snapshot, Staging, VolumeFacts
from mirrord.core.relationship import Fence, Relationship, checked
from mirrord.drivers.contract import Capability, Clones, Driver, Pool, Volume
from mirrord.drivers.live import Live
from mirrord.drivers.streams import Receiver, SendStream, Sink
from mirrord.drivers.verification import Verification
from mirrord.link.exchange import Cancelled, Exchange, shared
from mirrord.link.placing import place
from mirrord.link.session import Session
from mirrord.system import clock
from mirrord.system.native import StreamChecksum
from mirrord.system.waiting import HURRY_S, Waiting, deadline
from mirrord.wire.methods import METHODS, Method, Opened
from mirrord.wire.values import unpack

#: Delays before a call whose connection broke is repeated over a new one.
_PAUSES_S = (0.0, 0.5, 2.0)
#: Timeout of calls that only read metadata: they must not wait for a disk that hangs.
_QUICK_S = 60.0
#: An end that was active and then was silent for this long, and does not answer, is not awaited.
_STALLED_S = 1.0
#: The same when the cancellation could not be sent either, which was tried for this long.
_UNTOLD_S = 0.5
#: How long the agent of a connection that broke may need to end, and to unlock the volume: it waits
#: for its disk. How often the new one tries.
_FORMER_S = 120.0
_FORMER_POLL_S = 0.2
#: Timeout for the other end to save a checkpoint after a transfer was cancelled.
_CLOSE_S = 20.0


class Sessions(Protocol):
    """Provides the connection to the host: one for all of its mirrors."""

    #: Notes on the connection for the user, each a full sentence.
    notes: tuple[str, ...]

    def session(self, waiting: Waiting) -> Session:
        """A live session; `Unreachable`, `Untrusted`, `ProtocolError`."""


_Class = TypeVar("_Class", bound=type)


def _calling(made: _Class) -> _Class:
    """The class, with a remote call for each method of the table that it does not define."""
    for method in METHODS.values():
        if method.role in made.__mro__ and method.name not in vars(made):
            setattr(made, method.name, _call_of(method))
    abc.update_abstractmethods(made)
    return made


def _call_of(method: Method) -> Callable[..., Any]:
    # Attributes are not copied: one of them marks the method as abstract.
    @functools.wraps(getattr(method.role, method.name), updated=())
    def call(self: RemoteDriver, *arguments: Any, **named: Any) -> Any:
        return self._call(method.name, *arguments, **named)

    return call


@_calling
class RemoteDriver(Driver, Clones, Pool, Verification, Live):
    """The driver contract over a session. By that contract every method may be repeated, so a call
    whose connection broke is made again over a new one.
    """

    kind: str  # type: ignore[misc]  # of the endpoint
    remote = True

    def __init__(self, endpoint: Endpoint, sessions: Sessions) -> None:
        super().__init__(endpoint.location)
        self.kind = endpoint.kind
        self._endpoint = endpoint
        #: What it is reached by: equal for two volumes on one host, however that is written.
        self.connection = sessions
        self._guard = threading.RLock()
        self._session: Session | None = None
        #: The session that was tried last, attached or not.
        self._used: Session | None = None
        self._opened = Opened(0, 0, append_only=False)
        self._purpose: str | None = None
        #: The fence that was sent to the other end in the current session.
        self._fence_sent: Fence | None = None
        #: Its call, until the answer was read.
        self._fencing: Exchange | None = None
        #: The last call of `begin_delete`.
        self._deleting: Exchange | None = None

    @classmethod
    def of(cls, endpoint: Endpoint, sessions: Sessions) -> Self:
        """The driver of an endpoint. (A type checker takes the class for abstract, because it does
        not see the methods that the table adds.)
        """
        return cls(endpoint, sessions)

    def __str__(self) -> str:
        return str(self._endpoint)

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """As reported by the other end."""
        self._attached()
        return Capability(self._opened.capabilities)

    @property
    def append_only(self) -> bool:
        """As reported by the other end: if deleting is not permitted there, neither is pruning."""
        self._attached()
        return self._opened.append_only

    # The connection

    def _attached(self, *, changes: bool = True) -> tuple[Session, int]:
        """The session and this volume's number in it; a held lock is taken again in a new one, once
        the agent of the previous one has released it. changes: the other end must have the fence
        before the next call; otherwise that call does not wait for it, which is a round trip less.
        """
        with self._guard:
            until_s = clock.monotonic_s() + (_FORMER_S if self._session else 0)
            while True:
                try:
                    session, number = self._attach()
                    if changes:
                        self._confirm_fence(session)
                    return session, number
                except Busy:
                    if self.waiting.hurry_s or clock.monotonic_s() >= until_s:
                        raise
                    self.waiting.sleep_s(_FORMER_POLL_S)

    def _attach(self) -> tuple[Session, int]:
        self._used = None
        self._used = session = self.connection.session(self.waiting)
        hurry_s = self.waiting.hurry_s
        if hurry_s and not session.probe(hurry_s):
            raise LinkLost("the other end does not respond")
        ask = functools.partial(session.call, timeout_s=_QUICK_S, waiting=self.waiting)
        if session is not self._session:
            session.use(1)
            try:
                opened: Opened = unpack(Opened, ask("open", self.kind, self.location))
                if self._purpose is not None:
                    try:
                        ask("lock", opened.number, self._purpose)
                    except Busy:
                        ask("close", opened.number)  # (It is opened again by the next attempt.)
                        raise
            except BaseException:
                session.use(-1)
                raise
            self._session, self._opened = session, opened
            self._fence_sent = self._fencing = None
        self._confirm_fence(session)
        fenced = session.version >= METHODS["set_fence"].since
        if fenced and self.fence is not None and self.fence != self._fence_sent:
            words = (self._opened.number, *self.fence)
            self._fencing = session.begin("set_fence", *words, waiting=self.waiting)
            self._fence_sent = self.fence
        return session, self._opened.number

    def _confirm_fence(self, session: Session) -> None:
        exchange, self._fencing = self._fencing, None
        if exchange is not None:
            try:
                exchange.result(_QUICK_S)
            except BaseException:
                self._fence_sent = None
                raise
            finally:
                session.forget(exchange)

    def attached(self, name: str) -> tuple[Session, int]:
        """The session and this volume's number in it, for calls of that method that are not
        repeated. `Unsupported` when the other end does not have it.
        """
        session, number = self._attached()
        self._demand(METHODS[name], session)
        return session, number

    def _demand(self, method: Method, session: Session) -> None:
        if session.version < method.since:
            raise Unsupported(
                f"the remote mirrord is too old to {method.what}",
                where=str(self),
                hint="Install the same version of mirrord at both ends.",
            )

    def _try(self, work: Callable[[Session, int], Any], *, changes: bool = True) -> Any:
        """Do it, and repeat it over a new connection if the connection breaks. changes: see
        `_attached`.
        """
        known = self._session is not None
        with self.placing():
            for pause_s in _PAUSES_S:
                self.waiting.sleep_s(pause_s)
                try:
                    return work(*self._attached(changes=changes))
                except (LinkLost, Unreachable) as error:
                    failure: MirrordError = error
                    # A connection that broke is made again. A failure to connect is reported, and
                    # so is what the other end cannot reach.
                    known = known or (self._used is not None and self._used.answered)
                    is_said = isinstance(error, Unreachable) and self._used is not None
                    if is_said or not known or self.waiting.one_try:
                        break
            raise failure

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        method = METHODS[name]
        words = method.words(*arguments, **named)
        if method.result is SendStream:
            return _RemoteSend(self, *self._begin(name, words))
        if method.result is Receiver:
            return _RemoteReceiver(self, *self._begin(name, words))
        timeout_s = _QUICK_S if method.quick else None

        def ask(session: Session, number: int) -> Any:
            self._demand(method, session)
            return session.call(name, number, *words, timeout_s=timeout_s, waiting=self.waiting)

        answer = self._try(ask, changes=method.changes)
        return None if method.result is None else unpack(method.result, answer)

    def demand_fence(self) -> None:
        """The other end compares the epoch: the volume and its lock are there."""

    def _begin(self, method: str, words: list[Any]) -> tuple[Session, Exchange]:
        """Start a call with data; returns when the other end has begun it."""

        def begin(session: Session, number: int) -> tuple[Session, Exchange]:
            exchange = session.begin(method, number, *words, waiting=self.waiting)
            try:
                exchange.await_opened()
            except BaseException:
                session.forget(exchange)
                raise
            return session, exchange

        begun: tuple[Session, Exchange] = self._try(begin)
        return begun

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Errors raised in this block name the end at which they occurred."""
        try:
            yield
        except Aborted:
            raise  # requested at this end
        except MirrordError as error:
            if error.where in ("", f"{self.kind}:{self.location}"):
                error.where = str(self)
            else:
                place(error, self._endpoint.host, connected=self._used is not None)
            raise

    def detach(self) -> None:
        """Close the volume in the session: the mirror no longer uses this end."""
        with self._guard:
            session, self._session = self._session, None
            exchanges = self._fencing, self._deleting
            self._fencing = self._deleting = None
        for exchange in exchanges:
            if session is not None and exchange is not None:
                session.forget(exchange)
        if session is not None and session.alive:
            with suppress(MirrordError):  # the session ends, and closes all that it had open
                number = self._opened.number
                session.forget(session.begin("close", number, waiting=self.waiting))
            session.use(-1)

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        held: bool = self._call("lock", purpose)
        self._purpose = purpose
        try:
            yield held
        except BaseException:
            # A cancelled caller does not wait for a host that has just become silent.
            if self._session is not None:
                self._session.probe(HURRY_S, quiet_s=_STALLED_S)
            raise
        finally:
            self._purpose = None
            session = self._session
            if session is not None and session.alive:
                with suppress(LinkLost):  # a session that has ended holds no locks
                    number = self._opened.number
                    session.call("unlock", number, timeout_s=_QUICK_S, waiting=self.waiting)

    # The contract, where it is more than a call

    def facts(self) -> VolumeFacts:
        """See `Volume.facts`; with the host's name, and the notes on the connection."""
        found: VolumeFacts = self._call("facts")
        return found._replace(
            filesystem=f"{self._endpoint.host} {found.filesystem}",
            notes=(*found.notes, *self.connection.notes),
        )

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`; a record that no mirrord writes counts as damaged."""
        found: dict[str, Relationship | None] = self._call("relationships")
        return {mirror_id: checked(one) for mirror_id, one in found.items()}

    def relationship(self, mirror_id: str) -> Relationship | None:
        """See `Volume.relationship`; likewise."""
        found = checked(self._call("relationship", mirror_id))
        return found if found and found.mirror_id == mirror_id else None

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Source.own_snapshots`."""
        listed: list[Snapshot] = self._call("own_snapshots", patterns) if patterns else []
        return listed

    def begin_delete(self, guid: str) -> Callable[[], None]:
        """See `Volume.begin_delete`: the other end begins now."""

        def begin(session: Session, number: int) -> tuple[Session, Exchange]:
            words = METHODS["delete_snapshot"].words(guid)
            return session, session.begin("delete_snapshot", number, *words, waiting=self.waiting)

        session, exchange = self._try(begin)
        self._deleting = exchange

        def finish() -> None:
            try:
                with self.placing():
                    exchange.result()
            except (LinkLost, Unreachable):
                self.delete_snapshot(guid)
            finally:
                session.forget(exchange)

        return finish

    def make_ready(self, name: str) -> None:
        """See `Source.make_ready`; an older mirrord does that as part of taking the snapshot."""
        with self.placing():
            there = self._attached()[0].version >= METHODS["make_ready"].since
        if there:
            self._call("make_ready", name)

    def is_beside(self, other: Volume) -> bool:
        """See `Pool.is_beside`: only volumes on the same host over the same connection."""
        return (
            isinstance(other, RemoteDriver)
            and (other.kind, other.connection) == (self.kind, self.connection)
            and Capability.POOL in self.capabilities & other.capabilities
        )

    def take_together(self, name: str, others: Sequence[Pool]) -> list[Snapshot]:
        """See `Pool.take_together`. The others are sent as their numbers in the session."""

        def ask(session: Session, number: int) -> Any:
            attached = [one._attached() for one in cast(Sequence[RemoteDriver], others)]
            if any(one is not session for one, _number in attached):
                raise LinkLost("the connection was replaced")  # the numbers differ in a new one
            numbers = [other for _session, other in attached]
            return session.call("take_together", number, name, numbers, waiting=self.waiting)

        taken: list[Snapshot] = unpack(list[Snapshot], self._try(ask))
        return taken

    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]:
        raise NotImplementedError  # done by the other end

    def _relate(self, record: Relationship) -> None:
        raise NotImplementedError  # done by the other end in `relate`

    def _unrelate(self, mirror_id: str) -> None:
        raise NotImplementedError  # done by the other end in `unrelate`


class _RemoteStream:
    """The common part of both kinds of stream: the data of a call."""

    def __init__(self, driver: RemoteDriver, session: Session, exchange: Exchange) -> None:
        self._driver, self._session, self._exchange = driver, session, exchange
        self._closed = False
        #: See `SendStream.waiting` and `Receiver.waiting`.
        self.waiting = exchange.waiting

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Use the stream's `waiting`; errors name the end at which they occurred."""
        self._exchange.waiting = self.waiting
        with self._driver.placing():
            yield

    def close(self) -> None:
        """See `SendStream.close` and `Receiver.close`."""
        if self._closed:
            return
        self._closed = True
        if not self._exchange.settled:
            self._end()
        self._session.forget(self._exchange)

    def _end(self) -> None:
        self._exchange.cancel()


class _RemoteSend(_RemoteStream, SendStream):
    """A stream sent by the other end."""

    @property
    def checksum(self) -> StreamChecksum | None:
        """See `SendStream.checksum`: what both ends compare."""
        return shared(self._exchange.checksum_in)

    def read(self) -> bytes | memoryview:
        """The next piece; b"" when the stream is complete and its digest matches."""
        with self._working():
            data = self._exchange.read()
            if not data:
                self._exchange.result(_QUICK_S)
            return data

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """See `SendStream.pass_on`: into a pipe."""
        if sink.pipe is None:
            return None
        with self._working():
            return self._exchange.pour(sink.pipe, most)


class _RemoteReceiver(_RemoteStream, Receiver):
    """A receiver at the other end."""

    @property
    def checksum(self) -> StreamChecksum | None:
        """See `Receiver.checksum`: what both ends compare."""
        return shared(self._exchange.checksum_out)

    #: See `Sink.pipe`.
    pipe = None

    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        with self._sending():
            self._exchange.send(chunk)

    def take_from(self, stream: SendStream, most: int) -> int | None:
        """See `Receiver.take_from`: the other end verifies the stream."""
        return stream.pass_on(self, most) if self._exchange.pumps else None

    def take(self, source: int, most: int) -> tuple[int, bytes | memoryview]:
        """See `Sink.take`."""
        with self._sending():
            return self._exchange.take(source, most)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        with self._working():
            try:
                yield
            except Cancelled:
                raise LinkLost("the other end accepts no more data") from None

    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        with self._working():
            self._exchange.end()
            done: Staging = unpack(Staging, self._exchange.result())
            return done

    def _end(self) -> None:
        """Wait until the other end has saved its checkpoint."""
        # Do not wait for a host that does not respond: it detects the loss by itself.
        told = self._exchange.cancel()
        with suppress(MirrordError):  # why it ended is known, or does not matter
            if self._session.probe(
                HURRY_S if told else 0.0, quiet_s=_STALLED_S if told else _UNTOLD_S
            ):
                self._exchange.waiting = deadline(_CLOSE_S)
                self._exchange.result()
