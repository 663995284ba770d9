"""Makes the connection to another host, keeps it, and gives it to all mirrors of that host."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence

import mirrord
from mirrord.core.errors import LinkLost, MirrordError, UsageError
from mirrord.core.model import RemoteHost
from mirrord.link import hello as greeting
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import Session
from mirrord.transport.base import ByteStream

#: How long a data port may take to be reached before SSH carries the data, too.
_DATA_CONNECT_S = 3.0
#: How long what is quick may take at the other end.
_QUICK_S = 10.0
#: Sockets of a long link, in which one alone would wait for its window.
_LONG_SOCKETS = 4
#: A round trip from which on a link is long.
_LONG_S = 0.02


class Link:
    """The connection to one host: made when it is first needed, made anew when it broke."""

    def __init__(self, host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> None:
        self.host = host
        self._jumps = tuple(jumps)
        self._guard = threading.Lock()
        self._session: Session | None = None
        #: Names our sessions, so that a new one may take the place of one that hangs.
        self._token = secrets.token_hex(16)
        #: What a person should know of the present connection, each a full sentence.
        self.notes: tuple[str, ...] = ()
        #: What the other end said of itself.
        self.peer = Hello("", ())

    def session(self) -> Session:
        """A session that is alive; raises what hinders it."""
        with self._guard:
            if self._session is None or not self._session.alive:
                self._session = self._connect()
            return self._session

    def close(self) -> None:
        """End the connection."""
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _connect(self) -> Session:
        self.notes = ()
        lane = greeting.new_lane(self._open())
        try:
            self.peer = self._greet(lane, 0)
        except BaseException:
            lane.close()
            raise
        session = Session(lane, compress=self.host.compress)
        session.start()
        try:
            if self.host.transport in ("ssh", "openssh") and self.host.data == "auto":
                self._widen(session)
        except LinkLost:
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
        if host.transport == "unix":
            from mirrord.transport.local import open_unix

            return open_unix(host.address)
        raise UsageError(f"there is no transport '{host.transport}'")

    def _greet(self, lane: Lane, number: int) -> Hello:
        ours = Hello(mirrord.__version__, VERSIONS, self._token, number, os.getpid())
        greeting.say(lane, ours)
        theirs = greeting.expect(lane, timeout_s=self.host.connect_s)
        greeting.agree(VERSIONS, theirs, self.host.name)
        return theirs

    def _widen(self, session: Session) -> None:
        """Open the data channel: TLS connections with one-time certificates, agreed over SSH."""
        from mirrord.system import clock
        from mirrord.transport import tls

        if self._jumps:
            self.notes = ("The data go over SSH, too: a jump host is in between.",)
            return
        own = tls.OneTime.make()
        ping, began_s = session.begin("ping"), clock.monotonic_s()
        asked = session.begin("data_channel", own.certificate)
        try:
            # Only the ping measures the link: for a channel the other end has much to do first.
            ping.result(_QUICK_S)
            trip_s = clock.monotonic_s() - began_s
            port, certificate = asked.result(_QUICK_S)
        except LinkLost:
            raise
        except MirrordError as error:
            self.notes = (f"The data go over SSH, too: {error}.",)
            return
        finally:
            session.forget(ping)
            session.forget(asked)
        count = self.host.sockets or (_LONG_SOCKETS if trip_s > _LONG_S else 1)
        try:
            for number in range(1, count + 1):
                stream = tls.connect(
                    self.host.address, int(port), own, str(certificate), _DATA_CONNECT_S,
                    name=self.host.name,
                )  # fmt: skip
                lane = greeting.new_lane(stream)
                self._greet(lane, number)
                session.attach(lane)
        except MirrordError as error:
            session.narrow()
            self.notes = (f"The data go over SSH, too: {error}.",)
            session.call("narrow", timeout_s=_QUICK_S)
            return
        # The other end reads them since it greeted; it sends over them from this call on.
        session.widen()
        session.call("widened", count, timeout_s=_QUICK_S)


_links: dict[RemoteHost, Link] = {}
_guard = threading.Lock()


def link_to(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> Link:
    """The process's one link to that host."""
    with _guard:
        found = _links.get(host)
        if found is None:
            found = _links[host] = Link(host, jumps)
        return found


def close_all() -> None:
    """End all connections, for the end of the process."""
    with _guard:
        links = list(_links.values())
        _links.clear()
    for link in links:
        link.close()
