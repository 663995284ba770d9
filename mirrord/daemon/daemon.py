"""The daemon: definitions, scheduler, workers and alarms, wired together on one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any

from mirrord.config.host import Host
from mirrord.config.host import load as load_host
from mirrord.control.api import Service
from mirrord.control.command import Call, Lock, Right
from mirrord.control.commands.update import update
from mirrord.core.errors import MirrordError, Refused
from mirrord.core.records import AlarmKind
from mirrord.core.reports import AlarmTable, NextRuns
from mirrord.core.results import Result, Watcher
from mirrord.core.states import Activity
from mirrord.core.status import MirrorStatus, Reading
from mirrord.core.units import counted
from mirrord.daemon import outcomes
from mirrord.daemon.clockguard import ClockGuard
from mirrord.daemon.journal import say
from mirrord.daemon.known import Known, host_of, last_transfer, read_all, read_one, updated, well
from mirrord.daemon.ledger import Ledger
from mirrord.daemon.metrics import Metrics
from mirrord.daemon.poller import Poller
from mirrord.daemon.resumer import Resumer
from mirrord.daemon.running import Asked, Running
from mirrord.daemon.status_store import StatusStore
from mirrord.daemon.steering import Steering
from mirrord.daemon.tasks import Tasks
from mirrord.daemon.timers import ApTimers
from mirrord.daemon.verifier import Verifier
from mirrord.daemon.watch import Watch
from mirrord.daemon.workers import Workers
from mirrord.engine.limits import Limits
from mirrord.engine.progress import RunFiles
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Standing, Watched
from mirrord.system import clock
from mirrord.system.native import Panic
from mirrord.system.paths import Paths, local_zone

#: How long an answer waits for the probe after the command, so that the status shows what it did.
#: No longer: disks that hang may occupy all threads for probes.
_PROBE_S = 10.0

_Crew = Callable[[Callable[[Service], Any], Watcher], asyncio.Future[Any]]


class Daemon:
    """The daemon. Its methods run on the event loop; `mirrord.daemon.serve` starts and ends it."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.host: Host = load_host(paths.host, zone=local_zone)
        self.limits = Limits(self.host)
        self.workers = Workers(paths, self.host, self.limits, lambda it: self.store.rpo_at_risk(it))
        self.timers = ApTimers(asyncio.get_running_loop())
        self._tasks = Tasks()
        self.background = self._tasks.begin
        self.scheduler = Scheduler(
            self.timers,
            self._start,
            caps=self.host.limits,
            told=lambda name, change: self.ledger.tell(name, change),
        )
        self.store = StatusStore(self.scheduler)
        self.ledger = Ledger(self.scheduler, self.workers, lambda: self.host, self.background)
        self.numbers = Metrics(
            self.scheduler, self.store, lambda: self.ledger.host_alarms.up.values()
        )
        self.verifier = Verifier(self.scheduler, self.workers, self.background, self.refresh)
        self._steering = Steering(self.workers, self.background, self._waits)
        self._guard = ClockGuard(self.host, self.ledger, self.timers, self.numbers.jumps.inc)
        self._poller = Poller(self.scheduler, self.refresh, self.background)
        self._resumer = Resumer(
            self.scheduler, self.workers, self.background, self._poller, self.ledger
        )
        self._watch = Watch(self.scheduler, self._guard, self.ledger, self._poller, self._resumer)
        #: Set once all mirrors are known: until then who asks has to wait.
        self.ready = asyncio.Event()
        self._asked: dict[str, Asked] = {}
        #: Counts what changed a mirror: what was read before a change is not true after it.
        self._changes: Counter[str] = Counter()
        #: Held while all definitions are read, so that an older reading never replaces a newer one.
        self._reading = asyncio.Lock()
        self._recovering: set[str] = set()
        #: The commands to which the daemon adds what only it knows.
        self._own: dict[str, Callable[[Call[Any], Watcher], Awaitable[Any]]] = {
            "reload": lambda _call, _to: self.reload(),
            "status": self._status,
            "alarms": self._alarms,
            "schedule_next": self._schedule_next,
            "accept_clock": self._accept_clock,
            "prune": self._prune,
        }
        #: The interrupted operations that were tried to finish: once each.
        self._tried: dict[str, int] = {}

    # Start and end

    async def begin(self) -> None:
        """Recover interrupted operations, read all definitions, start the timers."""
        async with self._reading:
            self._resumer.resume_forsaken()  # at once: the probes may take long
            known = await self.workers.probe(read_all)
            broken = [each for each in known if each.operation]
            if broken and not self.scheduler.stopping:
                count = counted(len(broken), "mirror")
                say("info", f"recovering the interrupted operation of {count}")
                self._tried = {each.definition.name: each.operation_ns for each in broken}
                await asyncio.gather(*(self._recover(each) for each in broken))
                if not self.scheduler.stopping:
                    known = await self.workers.probe(read_all)
            await self._guard.begin(*await self.ledger.begin())
            if self.scheduler.stopping:
                return
            self.timers.start()
            self._define(known)
            self._watch.start()
            self.ready.set()

    async def _recover(self, each: Known) -> None:
        name = each.definition.name

        def recover(service: Service) -> str:
            if self.scheduler.stopping:
                raise MirrordError("the daemon is stopping")
            return service.recover(name) or str(each.operation)  # (a reverse is over by then)

        self._recovering.add(name)
        try:
            verb = await self.workers.transfer(recover)
            say("info", f"{name}: the interrupted {verb} was recovered", mirror=name)
        except MirrordError as error:
            text = f"{name}: the interrupted {each.operation} was not recovered: {error}"
            say("error", text, mirror=name)
        finally:
            self._recovering.discard(name)

    def _define(self, known: Iterable[Known], changed: Container[str] = ()) -> None:
        """Take what was read of all mirrors. changed: those that commands have changed since: they
        are left as they are.
        """
        found = {
            each.definition.name: each for each in known if each.definition.name not in changed
        }
        for name in [name for name in self.scheduler.mirrors if name not in changed]:
            self._changes[name] += 1  # what a probe that is under way has read is older
            if name not in found:
                self._drop(name)
        for name, each in found.items():
            watched = self._keep(each)
            reading = self.store.readings[name] = self._steering.shown(name, each.reading)
            watched.base_risk, watched.faults = reading.base_risk, reading.faults
            self.ledger.adopt(name)
            self._resumer.look(each)
        self._answer_forsaken()

    def _keep(self, each: Known) -> Watched:
        watched = self.scheduler.define(
            each.definition,
            each.schedule,
            Standing.of(each.reading),
            host=host_of(each.definition),
            filesystem=each.reading.filesystem,
            runs=each.runs,
        )
        self._steering.define(each.definition, self.host.zone)
        self.verifier.define(each)
        return watched

    def _answer_forsaken(self) -> None:
        """Answer callers whose queued verb was dropped: its mirror was removed or replaced."""
        for name in [name for name in self._asked if name not in self.scheduler.queue.waiting]:
            why = "its definition was removed or replaced"
            self._asked.pop(name).fail(Refused("the queued command was cancelled", why=why))

    async def reload(self) -> Result:
        """Read settings and definitions again; the old ones remain if any is wrong."""
        async with self._reading:
            if self.scheduler.stopping:
                raise MirrordError("the daemon is stopping")
            try:
                host = load_host(self.paths.host, zone=local_zone)
                before = self._changes.copy()
                known = await self.workers.probe(read_all)
            except MirrordError as error:
                say("error", f"the definitions were not reloaded, the old ones remain: {error}")
                error.add_note("the daemon continues with the old definitions")
                raise
            self.host = host
            self.limits.configure(host)
            self.workers.configure(host)
            self.scheduler.queue.caps = host.limits
            changed = {name for name, count in self._changes.items() if count != before[name]}
            self._define(known, changed)
            self.scheduler.pump()
        await asyncio.gather(*(self._refreshed(name) for name in changed))
        count = counted(len(known), "mirror")
        say("info", f"definitions read: {count}")
        return Result(
            "done", f"Settings and definitions reloaded: {count}.", {"mirrors": len(known)}
        )

    async def end(self, *, patience_s: float = 5.0) -> None:
        """Start no more runs; wait until the running ones finish or reach a checkpoint."""
        self.scheduler.stopping = True
        self.workers.stopping.set()  # (verifications end then)
        self.timers.stop()
        self._watch.stop()
        self._steering.end()
        for asked in self._asked.values():
            asked.fail(MirrordError("the daemon is stopping"))
        deadline_s = clock.monotonic_s() + patience_s
        while self._at_work() and clock.monotonic_s() < deadline_s:
            await asyncio.sleep(0.05)
        for name in self._at_work():
            say("info", f"{name}: ending the running transfer at a checkpoint", mirror=name)
            # Not by its definition: that may be gone, or wrong, since it began.
            RunFiles(self.paths.run, name).request_abort("the daemon stopping")
        while self._at_work():
            await asyncio.sleep(0.05)
        await self._tasks.ended(timeout_s=10)
        async with self._reading:  # a start that is under way ends, too: it needs the workers
            pass
        await asyncio.to_thread(self.workers.close)

    def _at_work(self) -> set[str]:
        """The mirrors that run, or whose interrupted verb is being recovered."""
        return {*self.scheduler.queue.running, *self._recovering}

    # Jobs

    def _start(self, job: Job) -> None:
        """Run a job in a worker's thread (the scheduler calls this)."""
        asked = self._asked.pop(job.name, None) if job.cause == "asked" else None
        watched = self.scheduler.mirrors.get(job.name)
        purpose = f"{job.verb}, {job.cause}"
        running = Running(purpose, watched, asked.watcher if asked else None)
        self.store.running[job.name] = running
        self.background(self._run(job, asked, running))

    async def _run(self, job: Job, asked: Asked | None, running: Running) -> None:
        watched = self.scheduler.mirrors.get(job.name)

        def work(service: Service) -> Any:
            if asked is not None:
                return service.run(asked.call)
            if watched is not None:
                return service.update_known(watched.definition)
            return service.run(update(job.name))

        started_s = clock.monotonic_s()
        value: Any = None
        error: MirrordError | None = None
        try:
            value = await self.workers.transfer(work, running)
        except MirrordError as caught:
            error = caught
        except (Exception, Panic) as bug:
            error = MirrordError(f"unexpected: {type(bug).__name__}: {bug}")
            say("error", f"{job.name}: {error}", mirror=job.name)
        result = value if isinstance(value, Result) else Result("", "")
        outcome = Outcome(result.status, clock.monotonic_s() - started_s, result.update, error)
        self.store.running.pop(job.name, None)
        self._changes[job.name] += 1
        self.scheduler.finished(job.name, outcome)
        self.numbers.count(job, outcome)
        outcomes.report(job, outcome)
        try:
            await self._after(job, outcome)
        finally:
            # Only now: a caller that has the answer may query the status next.
            if asked is not None and error is not None:
                asked.fail(error)
            elif asked is not None and not asked.answer.done():
                asked.answer.set_result(value)

    async def _after(self, job: Job, outcome: Outcome) -> None:
        """Update the status: from the result after a success, by a probe otherwise."""
        error = outcome.error
        if error is not None:
            await self.workers.record(lambda service: outcomes.record_attempt(service, job, error))
        watched = self.scheduler.mirrors.get(job.name)
        left = outcome.update is not None and outcome.update.not_resumed
        plain = job.verb == "update" and error is None and not left
        if not plain or watched is None or watched.definition.id != job.mirror_id or watched.faults:
            await self._refreshed(job.name)
        elif outcome.status == "done":
            last = await self.workers.record(lambda service: last_transfer(service, job.mirror_id))
            self._amend(job.name, lambda reading: updated(reading, last))
        else:
            self._amend(job.name, well)

    def _amend(self, name: str, change: Callable[[Reading], Reading]) -> None:
        """Change what was read of a mirror, unless it was removed meanwhile."""
        if name in self.store.readings:
            self.store.readings[name] = change(self.store.readings[name])

    async def _refreshed(self, name: str) -> None:
        """Read a mirror again, for an answer: that waits for it a limited time."""
        await self._tasks.within(self._recorded(name), _PROBE_S)
        await self._tasks.within(self.refresh(name), _PROBE_S)

    async def _recorded(self, name: str) -> None:
        """From the catalogue: while the probe lasts, no run begins that would be refused."""
        watched = self.scheduler.mirrors.get(name)
        if watched is None or watched.definition.is_live:
            return
        row = await self.workers.record(lambda it: it.catalogue.mirror(watched.definition.id))
        if row is not None:
            state, quiesced = row.state, row.quiesced
            self.scheduler.stands(name, watched.standing.limited(state, quiesced=quiesced))
            self._amend(name, lambda reading: reading._replace(state=state, quiesced=quiesced))

    async def refresh(self, name: str) -> None:
        """Read one mirror's definition and probe both of its ends."""
        try:
            while True:
                before = self._changes[name]
                known = await self.workers.probe(lambda service: read_one(service, name))
                if self._changes[name] == before:
                    break
        except MirrordError as error:
            # A definition that is wrong now, or what is read cannot be: what was read before holds.
            problem = str(error)
            self._amend(name, lambda reading: reading._replace(problem=problem))
            self._poller.probe_again(name)
            return
        if known is None:
            self._drop(name)
            self._answer_forsaken()
            return
        self._keep(known)
        self._saw(name, known.reading)
        self._answer_forsaken()
        self._take_up(known)
        self._resumer.look(known)

    def _drop(self, name: str) -> None:
        say("info", f"{name}: it is no longer defined, and not updated any more", mirror=name)
        self._steering.forget(name)
        self.scheduler.remove(name)
        self.store.readings.pop(name, None)

    def _saw(self, name: str, reading: Reading) -> None:
        """Both ends of a mirror were probed just now."""
        reading = self._steering.shown(name, reading)
        self.store.readings[name] = reading
        self.scheduler.found(name, reading)

    def _waits(self, name: str) -> None:
        """Writes to a mirror wait: an alarm, before both ends are read, as one may not answer."""
        if name in self.store.readings:
            self._saw(name, self.store.readings[name])
            self._poller.probe_now(name)

    def _take_up(self, known: Known) -> None:
        """An operation was interrupted while the daemon ran: try to finish it, once; not one that
        a person has just ended. What recovery leaves waits for a person.
        """
        name = known.definition.name
        left = any(fault.kind is AlarmKind.INTERRUPTED for fault in known.reading.faults)
        if not left or self._tried.get(name) == known.operation_ns or self.scheduler.stopping:
            return
        self._tried[name] = known.operation_ns
        if self.scheduler.mirrors[name].held:
            return

        async def work() -> None:
            await self._recover(known)
            self._changes[name] += 1
            await self.refresh(name)

        self.background(work())

    # The API (mirrord.control.server.Backend)

    async def call(self, call: Call[Any], watcher: Watcher) -> Any:
        """Run a command. To the results of some the daemon adds what only it knows."""
        await self.ready.wait()
        way = self._own.get(call.command.name) or self._run_command
        return await way(call, watcher)

    async def _run_command(self, call: Call[Any], to: Watcher) -> Any:
        if call.mirror in self.scheduler.mirrors:
            if call.command.lock is Lock.QUEUED:
                return await self._queued(call, to)
            if call.command.lock is Lock.ENDS_RUNS:
                return await self._ending(call, to)
        if call.command.right is Right.READ:
            return await self._dispatched(self.workers.report, call, to)
        value = await self._dispatched(self.workers.verb, call, to)
        name = str(value.data.get("name", "")) if isinstance(value, Result) else ""
        if (name := name or call.mirror) and not self.scheduler.stopping:
            self._changes[name] += 1
            await self._refreshed(name)
        return value

    async def _status(self, call: Call[Any], to: Watcher) -> list[MirrorStatus]:
        name = call.arguments.get("name")
        if name is None:
            return self.store.rows()
        before = self._changes[name]
        [found] = await self._dispatched(self.workers.report, call, to)
        watched = self.scheduler.mirrors.get(name)
        if (
            watched is not None
            and watched.definition.id == found.reading.id
            and self._changes[name] == before
            and name not in self._at_work()
        ):
            self._saw(name, found.reading)
        return [self.store.judged(found.reading, found.running)]

    async def _schedule_next(self, call: Call[Any], to: Watcher) -> NextRuns:
        found: NextRuns = await self._dispatched(self.workers.report, call, to)
        return self.store.planned(call.mirror, found)

    async def _alarms(self, call: Call[Any], to: Watcher) -> AlarmTable:
        found = await self._dispatched(self.workers.report, call, to)
        return AlarmTable(tuple(self.ledger.shown(list(found.alarms))), daemon_runs=True)

    async def _accept_clock(self, call: Call[Any], to: Watcher) -> Any:
        value = await self._dispatched(self.workers.verb, call, to)
        self._guard.accept(self.scheduler.mirrors.values())
        self.ledger.judge_host()
        return value

    async def _prune(self, call: Call[Any], to: Watcher) -> Any:
        value = await self._run_command(call, to)
        if value.status == "done":
            self.scheduler.pruned(call.mirror)
        return value

    async def _ending(self, call: Call[Any], to: Watcher) -> Any:
        """A verb that stops the mirror's runs: none begins meanwhile, and one that
        is queued is cancelled.
        """
        name = call.mirror
        waited = self.scheduler.hold(name)
        if waited and waited.cause == "asked" and name in self._asked:
            self._asked.pop(name).cancel(call)
        ended = False
        try:
            value = await self._dispatched(self.workers.report, call, to)
            if waited and isinstance(value, Result) and value.status == "already_idle":
                text = f"A queued run of '{name}' was cancelled.\n{value.text}"
                value = Result("done", text, {**value.data, "stopped": True})
            ended = True
            return value
        finally:
            self._changes[name] += 1
            try:
                await self._refreshed(name)
            finally:
                self.scheduler.release(name, again=not ended)

    async def _dispatched(self, crew: _Crew, call: Call[Any], to: Watcher) -> Any:
        """A command in a worker's thread. A verb is shown in the status, and so is its failure."""
        name, command = call.mirror, call.command
        acts = command.right is Right.ACT and name in self.scheduler.mirrors
        running = Running(command.words, None, to)
        if acts:
            self.store.running.setdefault(name, running)
        try:
            return await crew(lambda service: service.run(call), running)
        except MirrordError as error:
            if acts:
                self.numbers.failed(name, command.name, error.code)
            if acts and command.lock is not Lock.ENDS_RUNS and not self.scheduler.stopping:
                self._changes[name] += 1
                self.background(self.refresh(name))
            raise
        finally:
            if self.store.running.get(name) is running:
                del self.store.running[name]

    async def _queued(self, call: Call[Any], to: Watcher) -> Any:
        """A verb that transfers: it is queued.

        While the mirror runs already the answer is the lock's: `Busy`, with who has it.
        """
        name = call.mirror
        held = self.scheduler.mirrors[name].held > 0
        if held or name in self.scheduler.queue.running or name in self._asked:
            return await self._dispatched(self.workers.verb, call, to)
        asked = self._asked[name] = Asked(call, to)
        to.activity(Activity.IDLE, "queued")
        self.scheduler.ask(name, call.command.name)
        return await asked.answer

    def metrics(self) -> tuple[bytes, str]:
        """What Prometheus reads."""
        return self.numbers.text()
