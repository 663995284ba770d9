"""A driver whose volume is on another host: every method is a call to the agent there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from mirrord.core.endpoint import split_host
from mirrord.core.errors import Aborted, LinkLost, MirrordError, Unreachable
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    Endpoint,
    OpenWriter,
    ReceiveRequest,
    Snapshot,
    Staging,
    VolumeFacts,
)
from mirrord.drivers.base import Capability, Driver
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.link.exchange import Cancelled, Exchange
from mirrord.link.session import Session
from mirrord.system.waiting import HURRY_S, Waiting, deadline
from mirrord.wire.values import pack, unpack

_EVERY = sum(each.value for each in Capability)
#: Pauses before a call over a broken connection is tried again over a new one.
_PAUSES_S = (0.0, 0.5, 2.0)
#: What only looks must not wait for a disk that hangs.
_QUICK_S = 60.0
#: After this silence of what was busy a moment ago, and no answer, nobody waits any longer.
_STALLED_S = 1.0
#: The same when even the word that it is ended could not be said: that was tried for so long.
_UNTOLD_S = 0.5
#: How long the other end may take to keep a checkpoint after a transfer was ended.
_CLOSE_S = 20.0


class Opened(NamedTuple):
    """A volume at the other end: its number in the session, and what can be done with it."""

    number: int
    capabilities: int
    append_only: bool


class Sessions(Protocol):
    """Where the connection to the host comes from: one for all of its mirrors."""

    #: What a person should know of the connection, each a full sentence.
    notes: tuple[str, ...]

    def session(self, waiting: Waiting) -> Session:
        """A session that is alive; `Unreachable`, `Untrusted`, `ProtocolError`."""


class RemoteDriver(Driver):
    """The contract of drivers/base.py over a session. Every method may be repeated by that
    contract, so one that was cut off is asked again over a new connection.
    """

    kind: str  # type: ignore[misc]  # of the endpoint
    remote = True

    def __init__(self, endpoint: Endpoint, sessions: Sessions) -> None:
        super().__init__(endpoint.location)
        self.kind = endpoint.kind
        self._endpoint = endpoint
        self._sessions = sessions
        self._guard = threading.RLock()
        self._session: Session | None = None
        #: The one that was tried last, attached or not.
        self._used: Session | None = None
        self._handle = 0
        self._capabilities = Capability.NONE
        self._purpose: str | None = None

    def __str__(self) -> str:
        return str(self._endpoint)

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """As the other end says."""
        self._attached()
        return self._capabilities

    # The connection

    def _attached(self) -> tuple[Session, int]:
        """The session, and our number in it; what was locked is locked again in a new one."""
        with self._guard:
            self._used = None
            self._used = session = self._sessions.session(self.waiting)
            hurry_s = self.waiting.hurry_s
            if hurry_s and not session.probe(hurry_s):
                raise LinkLost("the other end does not answer")
            if session is not self._session:
                answer = session.call(
                    "open", self.kind, self.location, timeout_s=_QUICK_S, waiting=self.waiting
                )
                number, capabilities, keeps = unpack(Opened, answer)
                if self._purpose is not None:
                    session.call(
                        "lock", number, self._purpose, timeout_s=_QUICK_S, waiting=self.waiting
                    )
                self._session, self._handle = session, number
                # A newer peer may have some that are not known here.
                self._capabilities = Capability(capabilities & _EVERY)
                if keeps:
                    self._capabilities |= Capability.APPEND_ONLY
            return session, self._handle

    def _try(self, work: Callable[[Session, int], Any]) -> Any:
        """Do it, and once more over a new connection when the old one breaks."""
        known = self._session is not None
        for pause_s in _PAUSES_S:
            self.waiting.sleep_s(pause_s)
            try:
                return work(*self._attached())
            except (LinkLost, Unreachable) as error:
                failure: MirrordError = error
                # A connection that broke is made anew; one that could not be made is told at once.
                known = known or (self._used is not None and self._used.answered)
                if not known or self.waiting.one_try:
                    break
            except MirrordError as error:
                raise self._placed(error) from error
        raise self._placed(failure) from failure

    def _call(self, method: str, *words: Any, timeout_s: float | None = None) -> Any:
        packed = [pack(word) for word in words]
        return self._try(
            lambda session, number: session.call(
                method, number, *packed, timeout_s=timeout_s, waiting=self.waiting
            )
        )

    def _begin(self, method: str, *packed: Any) -> tuple[Session, Exchange]:
        """A call with data, once the other end has begun it."""

        def begin(session: Session, number: int) -> tuple[Session, Exchange]:
            exchange = session.begin(method, number, *packed, waiting=self.waiting)
            try:
                exchange.await_opened()
            except BaseException:
                session.forget(exchange)
                raise
            return session, exchange

        begun: tuple[Session, Exchange] = self._try(begin)
        return begun

    def _placed(self, error: MirrordError) -> MirrordError:
        """The error, which says at which end it was."""
        where = error.where
        if isinstance(error, Aborted):
            return error  # somebody here wished it
        if where in ("", f"{self.kind}:{self.location}"):
            error.where = str(self)
        elif where == split_host(self._endpoint.host, what="the endpoint")[1]:
            error.where = self._endpoint.host
        elif self._endpoint.host not in where:
            error.where = f"{self._endpoint.host}: {where}"
        return error

    def detach(self) -> None:
        """Give up the number in the session: the mirror is done with this end."""
        with self._guard:
            session, self._session = self._session, None
        if session is not None and session.alive:
            try:
                session.forget(session.begin("close", self._handle, waiting=self.waiting))
            except MirrordError:
                return  # the session ends, and with it what it had open

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        held = self._call("lock", purpose, timeout_s=_QUICK_S) is not False
        self._purpose = purpose
        try:
            yield held
        except BaseException:
            # Who was ended does not wait for a host that has just fallen silent.
            if self._session is not None:
                self._session.probe(HURRY_S, quiet_s=_STALLED_S)
            raise
        finally:
            self._purpose = None
            session = self._session
            if session is not None and session.alive:
                try:
                    session.call("unlock", self._handle, timeout_s=_QUICK_S, waiting=self.waiting)
                except LinkLost:
                    pass  # a session that ended holds nothing

    # The contract

    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        found: VolumeFacts = unpack(VolumeFacts, self._call("facts", timeout_s=_QUICK_S))
        return found._replace(
            filesystem=f"{self._endpoint.host} {found.filesystem}",
            notes=(*found.notes, *self._sessions.notes),
        )

    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        listed: list[Snapshot] = unpack(list[Snapshot], self._call("snapshots", timeout_s=_QUICK_S))
        return listed

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`."""
        if not patterns:
            return []
        listed: list[Snapshot] = unpack(list[Snapshot], self._call("own_snapshots", patterns))
        return listed

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`."""
        taken: Snapshot = unpack(Snapshot, self._call("take_snapshot", name))
        return taken

    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`."""
        self._call("delete_snapshot", guid)

    def reclaim(self) -> None:
        """See `Driver.reclaim`."""
        self._call("reclaim")

    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`."""
        return bool(self._call("changed_since", guid))

    def base_left(self, guid: str) -> Snapshot | None:
        """See `Driver.base_left`."""
        left: Snapshot | None = unpack(Snapshot | None, self._call("base_left", guid))
        return left

    def members(self, guid: str) -> dict[str, str]:
        """See `Driver.members`."""
        found: dict[str, str] = unpack(dict[str, str], self._call("members", guid))
        return found

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`."""
        found: Delta = unpack(Delta, self._call("delta", base, incremental, states, files))
        return found

    def changes(self, base: str, incremental: str) -> Changes:
        """See `Driver.changes`."""
        found: Changes = unpack(Changes, self._call("changes", base, incremental))
        return found

    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> SendStream:
        """See `Driver.send`."""
        words = [pack(word) for word in (base, incremental, checkpoint)]
        session, exchange = self._begin("send", *words)
        return _RemoteSend(session, exchange, self._placed)

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`."""
        self._call("prepare", mirror_id, in_place)

    def receive(self, request: ReceiveRequest) -> Receiver:
        """See `Driver.receive`."""
        session, exchange = self._begin("receive", pack(request))
        return _RemoteReceiver(session, exchange, self._placed)

    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        listed: list[Staging] = unpack(list[Staging], self._call("stagings", timeout_s=_QUICK_S))
        return listed

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        done: Snapshot = unpack(Snapshot, self._call("commit", transfer_id, show))
        return done

    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        self._call("discard", transfer_id)

    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`."""
        self._call("promote", guid)

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`."""
        found: list[OpenWriter] = unpack(list[OpenWriter], self._call("writers", kept, limit))
        return found

    def freeze(self) -> None:
        """See `Driver.freeze`: the agent ends it when the session does."""
        self._call("freeze")

    def thaw(self) -> None:
        """See `Driver.thaw`."""
        self._call("thaw")

    def mark(self) -> str:
        """See `Driver.mark`."""
        return str(self._call("mark"))

    def is_marked(self, mark: str) -> bool:
        """See `Driver.is_marked`."""
        return bool(self._call("is_marked", mark))

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`."""
        made: VolumeFacts = unpack(VolumeFacts, self._call("begin_test", place))
        return made

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        return bool(self._call("end_test"))

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        found: Divergence = unpack(Divergence, self._call("divergence", guid, limit))
        return found

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`."""
        kept: str | None = unpack(str | None, self._call("rollback", guid, mirror_id, keep_as))
        return kept

    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        self._call("reinstate", name)

    def forget(self) -> None:
        """See `Driver.forget`."""
        self._call("forget")


