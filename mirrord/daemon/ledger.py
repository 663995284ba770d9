"""Alarms: which are active, their notification, and their record in the catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mirrord.config.host import Host
from mirrord.control.api import Service
from mirrord.core.errors import MirrordError
from mirrord.core.records import AlarmKind, AlarmRecord, Finding, Level
from mirrord.daemon.journal import say
from mirrord.daemon.notifiers import Notice, deliver
from mirrord.daemon.tasks import Background
from mirrord.daemon.workers import Workers
from mirrord.scheduler.health import Alarms, Change
from mirrord.scheduler.scheduler import Scheduler
from mirrord.system import clock


class Ledger:
    """host: as it is configured now. background: runs a coroutine beside all else."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Workers,
        host: Callable[[], Host],
        background: Background,
    ) -> None:
        self._scheduler, self._workers = scheduler, workers
        self._host, self._background = host, background
        self.host_alarms = Alarms()
        #: What finds out what is wrong with the host; each adds itself.
        self.sources: list[Callable[[], list[Finding]]] = []
        #: Why the catalogue cannot be written, or "".
        self._trouble = ""
        self._up: dict[str | None, list[Finding]] = {}
        #: What is not (or cannot be) written to the catalogue yet, with its time.
        self._unrecorded: dict[tuple[str | None, AlarmKind], tuple[Change, int]] = {}
        #: Records are written one after the other: an alarm's end never before its beginning.
        self._recording = asyncio.Lock()

    async def begin(self) -> tuple[str, int]:
        """Load the alarms that the previous daemon left active. Returns the
        clock's doubt that it left, or "", and the last time that it saw, or 0.
        """
        try:
            rows, doubt, seen_ns = await self._workers.record(_left_behind)
        except MirrordError as error:
            self._trouble = str(error)
            return "", 0
        for row in rows:
            self._up.setdefault(row.mirror_id, []).append(Finding(row.kind, row.level, row.text))
        self.host_alarms = Alarms(self._up.pop(None, []))
        return str(doubt["text"]) if doubt else "", seen_ns

    def adopt(self, name: str) -> None:
        """Alarms of this mirror that were active before the start remain until it is judged."""
        watched = self._scheduler.mirrors.get(name)
        if watched is not None:
            self._scheduler.inherit(name, self._up.pop(watched.definition.id, []))

    async def write(self, work: Callable[[Service], object]) -> bool:
        """Write to the catalogue; a failure to do so is an alarm, not an error."""
        try:
            await self._workers.record(work)
        except MirrordError as error:
            self._trouble = str(error)
            return False
        return True

    def heartbeat(self) -> None:
        """Prove that the catalogue can be written, and record what could not be before. The time
        that is written shows later whether the clock went back.
        """
        self._background(self._heartbeat())

    async def _heartbeat(self) -> None:
        now_ns = clock.now_ns()
        if not await self.write(lambda service: service.catalogue.set_fact("seen_ns", now_ns)):
            return
        self._trouble = ""
        for (mirror_id, _), (change, _) in list(self._unrecorded.items()):
            await self._record(mirror_id, change)

    def judge_host(self) -> None:
        """Raise and clear the alarms of the host."""
        findings = [finding for source in self.sources for finding in source()]
        if self._trouble:
            text = f"the catalogue cannot be written: {self._trouble}"
            findings.append(Finding(AlarmKind.STATE, Level.ERROR, text))
        for change in self.host_alarms.update(findings):
            self.tell("", change)

    def tell(self, name: str, change: Change) -> None:
        """An alarm was raised or cleared: log it, record it, notify."""
        finding, watched = change.finding, self._scheduler.mirrors.get(name)
        where = f"{name}: " if name else ""
        word = "ALARM" if change.raised else "cleared"
        level = finding.level if change.raised else "info"
        say(level, f"{where}{word} {finding.kind}: {finding.text}", mirror=name, kind=finding.kind)
        mirror_id = watched.definition.id if watched else None
        if name and mirror_id is None:
            return
        self._unrecorded[mirror_id, finding.kind] = (change, clock.now_ns())
        self._background(self._record(mirror_id, change))
        targets = self._host().alarms
        if targets.program or targets.webhook:
            state = "raised" if change.raised else "cleared"
            alarm = Notice(name, *finding, state, clock.now_ns())
            self._workers.notify(lambda: deliver(targets, alarm))

    async def _record(self, mirror_id: str | None, change: Change) -> None:
        finding, key = change.finding, (mirror_id, change.finding.kind)

        def work(service: Service) -> None:
            book = service.catalogue
            if change.raised:
                book.raise_alarm(mirror_id, finding.kind, finding.level, finding.text)
            else:
                book.clear_alarm(mirror_id, finding.kind)

        async with self._recording:
            written = await self.write(work)
        if written and self._unrecorded.get(key, (None, 0))[0] is change:
            del self._unrecorded[key]

    def shown(self, rows: list[AlarmRecord]) -> list[AlarmRecord]:
        """Recorded alarms with current values, after those not yet recorded."""
        names = {w.definition.id: name for name, w in self._scheduler.mirrors.items()}
        known = {(row.mirror_id, row.kind) for row in rows if row.cleared_ns is None}
        late = [
            AlarmRecord(0, mirror_id, *change.finding, at_ns, None, names.get(mirror_id or "", ""))
            for (mirror_id, kind), (change, at_ns) in self._unrecorded.items()
            if change.raised and (mirror_id, kind) not in known
        ]
        return [self._as_it_is_now(row) for row in late + rows]

    def _as_it_is_now(self, row: AlarmRecord) -> AlarmRecord:
        """A recorded active alarm, with its current level and text."""
        watched = self._scheduler.mirrors.get(row.mirror)
        alarms = watched.alarms if watched else self.host_alarms
        now = alarms.up.get(row.kind)
        if row.cleared_ns is not None or now is None:
            return row
        return row._replace(level=now.level, text=now.text)


def _left_behind(service: Service) -> tuple[list[AlarmRecord], Any, int]:
    book = service.catalogue
    return book.alarms(up=True), book.fact("clock_doubt"), int(book.fact("seen_ns") or 0)
