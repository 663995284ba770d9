"""Deterministic threads on a simulated clock.

The engine is synchronous, so each job of the simulation has a real thread; but a thread runs only
while it holds the *baton*, and passes it on where it waits: in `clock.sleep_s`, or for an `Event`.
What runs next is decided by a heap of (time, sequence) alone, never by the kernel's scheduler: so
one seed gives one run.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import pairwise
from types import TracebackType
from typing import Self

from mirrord.system import clock

#: Any moment will do; runs are reproducible because it is always the same one.
START_NS = 1_700_000_000 * 10**9


class Stopped(BaseException):
    """The simulation is over: raised where a job waits, so that its thread ends."""


class Worker:
    """A thread of the pool. context: of the job that it runs, for whoever started that."""

    def __init__(self, sim: Sim, number: int) -> None:
        self.number = number
        self.context: object = None
        #: What its job meets at the next place where it waits (`Sim.kill`).
        self.doom: BaseException | None = None
        #: What the thread does at its very end (a database connection belongs to its thread).
        self.at_end: list[Callable[[], object]] = []
        self.job: Callable[[], object] | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self._sim = sim
        self.thread = threading.Thread(target=self._run, name=f"sim-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.baton.acquire()
        while self.job is not None:
            try:
                self.job()
            except Stopped:
                pass
            except BaseException as error:
                self._sim.failure = self._sim.failure or error
            self.context = self.job = self.doom = None
            self._sim.finished(self)
            self.baton.acquire()
        for last in self.at_end:
            last()


What = Worker | Callable[[], object] | None


class Entry:
    """A place in the heap; `what` becomes None when it is withdrawn."""

    __slots__ = ("at_s", "sequence", "what")

    def __init__(self, at_s: float, sequence: int, what: What) -> None:
        self.at_s = at_s
        self.sequence = sequence
        self.what = what

    def __lt__(self, other: Entry) -> bool:
        return (self.at_s, self.sequence) < (other.at_s, other.sequence)


class Event:
    """Something that jobs wait for in simulated time, as `threading.Event`."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._set = False
        self._waiting: list[Worker] = []

    def is_set(self) -> bool:
        """Whether it has come."""
        return self._set

    def set(self) -> None:
        """It has come: who waits goes on, in the order in which they began to wait."""
        self._set = True
        waiting, self._waiting = self._waiting, []
        for worker in waiting:
            self._sim.wake(worker)

    def clear(self) -> None:
        """It is over."""
        self._set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for it, at most so long; whether it has come."""
        if not self._set:
            worker = self._sim.current
            assert worker is not None, "only a job may wait"
            self._waiting.append(worker)
            try:
                self._sim.wait(timeout_s)
            finally:
                if worker in self._waiting:
                    self._waiting.remove(worker)
        return self._set


class Sim:
    """The event loop, and the clock of all that runs in it (`mirrord.system.clock.Source`).

    While it is entered (`with`), product code takes its time from here.
    """

    def __init__(self, start_ns: int = START_NS) -> None:
        self.now_s = 0.0
        #: How long the machine stood still: the monotonic clock, and all that waits by it, with it.
        self.suspended_s = 0.0
        self.current: Worker | None = None
        self.failure: BaseException | None = None
        self._jumps: list[tuple[float, int]] = [(0.0, start_ns)]
        self._heap: list[Entry] = []
        self._pending: dict[Worker, Entry] = {}
        self._sequence = 0
        self._until_s = 0.0
        self._home = threading.Lock()
        self._home.acquire()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._stopping = False

    def __enter__(self) -> Self:
        clock.use(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all threads, those too that wait in the middle of a job."""
        self._stopping = True
        for worker in self._workers:
            if worker.job is not None:
                self._hand_to(worker)
        for worker in self._workers:
            worker.baton.release()
            worker.thread.join()
        clock.use(None)

    # The clock

    def now_ns(self) -> int:
        """Wall time: start + real time + jumps."""
        return self._jumps[-1][1] + int(self.real_s * 1e9)

    @property
    def real_s(self) -> float:
        """What really passed since the start."""
        return self.now_s + self.suspended_s

    def monotonic_s(self) -> float:
        """Elapsed, but for what the machine was suspended."""
        return self.now_s

    def boottime_s(self) -> float:
        """Elapsed."""
        return self.real_s

    def sleep_s(self, seconds: float) -> None:
        """Pass the baton on until then."""
        self.wait(max(seconds, 0.0))

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock, forward or back."""
        self._jumps.append((self.real_s, self._jumps[-1][1] + int(seconds * 1e9)))

    def suspend(self, seconds: float) -> None:
        """The machine stands still for so long."""
        self.suspended_s += seconds

    def stepped_s(self, since_s: float, until_s: float) -> float:
        """How far the wall clock was set between two real times, all steps together."""
        steps = pairwise(self._jumps)
        return sum(abs(b[1] - a[1]) / 1e9 for a, b in steps if since_s <= b[0] <= until_s)

    def earliest_s(self, wall_ns: int) -> float:
        """The first real time at which the wall clock showed this, or more."""
        ends = [at_s for at_s, _ in self._jumps[1:]] + [float("inf")]
        for (begin_s, offset_ns), end_s in zip(self._jumps, ends, strict=True):
            at_s = max(begin_s, (wall_ns - offset_ns) / 1e9)
            if at_s <= end_s:
                return at_s
        raise AssertionError("the last span has no end")

    # What is to run

    def at(self, time_s: float, what: Callable[[], object]) -> Entry:
        """Call `what` in the loop itself at that time; it must not wait."""
        return self._push(time_s, what)

    def spawn(self, job: Callable[[], object], context: object = None) -> None:
        """Run `job` in a thread of the pool, from now on; it may wait."""
        self._push(self.now_s, lambda: self._begin(job, context))

    def run(self, until_s: float) -> None:
        """Let simulated time pass. Raises what a job raised."""
        self._until_s = until_s
        while self.failure is None and self._heap and self._heap[0].at_s <= until_s:
            what = self._pop()
            if isinstance(what, Worker):
                self._hand_to(what)
            elif what is not None:
                what()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.now_s = max(self.now_s, until_s)

    # For workers and events

    def wait(self, timeout_s: float | None) -> None:
        """The job that runs waits: until `wake`, or so long."""
        me = self.current
        assert me is not None, "only a job may wait"
        self._go_on(me)
        if timeout_s is not None:
            self._pending[me] = self._push(self.now_s + timeout_s, me)
            if self._heap[0].what is me and self._heap[0].at_s <= self._until_s:
                self._pop()  # nothing else happens before: no thread needs to be changed
                return
        self._pass_on()
        me.baton.acquire()
        self._go_on(me)

    def _go_on(self, worker: Worker) -> None:
        if self._stopping:
            raise Stopped
        if worker.doom is not None:
            raise worker.doom

    def kill(self, worker: Worker, doom: BaseException) -> None:
        """A job that waits ends with `doom`, and so does each later wait of it."""
        worker.doom = doom
        self.wake(worker)

    def wake(self, worker: Worker) -> None:
        """End the wait of a worker now."""
        entry = self._pending.get(worker)
        if entry is not None:
            entry.what = None
        self._pending[worker] = self._push(self.now_s, worker)

    def finished(self, worker: Worker) -> None:
        """The job of this worker is over; it lets go of the baton."""
        self._idle.append(worker)
        self._pass_on()

    # The baton

    def _push(self, at_s: float, what: What) -> Entry:
        self._sequence += 1
        entry = Entry(max(at_s, self.now_s), self._sequence, what)
        heapq.heappush(self._heap, entry)
        return entry

    def _pop(self) -> What:
        entry = heapq.heappop(self._heap)
        if entry.what is not None:
            self.now_s = entry.at_s
        if isinstance(entry.what, Worker):
            self._pending.pop(entry.what, None)
        return entry.what

    def _begin(self, job: Callable[[], object], context: object) -> None:
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = Worker(self, len(self._workers))
            self._workers.append(worker)
        worker.job, worker.context = job, context
        self._hand_to(worker)

    def _hand_to(self, worker: Worker) -> None:
        """From the loop to a worker, and wait until the baton is home again."""
        self.current = worker
        worker.baton.release()
        self._home.acquire()
        self.current = None

    def _pass_on(self) -> None:
        """From a worker to the one whose turn is next, or home when it is not a worker's."""
        ready = self._heap and self._heap[0].at_s <= self._until_s and not self._stopping
        if ready and self.failure is None and isinstance(self._heap[0].what, Worker):
            following = self._pop()
            assert isinstance(following, Worker)
            self.current = following
            following.baton.release()
        else:
            self._home.release()
