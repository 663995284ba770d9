"""An agent at work: greets, serves one session over a stream, and leaves nothing locked behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import mirrord
from mirrord.agent.rules import Rules
from mirrord.agent.serve import Agent
from mirrord.agent.takeover import only_agent
from mirrord.core.errors import MirrordError, ProtocolError, UsageError
from mirrord.drivers.registry import Drivers
from mirrord.link import hello as greeting
from mirrord.link.exchange import Exchange
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import Session
from mirrord.system import clock
from mirrord.system.explain import explained
from mirrord.system.paths import Paths
from mirrord.transport.base import ByteStream

_GREETING_S = 30.0
#: How long a data port stays open for its connections.
_DATA_PORT_S = 20.0
_LANES_MAX = 16


class Settings(NamedTuple):
    """rules: what the peer may do. ports: for the data channel, lowest and highest; 0: any.
    data: whether there may be one. compress: of what we send. peer: its name, where it has one.
    """

    rules: Rules
    ports: tuple[int, int] = (0, 0)
    data: bool = True
    compress: str = "auto"
    peer: str = ""

    @property
    def principal(self) -> str:
        """As what the peer was let in."""
        return f"{self.peer}: {self.rules}"


def serve_stdio(settings: Settings, paths: Paths) -> None:
    """Be the agent on the standard input and output, as SSH starts it; until the peer ends it."""
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "'mirrord agent' speaks to another mirrord, not to a person",
            hint="It is started over SSH by a mirrord on another host. There, 'mirrord host add "
            "NAME' sets that up; here, it needs an entry in ~/.ssh/authorized_keys.",
        )
    from mirrord.transport.fds import FdStream

    # What is made for a peer is nobody else's, but where a driver says so.
    os.umask(0o077)
    reading, writing = os.dup(0), os.dup(1)
    # Whatever prints from now on must not get between the frames.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    serve(FdStream(reading, writing, _client_name()), settings, Serving(paths))


def _client_name() -> str:
    return os.environ.get("SSH_CONNECTION", "").partition(" ")[0] or "the client"


class Serving:
    """What the sessions of one process share: a listening agent has many at the same time."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.drivers = Drivers()
        self._guard = threading.Lock()
        #: By their client and its token.
        self._sessions: dict[tuple[str, str], Session] = {}

    def end(self, name: tuple[str, str]) -> None:
        """End the one of that client, if there is one: the client has begun a new one."""
        with self._guard:
            former = self._sessions.get(name)
        if former is not None:
            former.close()

    @contextmanager
    def having(self, name: tuple[str, str], session: Session) -> Iterator[None]:
        """In this block it is served."""
        with self._guard:
            self._sessions[name] = session
        try:
            yield
        finally:
            with self._guard:
                if self._sessions.get(name) is session:  # not that of a client that came back
                    del self._sessions[name]


def serve(stream: ByteStream, settings: Settings, serving: Serving) -> MirrordError | None:
    """Serve one session until it ends; returns why it did."""
    lane = greeting.new_lane(stream)
    try:
        theirs = greeting.expect(lane, timeout_s=_GREETING_S)
        with explained(), _admitted(lane, theirs, settings, serving):
            greeting.say(lane, _ours(settings, theirs))
            return _serve_session(lane, settings, theirs, serving)
    finally:
        lane.close()


def _ours(settings: Settings, theirs: Hello) -> Hello:
    about = str(settings.rules)
    return Hello(mirrord.__version__, VERSIONS, theirs.token, theirs.lane, os.getpid(), about)


def _admitted(
    lane: Lane, theirs: Hello, settings: Settings, serving: Serving
) -> AbstractContextManager[None]:
    """The session's place; what is against it, the other end is told before it is raised."""
    if not set(VERSIONS) & set(theirs.versions):
        # It says so itself, with both versions: it must only learn ours.
        greeting.say(lane, Hello(mirrord.__version__, VERSIONS))
        greeting.agree(VERSIONS, theirs, lane.stream.peer)
    serving.end((settings.principal, theirs.token))
    return _told(lane, only_agent(serving.paths, theirs.token, settings.principal))


