"""The connection to another host, shared by all mirrors of that host."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import mirrord
from mirrord.core.errors import LinkLost, MirrordError, copy_of
from mirrord.core.model import RemoteHost
from mirrord.link import hello as greeting
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import Session
from mirrord.system import clock
from mirrord.system.native import Panic
from mirrord.system.waiting import Waiting, deadline
from mirrord.transport.base import ByteStream
from mirrord.wire.values import unpack

#: Timeout for connecting to a data port; after it, SSH carries the data, too.
_DATA_CONNECT_S = 3.0
#: How long a failure to connect is reported again, without a new attempt, to callers in a hurry.
_FRESH_S = 5.0
#: Timeout for quick calls at the other end.
_QUICK_S = 10.0
#: Sockets of a long link, where a single one would be limited by its window.
_LONG_SOCKETS = 4
#: Round-trip time from which a link counts as long.
_LONG_S = 0.02


class DataPort(NamedTuple):
    """The port of the data channel at the other end, and the certificate that it presents."""

    port: int
    certificate: str


class Link:
    """The connection to one host: made at its first use, and made again after it broke."""

    def __init__(self, host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> None:
        self.host = host
        self._jumps = tuple(jumps)
        self._guard = threading.Lock()
        self._session: Session | None = None
        self._attempt: _ConnectAttempt | None = None
        #: When the last attempt to connect failed, and why.
        self._failed: tuple[float, MirrordError] | None = None
        #: Whether another link has taken its place.
        self._retired = False
        #: Identifies our sessions, so that a new one can replace one that hangs.
        self._token = secrets.token_hex(16)
        #: Notes on the current connection for the user, each a full sentence.
        self.notes: tuple[str, ...] = ()
        #: The other end's HELLO.
        self.peer = Hello("", ())

    def session(self, waiting: Waiting) -> Session:
        """A live session; raises the error that prevents one."""
        with self._guard:
            if self._session is not None and self._session.alive:
                return self._session
            if self._attempt is None:
                self._raise_recent_failure(waiting)
                self._attempt = _ConnectAttempt(self)
            attempt = self._attempt
            attempt.callers += 1
        try:
            return attempt.result(waiting)
        except BaseException:
            self._leave(attempt)
            raise

    def _leave(self, attempt: _ConnectAttempt) -> None:
        """A caller stops waiting for an attempt."""
        with self._guard:
            attempt.callers -= 1
            unused = self._retired and not attempt.callers
            session = self._session if unused else None
        if session is not None:
            session.use(0)

    def _raise_recent_failure(self, waiting: Waiting) -> None:
        """A report on many mirrors of an unreachable host does not wait for each of them."""
        if waiting.hurry_s and self._failed is not None:
            failed_s, error = self._failed
            if clock.monotonic_s() < failed_s + _FRESH_S:
                raise copy_of(error)

    def close(self) -> None:
        """End the connection."""
        with self._guard:
            session, self._session, self._attempt = self._session, None, None
        if session is not None:
            session.close()

    def retire(self) -> None:
        """The host's settings have changed: end the connection when no volume is open over it."""
        with self._guard:
            self._retired, session = True, self._session
        if session is not None:
            session.kept = False
            session.use(0)

    def take(
        self, attempt: _ConnectAttempt, session: Session | None, error: MirrordError | None
    ) -> None:
        """Take the result of an attempt to connect."""
        with self._guard:
            self._failed = (clock.monotonic_s(), error) if error is not None else None
            wanted = self._attempt is attempt
            if wanted:
                self._attempt = None
                # Nobody waits for the session of a link that was replaced: nobody would end it.
                wanted = attempt.callers > 0 or not self._retired
            if wanted:
                self._session = session
            if session is not None:
                session.kept = not self._retired
        if session is not None and not wanted:
            session.close()

    def connect(self) -> Session:
        """A session over a new connection; raises the error that prevents one."""
        self.notes = ()
        lane = greeting.new_lane(self._open())
        try:
            self.peer, version = self._greet(lane, 0)
        except BaseException:
            lane.close()
            raise
        session = Session(lane, compress=self.host.compress, version=version)
        session.start()
        try:
            if self.host.transport in ("ssh", "openssh") and self.host.data == "auto":
                self._widen(session)
        except BaseException:
            session.close()
            raise
        return session

    def _open(self) -> ByteStream:
        host = self.host
        if host.transport == "ssh":
            from mirrord.transport.ssh import open_ssh

            return open_ssh(host, self._jumps)
        if host.transport == "openssh":
            from mirrord.transport.openssh import open_openssh

            return open_openssh(host, self._jumps)
        if host.transport == "tls":
            from mirrord.transport.pki import connect_tls

            return connect_tls(host)
        from mirrord.transport.local import open_unix

        return open_unix(host.address, name=host.name)

    def _greet(self, lane: Lane, number: int) -> tuple[Hello, int]:
        """Exchange the greetings; that of the other end, and the version agreed on."""
        ours = Hello(mirrord.__version__, VERSIONS, self._token, number, os.getpid())
        with suppress(LinkLost):  # a program that ended at once: what is read says why
            greeting.say(lane, ours)
        theirs = greeting.expect(lane, timeout_s=self.host.connect_s)
        return theirs, greeting.agree(VERSIONS, theirs, self.host.name)

    def _widen(self, session: Session) -> None:
        """Open the data channel: TLS connections with one-time certificates, agreed over SSH."""
        from mirrord.transport import tls

        try:
            address = self._reached_at()
        except MirrordError as error:  # the program ssh understands more than we do
            self.notes = (f"Data is sent over SSH, too: {error}.",)
            return
        if not address:
            self.notes = ("Data is sent over SSH, too: the connection uses a jump host.",)
            return
        own = tls.OneTime.make()
        ping, began_s = session.begin("ping"), clock.monotonic_s()
        asked = session.begin("data_channel", own.certificate)
        try:
            # Only the ping measures the link: opening a channel takes time at the other end.
            ping.result(_QUICK_S)
            trip_s = clock.monotonic_s() - began_s
            port, certificate = unpack(DataPort, asked.result(_QUICK_S))
        except LinkLost:
            raise
        except MirrordError as error:
            self.notes = (f"Data is sent over SSH, too: {error}.",)
            return
        finally:
            session.forget(ping)
            session.forget(asked)
        count = self.host.sockets or (_LONG_SOCKETS if trip_s > _LONG_S else 1)
        lanes: list[Lane] = []
        try:
            for number in range(1, count + 1):
                stream = tls.connect(
                    address,
                    port,
                    own,
                    certificate,
                    _DATA_CONNECT_S,
                    name=self.host.name,
                )
                lanes.append(greeting.new_lane(stream))
                self._greet(lanes[-1], number)
                session.attach(lanes[-1])
            # The other end reads them since its greeting; after "widened" it also sends over them.
            session.widen(count)
        except MirrordError as error:
            self.notes = (f"Data is sent over SSH, too: {error}.",)
            self._narrow(session, lanes)
            return
        session.call("widened", count, timeout_s=_QUICK_S)

    def _narrow(self, session: Session, lanes: Sequence[Lane]) -> None:
        """Use the first lane only: both ends drop these lanes before they are closed."""
        session.narrow()
        try:
            session.call("narrow", timeout_s=_QUICK_S)
        finally:
            for lane in lanes:
                lane.close()

    def _reached_at(self) -> str:
        """The address of the host if it is connected to directly, "" otherwise."""
        from mirrord.transport.target import resolve

        if self._jumps:
            return ""
        target = resolve(self.host)
        return "" if target.jumps else target.address


class _ConnectAttempt:
    """A connection being made in a thread; a caller may stop waiting for it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        #: How many wait for it; changed under the link's guard.
        self.callers = 0
        self._began_s = clock.monotonic_s()
        self._done = threading.Event()
        self._session: Session | None = None
        self._error: MirrordError | None = None
        threading.Thread(target=self._run, name=f"connect {link.host.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._session = self._link.connect()
        except MirrordError as error:
            self._error = error
        except (Exception, Panic) as error:  # any error must reach the callers that wait
            self._error = MirrordError(f"unexpected: {type(error).__name__}: {error}")
        self._link.take(self, self._session, self._error)
        self._done.set()

    def result(self, waiting: Waiting) -> Session:
        """The session, once it is made; raises the error that prevented it."""
        if waiting.hurry_s:
            waiting = deadline(self._began_s + waiting.hurry_s - clock.monotonic_s())
        waiting.until(self._done.wait)
        if self._session is None:
            assert self._error is not None
            raise copy_of(self._error)
        return self._session
