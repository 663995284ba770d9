"""Processes on hosts, each with the clocks of its host: they are killed, or hang."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from mirrord.system import clock
from tests.sim.checks import Violation
from tests.sim.volume import Disk
from tests.sim.world import Event, Sim, Worker


class Killed(BaseException):
    """The process was killed: raised where a thread of it waits, so that this ends."""


class Host:
    """A host: its volumes, its clocks, and whether its network is cut.

    off_s: by how much its wall clock is wrong. booted_s: what its monotonic clock showed at first.
    """

    def __init__(
        self, name: str, folder: Path, *, off_s: float = 0.0, booted_s: float = 0.0
    ) -> None:
        self.name = name
        self.off_s, self.booted_s = off_s, booted_s
        self.disk = Disk()
        self.run = folder / f"host-{name or 'coordinator'}"
        self.run.mkdir()
        #: From when on nothing arrives from there, and nothing there.
        self.cut_s: float | None = None
        #: What is under way meanwhile: it arrives when the network is mended.
        self.late: list[Callable[[], None]] = []
        #: By how much a message to or from there is slower than usual.
        self.slow_s = 0.0
        #: How long the next snapshots there, and the next pause, take in addition.
        self.snapshot_s = self.pause_s = 0.0
        self.hung_until_s = 0.0


class Process:
    """A process. `ended` is called when it has ended, also by a kill."""

    def __init__(self, world: World, host: Host, name: str) -> None:
        self._world = world
        self.host, self.name = host, name
        self.dead = self.hung = False
        self.waiting: list[Worker] = []
        self.at_end: list[Callable[[], None]] = []
        world.processes.append(self)
        if host.hung_until_s > world.now_s:
            self.hang(host.hung_until_s - world.now_s)

    def end(self) -> None:
        """It has ended: the kernel closes what it has open."""
        if not self.dead:
            self.dead, self.hung, self.waiting = True, False, []
            self._world.processes.remove(self)
            for last in self.at_end:
                last()

    def kill(self) -> None:
        """SIGKILL; all its threads end where they are."""
        self.end()
        for worker in self._world.workers_of(self):
            if worker is not self._world.current:
                self._world.kill(worker, Killed())
        current = self._world.current
        if current is not None and current.context is self:
            raise Killed

    def hang(self, seconds: float) -> None:
        """Nothing in it goes on for so long (SIGSTOP, or the host is suspended)."""
        self.hung = True
        self._world.at(self._world.now_s + seconds, self._go_on)

    def _go_on(self) -> None:
        self.hung = False
        waiting, self.waiting = self.waiting, []
        for worker in waiting:
            self._world.wake(worker)


class World(Sim):
    """A simulation of processes on hosts: clocks are those of the host whose process asks."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self.processes: list[Process] = []
        self.chance = random.Random(0)

    @property
    def process(self) -> Process | None:
        """The process whose code runs."""
        found = self.current.context if self.current is not None else None
        return found if isinstance(found, Process) else None

    def now_ns(self) -> int:
        """The wall clock of the host."""
        process = self.process
        return super().now_ns() + (int(process.host.off_s * 1e9) if process is not None else 0)

    def monotonic_s(self) -> float:
        """The monotonic clock of the host."""
        process = self.process
        return self.clock_of(process.host) if process is not None else self.now_s

    def clock_of(self, host: Host) -> float:
        """The monotonic clock of a host."""
        return self.now_s + host.booted_s

    def wait(self, timeout_s: float | None) -> None:
        """As in `Sim`; a process that hangs waits on."""
        super().wait(timeout_s)
        process = self.process
        while process is not None and process.hung:
            assert self.current is not None
            process.waiting.append(self.current)
            super().wait(None)

    def violated(self, rule: str) -> None:
        """A rule does not hold: the simulation ends."""
        self.failure = self.failure or Violation(rule)

    def workers_of(self, process: Process) -> list[Worker]:
        """The threads of a process."""
        return [one for one in self._workers if one.context is process and one.job is not None]

    def start(self, process: Process, work: Callable[[], object]) -> Event:
        """Run it in a thread of a process; the event comes when it has ended."""
        over = Event(self)

        def job() -> None:
            try:
                if not process.dead:
                    self.wait(0.0)  # a process that hangs begins nothing
                    work()
            except Killed:
                pass
            finally:
                if not self._stopping:
                    over.set()

        self.spawn(job, process)
        return over


class Done(NamedTuple):
    """What `wait` returns."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


class Threads:
    """`concurrent.futures` in simulated time: threads of the process that makes them."""

    def __init__(self, world: World, count: int, **_names: str) -> None:
        process = world.process
        assert process is not None
        self._world, self._process, self._count = world, process, count
        self._jobs: deque[Callable[[], None]] = deque()
        self._busy = 0
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wait(self._world, self._futures)

    def submit(self, work: Callable[..., Any], *words: Any) -> Future[Any]:
        """See `ThreadPoolExecutor.submit`."""
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(work(*words))
            except Killed:
                raise
            except BaseException as error:
                future.set_exception(error)

        self._futures.append(future)
        self._jobs.append(job)
        if self._busy < self._count:
            self._busy += 1
            self._world.start(self._process, self._work)
        return future

    def _work(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
        self._busy -= 1


def wait(
    world: World,
    futures: Collection[Future[Any]],
    timeout: float | None = None,
    return_when: str = ALL_COMPLETED,
) -> Done:
    """`concurrent.futures.wait` in simulated time."""
    changed = Event(world)
    for future in futures:
        future.add_done_callback(lambda _future: changed.set())
    until_s = None if timeout is None else world.now_s + timeout
    while True:
        done = {one for one in futures if one.done()}
        failed = return_when == FIRST_EXCEPTION and any(one.exception() for one in done)
        left_s = None if until_s is None else until_s - world.now_s
        if len(done) == len(futures) or failed or (left_s is not None and left_s <= 0):
            return Done(done, set(futures) - done)
        changed.clear()
        changed.wait(left_s)


class Queue:
    """`queue.SimpleQueue` in simulated time."""

    def __init__(self, world: World) -> None:
        self._items: deque[Any] = deque()
        self._filled = Event(world)

    def put(self, item: object) -> None:
        """See `SimpleQueue.put`."""
        self._items.append(item)
        self._filled.set()

    def get(self) -> Any:
        """See `SimpleQueue.get`."""
        while not self._items:
            self._filled.clear()
            self._filled.wait()
        return self._items.popleft()


def queues(world: World) -> object:
    """What stands for the module `queue`."""
    return type("queues", (), {"SimpleQueue": partial(Queue, world)})


def sleep_between(world: World, least_s: float, most_s: float) -> None:
    """Some time, as work takes."""
    clock.sleep_s(world.chance.uniform(least_s, most_s))
