"""The daemon's watch: alarms and who hears of them, the clock, a look at the ends now and then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mirrord.catalogue.watchbook import AlarmRow
from mirrord.control.api import Service
from mirrord.core.errors import MirrordError
from mirrord.core.units import format_duration, format_size
from mirrord.daemon.journal import say
from mirrord.daemon.tellers import deliver
from mirrord.scheduler.clockwatch import ClockWatch
from mirrord.scheduler.health import Alarms, Change, Finding
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.system import clock, notify
from mirrord.system.mounts import MountTable
from mirrord.system.native import Panic

if TYPE_CHECKING:
    from mirrord.daemon.daemon import Daemon

_TICK_S = 1.0
_CHECK_EVERY = 5  # ticks: all mirrors, not only those that run
_LOOK_EVERY_S = 600.0  # each mirror's two ends
_HEARTBEAT_EVERY = 30  # ticks
_STEP_S = 0.5  # timers that are off by so much are set anew


class Watch:
    """Beats once a second on the event loop."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._clock = ClockWatch(
            clock.now_ns(), clock.boottime_s(), tolerance_s=daemon.host.clock_jump_s
        )
        self.host_alarms = Alarms()
        self._doubt, self._trouble = "", ""
        self._up: dict[str | None, list[Finding]] = {}
        #: What is not (or cannot be) written to the catalogue yet, with its time.
        self._unrecorded: dict[tuple[str | None, str], tuple[Change, int]] = {}
        self._looked_s: dict[str, float] = {}
        #: Who is being looked at: an end that hangs is not looked at once more.
        self._looking: set[str] = set()
        self._mounts = MountTable()
        self._task: asyncio.Task[None] | None = None
        #: Records are written one after the other: an alarm's end never before its beginning.
        self._recording = asyncio.Lock()

    async def begin(self) -> None:
        """What the daemon before this one left: alarms that were up, doubts about the clock."""
        try:
            rows, doubt, seen = await self._daemon.workers.house(_left_behind)
        except MirrordError as error:
            self._trouble = str(error)
            return
        for row in rows:
            self._up.setdefault(row.mirror_id, []).append(Finding(row.kind, row.level, row.text))
        self.host_alarms = Alarms(self._up.pop(None, []))
        self._doubt = str(doubt["text"]) if doubt else ""
        back_s = (seen - clock.now_ns()) / 1e9
        if back_s > self._daemon.host.clock_jump_s:
            await self._doubts(f"it went back by {format_duration(back_s)} while no service ran")

    def adopt(self, name: str) -> None:
        """Alarms of this mirror that were up before the start are up still, until it is judged."""
        watched = self._daemon.scheduler.mirrors.get(name)
        if watched is not None:
            self._daemon.scheduler.inherit(name, self._up.pop(watched.definition.id, []))

    def start(self) -> None:
        """Begin to beat."""
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        """Beat no more."""
        if self._task is not None:
            self._task.cancel()
        self._mounts.close()

    async def _beat(self) -> None:
        ticks = 0
        while True:
            try:
                await self._tick(ticks)
            except (Exception, Panic) as bug:
                say("error", f"unexpected: {type(bug).__name__}: {bug}")
            ticks += 1
            await asyncio.sleep(_TICK_S)

    async def _tick(self, ticks: int) -> None:
        scheduler = self._daemon.scheduler
        notify.tell("WATCHDOG=1", patience_s=0.0)  # the next one comes in a second
        await self._look_at_clock()
        names = list(scheduler.mirrors if ticks % _CHECK_EVERY == 0 else scheduler.queue.running)
        for name in names:
            scheduler.check(name)
        if ticks % _HEARTBEAT_EVERY == 0:
            self._daemon.background(self._heartbeat())
        self._look_at_ends()
        self._check_host()

    # The clock

    async def _look_at_clock(self) -> None:
        by_s = self._clock.look(clock.now_ns(), clock.boottime_s())
        slept_s = self._clock.slept(clock.boottime_s(), clock.monotonic_s())
        if abs(by_s) > _STEP_S:
            self._daemon.timers.retime()
        elif slept_s > _STEP_S:
            self._daemon.timers.wake()
        jump = self._clock.judge(by_s)
        if jump is None:
            return
        self._daemon.numbers.jumps.inc()
        say("warning", f"the clock of this host jumped: {jump.text}")
        if jump.over:
            self._doubt = ""
            await self._daemon.workers.house(lambda service: service.accept_clock())
        else:
            await self._doubts(jump.text)

    async def _doubts(self, text: str) -> None:
        self._doubt = text
        fact = {"text": text, "at_ns": clock.now_ns()}
        try:
            await self._daemon.workers.house(
                lambda service: service.catalogue.set_fact("clock_doubt", fact)
            )
        except MirrordError as error:
            self._trouble = str(error)

    def clock_accepted(self) -> None:
        """The owner says that the clock is right."""
        self._doubt, self._clock.away_s = "", 0.0
        self._check_host()

    async def _heartbeat(self) -> None:
        """Writes to the catalogue: proves that it can be, and shows a clock that went back."""
        now_ns = clock.now_ns()
        try:
            await self._daemon.workers.house(
                lambda service: service.catalogue.set_fact("seen_ns", now_ns)
            )
        except MirrordError as error:
            self._trouble = str(error)
            return
        self._trouble = ""
        for (mirror_id, _), (change, _) in list(self._unrecorded.items()):
            await self._record(mirror_id, change)

    # The ends

    def _look_at_ends(self) -> None:
        """Look at the ends of the mirror that was looked at longest ago, each in ten minutes."""
        scheduler, now_s = self._daemon.scheduler, clock.monotonic_s()
        for name in [name for name in self._looked_s if name not in scheduler.mirrors]:
            del self._looked_s[name]
        if not scheduler.mirrors:
            return
        if self._mounts.changed():
            # Another disk may be where the destination was: those here are looked at soon.
            self._looked_s.clear()
            early_s = now_s - _LOOK_EVERY_S
            self._looked_s |= dict.fromkeys(scheduler.mirrors, early_s)
        for name in scheduler.mirrors:
            self._looked_s.setdefault(name, now_s)
        share = max(1, round(len(scheduler.mirrors) * _TICK_S / _LOOK_EVERY_S))
        idle = self._looked_s.keys() - scheduler.queue.running.keys() - self._looking
        oldest = sorted(idle, key=self._looked_s.__getitem__)[:share]
        for name in oldest:
            if now_s - self._looked_s[name] >= _LOOK_EVERY_S:
                self._looked_s[name] = now_s
                self._daemon.background(self._look(name))

    async def _look(self, name: str) -> None:
        self._looking.add(name)
        try:
            await self._daemon.refresh(name)
        finally:
            self._looking.discard(name)

    # Alarms

    def _check_host(self) -> None:
        findings = []
        if self._doubt:
            text = (
                f"the clock of this host jumped: {self._doubt}; no snapshot is pruned by calendar "
                "rules until 'mirrord alarms --accept-clock' says that it is right"
            )
            findings.append(Finding("clock", "error", text))
        if self._trouble:
            findings.append(
                Finding("state", "error", f"the catalogue cannot be written: {self._trouble}")
            )
        for change in self.host_alarms.update(findings):
            self.tell("", change)

    def tell(self, name: str, change: Change) -> None:
        """An alarm was raised or cleared: log, catalogue, and whoever is to be told."""
        finding, watched = change.finding, self._daemon.scheduler.mirrors.get(name)
        where = f"{name}: " if name else ""
        word = "ALARM" if change.raised else "cleared"
        level = finding.level if change.raised else "info"
        say(level, f"{where}{word} {finding.kind}: {finding.text}", mirror=name, kind=finding.kind)
        mirror_id = watched.definition.id if watched else None
        if name and mirror_id is None:
            return
        self._unrecorded[mirror_id, finding.kind] = (change, clock.now_ns())
        self._daemon.background(self._record(mirror_id, change))
        targets = self._daemon.host.alarms
        if targets.program or targets.webhook:
            alarm = {
                "mirror": name,
                "kind": finding.kind,
                "level": finding.level,
                "text": finding.text,
                "state": "raised" if change.raised else "cleared",
                "at_ns": clock.now_ns(),
            }
            self._daemon.workers.tell(lambda: deliver(targets, alarm))

    async def _record(self, mirror_id: str | None, change: Change) -> None:
        finding, key = change.finding, (mirror_id, change.finding.kind)

        def work(service: Service) -> None:
            book = service.catalogue
            if change.raised:
                book.raise_alarm(mirror_id, finding.kind, finding.level, finding.text)
            else:
                book.clear_alarm(mirror_id, finding.kind)

        async with self._recording:
            try:
                await self._daemon.workers.house(work)
            except MirrordError as error:
                self._trouble = str(error)
                return
        if self._unrecorded.get(key, (None, 0))[0] is change:
            del self._unrecorded[key]

    def shown(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Recorded alarms as they are now, after those that are not recorded yet."""
        names = {w.definition.id: name for name, w in self._daemon.scheduler.mirrors.items()}
        known = {(row["mirror_id"], row["kind"]) for row in rows if row["cleared_ns"] is None}
        late = [
            {
                **AlarmRow(0, mirror_id, *change.finding, at_ns, None)._asdict(),
                "mirror": names.get(mirror_id or "", ""),
            }
            for (mirror_id, kind), (change, at_ns) in self._unrecorded.items()
            if change.raised and (mirror_id, kind) not in known
        ]
        return [self._as_it_is_now(row) for row in late + rows]

    def _as_it_is_now(self, row: dict[str, Any]) -> dict[str, Any]:
        """A recorded alarm that is up, with its level and text of this moment."""
        watched = self._daemon.scheduler.mirrors.get(row["mirror"])
        alarms = watched.alarms if watched else self.host_alarms
        now = alarms.up.get(row["kind"])
        if row["cleared_ns"] is not None or now is None:
            return row
        return row | {"level": now.level, "text": now.text}

    # One line a transfer

    def report(self, job: Job, outcome: Outcome) -> None:
        """Say what happened, in one line."""
        facts = {"mirror": job.name, "verb": job.verb, "cause": job.cause, "try": job.number}
        duration = format_duration(outcome.duration_s)
        if outcome.error is not None:
            again = f" (try {job.number})" if job.number > 1 else ""
            say(
                "error" if outcome.error.code != "aborted" else "info",
                f"{job.name}: {job.verb} failed after {duration}{again}: {outcome.error}",
                **facts, code=outcome.error.code,
            )  # fmt: skip
            return
        if "stream_bytes" not in outcome.data:
            if job.verb != "update":
                say("info", f"{job.name}: {job.verb} {outcome.status} in {duration}", **facts)
            return
        size, data = int(outcome.data["stream_bytes"]), outcome.data
        waited = data.get("throttled_s", 0.0)
        throttled = f", {format_duration(waited)} of it throttled" if waited > 0.1 else ""
        resumed = f", after {format_size(data['resumed_bytes'])} of an earlier try" if data.get(
            "resumed_bytes") else ""  # fmt: skip
        say(
            "info",
            f"{job.name}: {job.verb} ({job.cause}) done: {format_size(size)} in {duration}"
            f"{throttled}{resumed}, now shows {data.get('snapshot', '')}",
            **facts, bytes=size, duration_s=round(outcome.duration_s, 3),
        )  # fmt: skip


def _left_behind(service: Service) -> tuple[list[Any], Any, int]:
    book = service.catalogue
    return book.alarms(up=True), book.fact("clock_doubt"), int(book.fact("seen_ns") or 0)


def record_attempt(service: Service, job: Job, error: MirrordError) -> None:
    """Keep a try that failed, with its reason."""
    if job.name not in service.definitions.names():
        return
    definition = service.definitions.load(job.name)
    if service.catalogue.mirror(definition.id) is None:
        return
    service.catalogue.add_attempt(
        definition.id, verb=job.verb, cause=job.cause, number=job.number, code=error.code,
        error=str(error),
    )  # fmt: skip
