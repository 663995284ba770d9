"""Runs an agent: greets, serves one session over a stream, and releases all locks at its end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import mirrord
from mirrord.agent.pauses import resume_first
from mirrord.agent.rules import Rules
from mirrord.agent.serve import Agent
from mirrord.agent.takeover import only_agent
from mirrord.config.host import load as load_host
from mirrord.config.hosts import SOCKETS_MAX
from mirrord.core.errors import MirrordError, ProtocolError, UsageError
from mirrord.drivers.registry import Drivers
from mirrord.link import hello as greeting
from mirrord.link.exchange import Exchange
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import Session
from mirrord.system import clock, files
from mirrord.system.explain import explained
from mirrord.system.paths import Paths
from mirrord.transport.base import ByteStream

if TYPE_CHECKING:
    from mirrord.transport.tls import Listener

_GREETING_S = 30.0
#: How long a data port waits for each connection.
_DATA_PORT_S = 20.0


class Settings(NamedTuple):
    """rules: what the peer may do. ports: for the data channel, lowest and highest; 0: any.
    data: whether one may be opened. compress: for data sent. peer: its name, if it has one.
    """

    rules: Rules
    ports: tuple[int, int] = (0, 0)
    data: bool = True
    compress: str = "auto"
    peer: str = ""

    @property
    def principal(self) -> str:
        """The identity and the rules with which the peer was accepted."""
        return f"{self.peer}: {self.rules}"


def serve_stdio(settings: Settings, paths: Paths) -> None:
    """Serve on standard input and output, as started by SSH, until the session ends."""
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "'mirrord agent' is not an interactive command",
            hint="It is started over SSH by mirrord on another host. To set that up, run 'mirrord "
            "host add NAME' there, and add the key to ~/.ssh/authorized_keys here.",
        )
    from mirrord.transport.fds import FdStream

    # Files made for a peer are private, unless a driver sets other permissions.
    os.umask(0o077)
    reading, writing = os.dup(0), os.dup(1)
    # Output of anything that prints from now on must not get between the frames.
    os.dup2(2, 1)
    with files.opened(os.devnull) as nothing:
        os.dup2(nothing, 0)
    client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0] or "the client"
    serve(FdStream(reading, writing, client), settings, Serving(paths))


class Serving:
    """Shared by the sessions of one process: a listening agent serves many concurrently."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.drivers = Drivers(lambda: load_host(paths.host).btrfs_receiver)
        self._guard = threading.Lock()
        #: By the client's principal and its token.
        self._sessions: dict[tuple[str, str], Session] = {}

    def end(self, name: tuple[str, str]) -> None:
        """End the client's previous session, if there is one: the client has started a new one."""
        with self._guard:
            previous = self._sessions.get(name)
        if previous is not None:
            previous.close()

    @contextmanager
    def having(self, name: tuple[str, str], session: Session) -> Iterator[None]:
        """The session is registered while this block runs."""
        with self._guard:
            self._sessions[name] = session
        try:
            yield
        finally:
            with self._guard:
                if self._sessions.get(name) is session:  # not replaced by a newer one
                    del self._sessions[name]


def serve(stream: ByteStream, settings: Settings, serving: Serving) -> MirrordError | None:
    """Serve one session until it ends; returns the reason."""
    with closing(greeting.new_lane(stream)) as lane:
        theirs = greeting.expect(lane, timeout_s=_GREETING_S)
        with explained(), _admitted(lane, theirs, settings, serving):
            greeting.say(lane, _ours(settings, theirs))
            return _serve_session(lane, settings, theirs, serving)


def _ours(settings: Settings, theirs: Hello) -> Hello:
    about = str(settings.rules)
    return Hello(mirrord.__version__, VERSIONS, theirs.token, theirs.lane, os.getpid(), about)


