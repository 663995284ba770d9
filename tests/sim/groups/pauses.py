"""Applications that can be paused, and guards: the real program, in a simulated process."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from mirrord.agent import pauses as agent_pauses
from mirrord.agent import serve
from mirrord.engine import crew
from mirrord.pausers import guard, registry, session
from mirrord.pausers.contract import Pauser
from mirrord.pausers.guard import Order
from mirrord.pausers.record import resume_left
from tests.sim.groups.processes import (
    Host,
    Killed,
    Process,
    Threads,
    World,
    queues,
    sleep_between,
    wait,
)
from tests.sim.world import Event

KIND = "sim"
#: A pause may be longer than `pause_max` by what resuming takes.
SLACK_S = 0.2
_START_S = (0.005, 0.03)
_END_S = 90.0


class Application:
    """What writes to the volumes of a host, as far as it can be paused. late_s: how long something
    else than it kept it from going on while it was paused (its host hung, its guard was killed).
    """

    def __init__(self, world: World, host: Host, max_s: float) -> None:
        self._world, self.host, self._max_s = world, host, max_s
        self.paused = self.hung = False
        #: Counts the pauses.
        self.number = 0
        self.since_s = self.late_s = 0.0
        self._blocked: list[Callable[[], None]] = []

    def does(self, what: Callable[[], None]) -> None:
        """Do it, when it is not paused."""
        if self.paused or self.hung:
            self._blocked.append(what)
        else:
            what()

    def pause(self) -> None:
        """It stands still from now on."""
        if not self.paused:
            self.paused, self.since_s, self.late_s = True, self._world.now_s, 0.0
            self.number += 1
            self._watch(self.number)

    def resume(self) -> None:
        """It goes on."""
        self.paused = False
        self._go_on()

    def hang(self, seconds: float) -> None:
        """Its host stands still."""
        self.hung = True
        self.late_s += seconds
        self._world.at(self._world.now_s + seconds, self._end_hang)

    def _end_hang(self) -> None:
        self.hung = False
        self._go_on()

    def _go_on(self) -> None:
        if not (self.paused or self.hung):
            blocked, self._blocked = self._blocked, []
            for what in blocked:
                self._world.at(self._world.now_s, partial(self.does, what))

    def _watch(self, number: int) -> None:
        """It is not paused for longer than it may be."""
        if not (self.paused and self.number == number):
            return
        until_s = self.since_s + self._max_s + self.late_s + SLACK_S
        if self._world.now_s >= until_s:
            passed_s = self._world.now_s - self.since_s
            self._world.violated(
                f"the application of '{self.host.name}' was paused for too long: {passed_s:.2f} s"
            )
        else:
            self._world.at(until_s, partial(self._watch, number))


class Freezer(Pauser):
    """Pauses the application of a host."""

    def __init__(self, world: World, apps: dict[str, Application], kind: str, name: str) -> None:
        super().__init__(kind, name)
        self._world, self._app = world, apps[name]
        self._number = 0

    def lock_path(self) -> Path | None:
        """See `Pauser.lock_path`."""
        return self._app.host.run

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`."""

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`."""
        took_s = self._world.chance.uniform(0.0005, 0.02) + self._app.host.pause_s
        self._world.sleep_s(min(took_s, timeout_s))
        if took_s > timeout_s:
            raise self.failed("the application was not paused in time")
        self._app.pause()
        self._number = self._app.number

    def is_paused(self) -> bool:
        """See `Pauser.is_paused`."""
        return self._app.paused and self._app.number == self._number

    def resume(self) -> None:
        """See `Pauser.resume`."""
        sleep_between(self._world, 0.0, 0.002)
        self._app.resume()


class Pipe:
    """The two ends of a guard's socket."""

    def __init__(self, world: World, owner: Process) -> None:
        self._world, self._owner = world, owner
        #: What the guard reads, and whether it was closed; what its owner reads.
        self.letters: deque[bytes] = deque()
        self.closed = self.over = False
        self.answers = b""
        self.asked, self.told = Event(world), Event(world)

    # The owner's end, as a socket

    def send(self, data: bytes) -> None:
        """See `socket.send`."""
        if self._owner.dead:
            raise Killed
        if self.over:
            raise BrokenPipeError
        self.letters.append(data)
        self.asked.set()

    def shutdown(self, _how: int) -> None:
        """See `socket.shutdown`."""
        self.close()

    def close(self) -> None:
        """The end of the guard's input."""
        self.closed = True
        self.asked.set()

    def recv(self, _most: int) -> bytes:
        """See `socket.recv`."""
        data, self.answers = self.answers, b""
        return data

    def readable(self, seconds: float) -> bool:
        """Wait for an answer, or the end."""
        if not self.answers and not self.over:
            self.told.clear()
            self.told.wait(seconds)
        return bool(self.answers or self.over)

    # The guard's end

    def end(self) -> None:
        """The guard has ended."""
        self.over = True
        self.told.set()

    def say(self, event: str, **facts: object) -> None:
        """An answer of the guard."""
        self.answers += json.dumps({"event": event, **facts}).encode() + b"\n"
        self.told.set()


class Poll:
    """`select.poll` of such a socket."""

    def register(self, pipe: Pipe, _events: int) -> None:
        """See `poll.register`."""
        self._pipe = pipe

    def poll(self, timeout_ms: float) -> bool:
        """See `poll.poll`."""
        return self._pipe.readable(timeout_ms / 1000)


class GuardProcess(Process):
    """The process of a guard."""

    def __init__(self, world: World, owner: Process, order: Order) -> None:
        super().__init__(world, owner.host, "guard")
        self.order, self.owner = order, owner
        self.pipe = Pipe(world, owner)
        self.at_end.append(self.pipe.end)
        owner.at_end.append(self.pipe.close)


class Guards:
    """Starts guards, and sees what they do. observed: called with what a guard does."""

    def __init__(self, world: World, observed: Callable[[GuardProcess, str, Any], None]) -> None:
        self.world, self.observed = world, observed

    def started(self, order: Order) -> GuardProcess:
        """Start a guard, for the process that runs."""
        owner = self.world.process
        assert owner is not None
        process = GuardProcess(self.world, owner, order)

        def work() -> None:
            sleep_between(self.world, *_START_S)
            guard.run(order)
            process.end()

        self.world.start(process, work)
        return process

    def _process(self) -> GuardProcess:
        found = self.world.process
        assert isinstance(found, GuardProcess), found
        return found

    def say(self, event: str, **facts: object) -> None:
        """What stands for `guard._say`."""
        process = self._process()
        process.pipe.say(event, **facts)
        self.observed(process, event, facts)

    def asked(self, until_s: float | None) -> bytes:
        """What stands for `guard._asked`."""
        pipe = self._process().pipe
        while not (pipe.letters or pipe.closed):
            left_s = None if until_s is None else until_s - self.world.monotonic_s()
            if left_s is not None and left_s <= 0:
                return b""
            pipe.asked.clear()
            pipe.asked.wait(left_s)
        return pipe.letters.popleft() if pipe.letters else b"e"


class Guard(session.Guard):
    """A guard, as its owner has it: the real one, but for how the process is started and ended."""

    def __init__(self, guards: Guards, order: Order) -> None:
        self._order, self._rest = order, b""
        self._program = guards.started(order)
        self._socket: Any = self._program.pipe
        self._world = guards.world

    def close(self) -> None:
        """See `Guarding.close`."""
        self._socket.close()
        until_s = self._world.now_s + _END_S
        while not self._program.dead:
            if self._world.now_s > until_s:
                self._program.kill()
            self._socket.readable(0.01)
            sleep_between(self._world, 0.001, 0.002)
        resume_left(Path(self._order.record))


@contextmanager
def ports(
    world: World,
    apps: dict[str, Application],
    observed: Callable[[GuardProcess, str, Any], None],
) -> Iterator[None]:
    """Put the simulated ports in the place of the real ones."""
    guards = Guards(world, observed)
    made = partial(Guard, guards)
    kinds = {KIND: partial(Freezer, world, apps)}
    with ExitStack() as stack:
        for target, name, port in (
            (session, "Guard", made),
            (agent_pauses, "Guard", made),
            (session, "select", SimpleNamespace(poll=Poll, POLLIN=1)),
            (guard, "_asked", guards.asked),
            (guard, "_say", guards.say),
            (guard, "ThreadPoolExecutor", partial(Threads, world)),
            (guard, "wait", partial(wait, world)),
            (crew, "ThreadPoolExecutor", partial(Threads, world)),
            (crew, "wait", partial(wait, world)),
            (crew, "queue", queues(world)),
            (registry, "_KINDS", kinds),
            (serve, "KINDS", ("memory",)),
        ):
            stack.enter_context(patch.object(target, name, port))
        yield