class _told(AbstractContextManager[None]):
    """Tells the other end why it could not be entered."""

    def __init__(self, lane: Lane, inner: AbstractContextManager[None]) -> None:
        self._lane, self._inner = lane, inner

    def __enter__(self) -> None:
        try:
            with explained():
                self._inner.__enter__()
        except MirrordError as error:
            greeting.refuse(self._lane, error)
            raise

    def __exit__(self, *what: object) -> None:
        self._inner.__exit__(*what)  # type: ignore[arg-type]


def _serve_session(
    lane: Lane, settings: Settings, theirs: Hello, serving: Serving
) -> MirrordError | None:
    agent = Agent(settings.rules, serving.drivers.open)
    session = Session(lane, handler=agent.handle, compress=settings.compress)
    channel = DataChannel(session, settings, theirs.token)
    agent.extra = {
        "data_channel": channel.open,
        "widened": channel.widened,
        "narrow": channel.narrow,
        "ping": lambda _exchange: None,
    }
    with serving.having((settings.principal, theirs.token), session):
        session.start()
        try:
            return session.wait()
        finally:
            session.close()
            channel.close()
            session.drain()
            agent.close()


class DataChannel:
    """The further lanes of a session: TLS connections, each end's certificate for once only."""

    def __init__(self, session: Session, settings: Settings, token: str) -> None:
        self._session = session
        self._settings = settings
        self._token = token
        self._listener: object | None = None
        self._attached = threading.Semaphore(0)

    def open(self, _exchange: Exchange, certificate: object) -> list[object]:
        """Listen for a peer that shows `certificate` (PEM); the port and our certificate."""
        from mirrord.transport import tls

        if not self._settings.data:
            raise UsageError("this agent was told to open no data port")
        if not isinstance(certificate, str) or self._listener is not None:
            raise ProtocolError("a data channel cannot be opened like that")
        own = tls.OneTime.make()
        listener = tls.Listener(own, certificate, self._settings.ports)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return [listener.port, own.certificate]

    def _accept(self, listener: object) -> None:
        from mirrord.transport import tls

        assert isinstance(listener, tls.Listener)
        try:
            for number in range(1, _LANES_MAX + 1):
                stream = listener.accept(_DATA_PORT_S)
                lane = greeting.new_lane(stream)
                theirs = greeting.expect(lane, timeout_s=_GREETING_S)
                if theirs.token != self._token or theirs.lane != number:
                    lane.close()
                    return
                # The client sends over it as soon as it is greeted: read first.
                greeting.say(lane, _ours(self._settings, theirs))
                self._session.attach(lane)
                self._attached.release()
        except (MirrordError, OSError):
            return  # nobody came (any more): the client knows, and goes on without
        finally:
            listener.close()

    def widened(self, exchange: Exchange, count: object) -> None:
        """The client has all the lanes it wanted: send over them, too."""
        if not isinstance(count, int) or not 0 < count <= _LANES_MAX:
            raise ProtocolError("a data channel cannot be widened like that")
        until_s = clock.monotonic_s() + _GREETING_S
        for _ in range(count):
            # The client was greeted a moment before we count its lane.
            left_s = max(0.0, until_s - clock.monotonic_s())
            if not exchange.waiting.until(lambda s: self._attached.acquire(timeout=s), left_s):
                raise ProtocolError("not all lanes of the data channel are there")
        self.close()
        self._session.widen()

    def narrow(self, _exchange: Exchange) -> None:
        """The client could not connect."""
        self.close()
        self._session.narrow()

    def close(self) -> None:
        """Listen no more."""
        from mirrord.transport import tls

        if isinstance(self._listener, tls.Listener):
            self._listener.close()
