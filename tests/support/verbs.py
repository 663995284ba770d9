"""The commands as methods, for tests: of the service in this process, and of a daemon's client."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from mirrord.control import api, client
from mirrord.control.command import Call
from mirrord.control.commands import (
    abort,
    adopt,
    alarms,
    break_,
    change_source,
    config,
    create,
    delete,
    delta,
    explain,
    group,
    history,
    initialize,
    prune,
    quiesce,
    release,
    reload,
    restore,
    resume,
    resume_operation,
    resync,
    reverse,
    schedule,
    snapshots,
    status,
    takeover,
    throttle,
    update,
    verify,
)
from mirrord.core.records import AlarmRecord
from mirrord.core.reports import (
    DeltaReport,
    History,
    NamedSchedule,
    NextRuns,
    PauseTest,
    SnapshotTable,
)
from mirrord.core.results import Result
from mirrord.core.status import MirrorStatus

R = TypeVar("R")


class Verbs:
    """A method for each command, with its arguments."""

    @abstractmethod
    def run(self, call: Call[R]) -> R:
        """Run a command."""

    def create(self, name: str, source: str = "", destination: str = "", **options: Any) -> Result:
        keep = {key: str(value) for key, value in options.items() if key.startswith("keep_")}
        return self.run(create.create(name, source, destination, **{**options, **keep}))

    def check(self) -> Result:
        return self.run(config.check())

    def initialize(self, name: str) -> Result:
        return self.run(initialize.initialize(name))

    def update(self, name: str) -> Result:
        return self.run(update.update(name))

    def abort(self, name: str, *, hard: bool) -> Result:
        return self.run(abort.abort(name, hard=hard))

    def quiesce(self, name: str) -> Result:
        return self.run(quiesce.quiesce(name))

    def resume(self, name: str) -> Result:
        return self.run(resume.resume(name))

    def break_off(self, name: str, *, snapshot: str | None = None) -> Result:
        return self.run(break_.break_off(name, snapshot=snapshot))

    def begin_test(self, name: str, *, place: str = "") -> Result:
        return self.run(break_.begin_test(name, place=place))

    def end_test(self, name: str) -> Result:
        return self.run(break_.end_test(name))

    def resync(self, name: str, *, yes: bool, force: bool = False) -> Result:
        return self.run(resync.resync(name, yes=yes, force=force))

    def reverse(self, name: str, *, yes: bool, force: bool = False) -> Result:
        return self.run(reverse.reverse(name, yes=yes, force=force))

    def resume_operation(self, name: str, *, yes: bool) -> Result:
        return self.run(resume_operation.resume_operation(name, yes=yes))

    def takeover(self, name: str, *, source: str = "", yes: bool) -> Result:
        if source:
            return self.run(takeover.choose_source(name, source))
        return self.run(takeover.takeover(name, yes=yes))

    def adopt(
        self, endpoint: str, *, other: str = "", mirror: str = "", name: str = "", yes: bool
    ) -> Result:
        return self.run(adopt.adopt(endpoint, other=other, mirror=mirror, name=name, yes=yes))

    def restore_files(
        self,
        name: str,
        paths: list[str],
        *,
        snapshot: str | None,
        into: Path | None,
        overwrite: bool,
    ) -> Result:
        return self.run(
            restore.restore_files(
                name, tuple(paths), snapshot=snapshot, into=into, overwrite=overwrite
            )
        )

    def restore_all(
        self, name: str, *, snapshot: str | None, yes: bool, force: bool = False
    ) -> Result:
        return self.run(restore.restore_all(name, snapshot=snapshot, yes=yes, force=force))

    def release(self, name: str) -> Result:
        return self.run(release.release(name))

    def delete(self, name: str, *, yes: bool, keep_snapshots: bool) -> Result:
        return self.run(delete.delete(name, yes=yes, keep_snapshots=keep_snapshots))

    def change_source(self, name: str, source: str) -> Result:
        return self.run(change_source.change_source(name, source))

    def throttle(self, name: str, rate: str) -> Result:
        return self.run(throttle.throttle(name, rate))

    def prune(self, name: str, *, dry_run: bool, accept: bool) -> Result:
        return self.run(prune.prune(name, dry_run=dry_run, accept=accept))

    def unpin(self, name: str, mirror_id: str) -> Result:
        return self.run(prune.unpin(name, mirror_id))

    def accept_clock(self) -> Result:
        return self.run(alarms.accept_clock())

    def reload(self) -> Result:
        return self.run(reload.reload())

    def alarms(self, *, up: bool = True) -> list[AlarmRecord]:
        return list(self.run(alarms.alarms(past=not up)).alarms)

    def schedules(self) -> list[NamedSchedule]:
        return self.run(schedule.schedules())

    def schedule_next(self, name: str, *, count: int = 10) -> NextRuns:
        return self.run(schedule.schedule_next(name, count=count))

    def status(self, name: str | None = None) -> list[MirrorStatus]:
        return self.run(status.status(name))

    def history(self, name: str, *, limit: int) -> History:
        return self.run(history.history(name, limit=limit))

    def pause_once(self, name: str, *, count: int = 1) -> PauseTest:
        return self.run(group.group_test(name, count=count))

    def snapshots(self, name: str) -> SnapshotTable:
        return self.run(snapshots.snapshots(name))

    def delta(
        self, name: str, *, base: str | None, incremental: str | None, states: bool, files: bool
    ) -> DeltaReport:
        return self.run(
            delta.delta(name, base=base, incremental=incremental, quick=not states, files=files)
        )

    def delete_diverged(self, name: str, snapshot: str) -> Result:
        return self.run(snapshots.delete_diverged(name, snapshot))

    def verify(self, name: str, **options: Any) -> Result:
        return self.run(verify.verify(name, **options))

    def explain(self, name: str) -> Result:
        return self.run(explain.explain(name))


class Service(api.Service, Verbs):
    """The service in this process."""


class Client(client.Client, Verbs):
    """The client of a daemon."""
