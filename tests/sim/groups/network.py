"""Connections to the agents of hosts: the real driver and the real agent, with messages between
them that take their time, are held up by a cut as TCP does it, or are lost with the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrord.agent.pauses import resume_all
from mirrord.agent.rules import Rules
from mirrord.agent.serve import Agent
from mirrord.core.errors import LinkLost, MirrordError, Unreachable, pack_error, unpack_error
from mirrord.core.model import Endpoint, ReceiveRequest, Snapshot, Staging
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.link.driver import RemoteDriver
from mirrord.link.hello import VERSIONS
from mirrord.link.lane import SILENCE_S
from mirrord.system.waiting import Waiting
from tests.sim.groups.processes import Host, Killed, Process, World, sleep_between
from tests.sim.memory import MemoryDriver
from tests.sim.world import Event

#: A message is under way for so long, at least and at most.
_LATENCY_S = (0.0002, 0.003)
_CONNECT_S = 5.0
_POLL_S = 0.05
#: How long an agent may take to end before it is killed (mirrord.agent.takeover).
_PATIENCE_S = 5.0


class HostVolume(MemoryDriver):
    """A volume in memory whose snapshots take some time, and are taken at one moment of it."""

    def __init__(self, world: World, host: Host, location: str) -> None:
        super().__init__(host.disk, location)
        self._world, self._host = world, host

    def make_ready(self, name: str) -> None:
        """See `Source.make_ready`."""
        sleep_between(self._world, 0.0, 0.01)

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Source.take_snapshot`."""
        late_s = self._host.snapshot_s
        sleep_between(self._world, 0.0005, 0.01 + late_s)
        taken = super().take_snapshot(name)
        sleep_between(self._world, 0.0, 0.002 + late_s)
        return taken


class Call:
    """A call, as its caller has it (`Exchange`)."""

    def __init__(self, connection: Connection, number: int, waiting: Waiting) -> None:
        self.waiting, self.number = waiting, number
        self.answered_s = 0.0
        self._connection = connection
        self._answer: Any = None
        self._error: MirrordError | None = None
        self._over = Event(connection.world)

    def settle(self, answer: Any, error: MirrordError | None) -> None:
        """Its answer has arrived."""
        if not self._over.is_set():
            self._answer, self._error = answer, error
            self.answered_s = self._connection.world.clock_of(self._connection.owner.host)
            self._over.set()

    def result(self, timeout_s: float | None = None) -> Any:
        """See `Exchange.result`."""
        if not self.waiting.until(self._over.wait, timeout_s):
            raise LinkLost("the other end does not answer", where=self._connection.peer)
        if self._error is not None:
            raise unpack_error(pack_error(self._error))
        return self._answer