_Placed = Callable[[MirrordError], MirrordError]


class _RemoteSend(SendStream):
    """A stream that the other end sends."""

    def __init__(self, session: Session, exchange: Exchange, placed: _Placed) -> None:
        super().__init__()
        self._session, self._exchange, self._placed = session, exchange, placed
        self._closed = False
        self.waiting = exchange.waiting

    def read(self) -> bytes | memoryview:
        """The next piece; b"" when all of it has come and its digest is right."""
        self._exchange.waiting = self.waiting
        try:
            data = self._exchange.read()
            if not data:
                self._exchange.result(_QUICK_S)
            return data
        except MirrordError as error:
            raise self._placed(error) from error

    def close(self) -> None:
        """See `SendStream.close`."""
        if self._closed:
            return
        self._closed = True
        if not self._exchange.settled:
            self._exchange.cancel()
        self._session.forget(self._exchange)


class _RemoteReceiver(Receiver):
    """A receiver at the other end."""

    def __init__(self, session: Session, exchange: Exchange, placed: _Placed) -> None:
        super().__init__()
        self._session, self._exchange, self._placed = session, exchange, placed
        self._closed = False
        self.waiting = exchange.waiting

    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        self._exchange.waiting = self.waiting
        try:
            self._exchange.send(chunk)
        except Cancelled:
            raise self._placed(LinkLost("the other end takes no more")) from None
        except MirrordError as error:
            raise self._placed(error) from error

    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        self._exchange.waiting = self.waiting
        try:
            self._exchange.end()
            done: Staging = unpack(Staging, self._exchange.result())
            return done
        except MirrordError as error:
            raise self._placed(error) from error

    def close(self) -> None:
        """End it, and wait until the other end has kept what it keeps."""
        if self._closed:
            return
        self._closed = True
        if not self._exchange.settled:
            # A host that does not answer now does not keep us: it notices by itself.
            told = self._exchange.cancel()
            try:
                if self._session.probe(
                    HURRY_S if told else 0.0, quiet_s=_STALLED_S if told else _UNTOLD_S
                ):
                    self._exchange.waiting = deadline(_CLOSE_S)
                    self._exchange.result()
            except MirrordError:
                pass  # why it ended is known, or does not matter
        self._session.forget(self._exchange)