@contextmanager
def _admitted(lane: Lane, theirs: Hello, settings: Settings, serving: Serving) -> Iterator[None]:
    """The right to serve the session; an error is sent to the other end, and then raised."""
    if not set(VERSIONS) & set(theirs.versions):
        # It reports the mismatch itself, with both versions: it only needs ours.
        greeting.say(lane, Hello(mirrord.__version__, VERSIONS))
        greeting.agree(VERSIONS, theirs, lane.stream.peer)
    serving.end((settings.principal, theirs.token))
    with ExitStack() as stack:
        try:
            with explained():
                stack.enter_context(only_agent(serving.paths, theirs.token, settings.principal))
        except MirrordError as error:
            greeting.refuse(lane, error)
            raise
        yield


def _serve_session(
    lane: Lane, settings: Settings, theirs: Hello, serving: Serving
) -> MirrordError | None:
    agent = Agent(settings.rules, serving.drivers.open, serving.paths.run / "agents")
    version = greeting.agree(VERSIONS, theirs, lane.stream.peer)
    session = Session(lane, handler=agent.handle, compress=settings.compress, version=version)
    channel = DataChannel(session, settings, theirs.token)
    agent.extra = {
        "data_channel": channel.open,
        "widened": channel.widened,
        "narrow": channel.narrow,
        "ping": lambda _exchange: None,
    }
    resume_first(serving.paths.run / "agents")
    with serving.having((settings.principal, theirs.token), session):
        session.start()
        try:
            return session.wait()
        finally:
            session.close()
            channel.close()
            agent.resume()
            session.drain()
            agent.close()


class DataChannel:
    """The additional lanes of a session: TLS connections with one-time certificates."""

    def __init__(self, session: Session, settings: Settings, token: str) -> None:
        self._session = session
        self._settings = settings
        self._token = token
        self._listener: Listener | None = None
        self._attached = threading.Semaphore(0)
        #: Guards `_closed`: no lane is attached any more.
        self._guard = threading.Lock()
        self._closed = False

    def open(self, _exchange: Exchange, certificate: object) -> list[object]:
        """Listen for a peer that presents `certificate` (PEM); the port and our certificate."""
        from mirrord.transport import tls

        if not self._settings.data:
            raise UsageError("the data channel is disabled for this agent")
        if not isinstance(certificate, str) or self._listener is not None:
            raise ProtocolError("invalid request to open a data channel")
        own = tls.OneTime.make()
        listener = tls.Listener(own, certificate, self._settings.ports)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return [listener.port, own.certificate]

    def _accept(self, listener: Listener) -> None:
        try:
            for number in range(1, SOCKETS_MAX + 1):
                lane = greeting.new_lane(listener.accept(_DATA_PORT_S))
                if not self._attach(lane, number):
                    lane.close()
                    return
                self._attached.release()
        except (MirrordError, OSError):
            return  # no (more) connections: the client knows, and continues without them
        finally:
            listener.close()

    def _attach(self, lane: Lane, number: int) -> bool:
        """Whether the lane with that number belongs to the session now."""
        try:
            theirs = greeting.expect(lane, timeout_s=_GREETING_S)
            with self._guard:
                if self._closed or theirs.token != self._token or theirs.lane != number:
                    return False
                # The client sends over it as soon as it is greeted, so it must be attached.
                greeting.say(lane, _ours(self._settings, theirs))
                self._session.attach(lane)
        except MirrordError:
            return False
        return True

    def widened(self, exchange: Exchange, count: object) -> None:
        """The client has connected all its lanes: send over them, too."""
        if not isinstance(count, int) or not 0 < count <= SOCKETS_MAX:
            raise ProtocolError("invalid request to widen a data channel")
        until_s = clock.monotonic_s() + _GREETING_S
        for _ in range(count):
            # The client is greeted shortly before its lane is counted.
            left_s = max(0.0, until_s - clock.monotonic_s())
            if not exchange.waiting.until(lambda s: self._attached.acquire(timeout=s), left_s):
                raise ProtocolError("not all connections of the data channel were made in time")
        self.close()
        self._session.widen(count)

    def narrow(self, _exchange: Exchange) -> None:
        """The client could not connect its lanes: drop them."""
        self.close()
        for lane in self._session.narrow():
            lane.close()

    def close(self) -> None:
        """Stop listening, and attach no more lanes."""
        with self._guard:
            self._closed = True
        if self._listener is not None:
            self._listener.close()