class Connection:
    """A session, its agent at the other end, and what is between them. owner: the process that has
    made it.
    """

    version = VERSIONS[0]
    answered = True

    def __init__(self, world: World, owner: Process, host: Host, rules: Rules) -> None:
        self.world, self.owner, self.host = world, owner, host
        self.peer = host.name
        self.process = Process(world, host, "agent")
        self.agent = Agent(rules, self._opened, host.run)
        self.error: MirrordError | None = None
        self._calls: dict[int, Call] = {}
        self._last = self._running = 0
        self._leaving = False
        #: When the last message to the agent, and from it, arrives.
        self._arrival_s = {True: 0.0, False: 0.0}
        self.ended = Event(world)
        owner.at_end.append(lambda: self._post(True, self.leave))
        self.process.at_end.append(self._gone)

    def _opened(self, endpoint: Endpoint) -> HostVolume:
        return HostVolume(self.world, self.host, endpoint.location)

    # Messages

    def _post(self, to_agent: bool, deliver: Callable[[], None]) -> None:
        """Send something, in order."""
        latency_s = self.world.chance.uniform(*_LATENCY_S) + self.host.slow_s
        at_s = max(self.world.now_s + latency_s, self._arrival_s[to_agent] + 1e-6)
        self._arrival_s[to_agent] = at_s

        def arrive() -> None:
            if self.host.cut_s is not None:
                self.host.late.append(lambda: self._post(to_agent, deliver))
            else:
                deliver()

        self.world.at(at_s, arrive)

    # At the agent

    def start(self) -> Event:
        """The agent begins."""
        return self.world.start(self.process, lambda: resume_all(self.host.run))

    def leave(self) -> None:
        """The session has ended there, in whatever way."""
        if not (self._leaving or self.process.dead):
            self._leaving = True
            self.world.start(self.process, self._leave)

    def _leave(self) -> None:
        self.agent.resume()
        while self._running:
            sleep_between(self.world, 0.001, 0.01)
        self.agent.close()
        self.process.end()

    def _gone(self) -> None:
        """The process has ended: the kernel releases what it had locked, and tells the caller."""
        for opened in self.agent._opened.values():
            opened._drop()
        self.ended.set()
        self._post(False, lambda: self.fail("the agent has ended"))

    def _serve(self, call: Call, method: str, words: list[Any]) -> None:
        if not (self._leaving or self.process.dead):
            self.world.start(self.process, lambda: self._answer(call, method, words))

    def _answer(self, call: Call, method: str, words: list[Any]) -> None:
        self._running += 1
        answer, failure = None, None
        try:
            answer = None if method == "ping" else self.agent.handle(call, method, words)  # type: ignore[arg-type]
        except MirrordError as error:
            failure = error
        finally:
            self._running -= 1
        self._post(False, lambda: call.settle(answer, failure))

    # At the caller (`Session`)

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self.error is None

    def fail(self, why: str) -> None:
        """The session has ended at the caller."""
        if self.error is None:
            self.error = LinkLost("the connection is lost", where=self.peer, why=why)
            for call in list(self._calls.values()):
                call.settle(None, self.error)
            self._post(True, self.leave)

    def begin(self, method: str, *words: Any, waiting: Waiting | None = None) -> Call:
        """See `Session.begin`."""
        if self.owner.dead:
            raise Killed
        if self.error is not None:
            raise unpack_error(pack_error(self.error))
        self._last += 1
        call = self._calls[self._last] = Call(self, self._last, waiting or Waiting())
        self._post(True, lambda: self._serve(call, method, list(words)))
        return call

    def call(
        self,
        method: str,
        *words: Any,
        timeout_s: float | None = None,
        waiting: Waiting | None = None,
    ) -> Any:
        """See `Session.call`."""
        call = self.begin(method, *words, waiting=waiting)
        try:
            return call.result(timeout_s)
        finally:
            self.forget(call)

    def use(self, change: int) -> None:
        """See `Session.use`: it is kept."""

    def forget(self, call: Call) -> None:
        """See `Session.forget`."""
        self._calls.pop(call.number, None)

    def probe(self, within_s: float, *, quiet_s: float = 0.0) -> bool:
        """See `Session.probe`."""
        if self.error is not None:
            return False
        call = self.begin("ping")
        try:
            call.result(within_s)
        except LinkLost:
            self.fail(f"no response within {within_s:g} s")
            return False
        finally:
            self.forget(call)
        return True


class Connections:
    """The connection of a process to a host, which is made when it is needed (`Sessions`)."""

    notes: tuple[str, ...] = ()

    def __init__(self, world: Net, owner: Process, host: Host, rules: Rules) -> None:
        self._world, self._owner, self._host, self._rules = world, owner, host, rules
        self._current: Connection | None = None
        self._connecting = False

    def session(self, waiting: Waiting) -> Any:
        """See `Sessions.session`. There is one agent for a client: an older one is ended first."""
        if self._owner.dead:
            raise Killed
        while self._connecting:
            waiting.sleep_s(_POLL_S)
        if self._current is None or not self._current.alive:
            self._connecting = True
            try:
                self._current = self._connected(waiting)
            finally:
                self._connecting = False
        return self._current

    def _connected(self, waiting: Waiting) -> Connection:
        world, host = self._world, self._host
        until_s = world.now_s + _CONNECT_S
        waiting.sleep_s(world.chance.uniform(0.01, 0.05))
        for old in [one for one in world.agents if one.host is host and not one.process.dead]:
            old_until_s = world.now_s + _PATIENCE_S
            while not old.process.dead:
                self._reach(waiting, max(until_s, old_until_s + _PATIENCE_S))
                old.leave()
                if world.now_s > old_until_s:
                    old.process.kill()
                waiting.sleep_s(_POLL_S)
        self._reach(waiting, until_s)
        made = Connection(world, self._owner, host, self._rules)
        world.agents.append(made)
        made.start().wait()
        return made

    def _reach(self, waiting: Waiting, until_s: float) -> None:
        while self._host.cut_s is not None:
            if self._world.now_s > until_s or waiting.hurry_s:
                raise Unreachable("the host cannot be reached", where=self._host.name)
            waiting.sleep_s(_POLL_S)


class Net(World):
    """A world with a network."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.agents: list[Connection] = []

    def cut(self, host: Host, seconds: float) -> None:
        """Nothing passes to or from a host, and nobody is told (a switch loses its power)."""
        if host.cut_s is None:
            host.cut_s = began_s = self.now_s
            self.at(self.now_s + seconds, lambda: self._mend(host))
            self.at(self.now_s + SILENCE_S, lambda: self._missed(host, began_s))

    def silent(self, agent: Process) -> None:
        """An agent has stopped: its caller misses its heartbeats after some time."""

        def missed() -> None:
            for one in self.agents:
                if one.process is agent and agent.hung:
                    one.fail("no heartbeats")

        self.at(self.now_s + SILENCE_S, missed)

    def _mend(self, host: Host) -> None:
        host.cut_s = None
        late, host.late = host.late, []
        for again in late:
            again()

    def _missed(self, host: Host, began_s: float) -> None:
        """Heartbeats have not come for too long: both ends give the session up."""
        if host.cut_s == began_s:
            for one in self.agents:
                if one.host is host:
                    one.fail("no heartbeats")
                    one.leave()


class _Carried(SendStream):
    """A stream of another host: it is as far away as its host."""

    def __init__(self, inner: SendStream, connection: Connection) -> None:
        super().__init__()
        self._inner, self._connection = inner, connection

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        self._connection.call("ping", waiting=self.waiting)
        return self._inner.read()

    def close(self) -> None:
        """See `SendStream.close`."""
        self._inner.close()


class _Carrier(Receiver):
    """A receiver on another host."""

    def __init__(self, inner: Receiver, connection: Connection) -> None:
        super().__init__()
        self._inner, self._connection = inner, connection

    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        self._connection.call("ping", waiting=self.waiting)
        self._inner.write(chunk)

    def finish(self) -> Staging:
        """See `Receiver.finish`; the answer may be lost."""
        self._connection.call("ping", waiting=self.waiting)
        done = self._inner.finish()
        self._connection.call("ping", waiting=self.waiting)
        return done

    def close(self) -> None:
        """See `Receiver.close`."""
        self._inner.close()


class HostDriver(RemoteDriver):
    """A volume of another host. Its streams are not those of the wire protocol."""

    def _there(self) -> tuple[Connection, MemoryDriver]:
        found: Any = self._try(lambda session, number: (session, number))
        driver: Any = found[0].agent._opened[found[1]].driver
        return found[0], driver

    def send(
        self, base: str | None, incremental: str, *, checkpoint: dict[str, int | str] | None = None
    ) -> SendStream:
        """See `Source.send`."""
        connection, driver = self._there()
        connection.call("ping", waiting=self.waiting)
        return _Carried(driver.send(base, incremental, checkpoint=checkpoint), connection)

    def receive(self, request: ReceiveRequest) -> Receiver:
        """See `Destination.receive`."""
        connection, driver = self._there()
        connection.call("ping", waiting=self.waiting)
        return _Carrier(driver.receive(request), connection)
