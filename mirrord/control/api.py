"""`Service`: every verb and report by the mirror's name. The only way from the CLI to the engine.

All methods raise `MirrordError` and nothing else (bugs apart); results are plain values. Each
loads only the part of the engine that it needs: a command's start is part of its manners.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mirrord.config import strict
from mirrord.config.host import check_links
from mirrord.config.host import load as load_host
from mirrord.config.hosts import Hosts
from mirrord.config.reading import as_keep, as_rates, recursive_end
from mirrord.config.together import check_together
from mirrord.control import creating
from mirrord.control.opening import Opener
from mirrord.control.places import check_places
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import (
    ConfigError,
    Damaged,
    IoFailed,
    NoSpace,
    NotFound,
    Refused,
    UsageError,
)
from mirrord.core.model import SITE_NAMES, Definition, Pace, Promise, Timing
from mirrord.core.names import check_mirror_name
from mirrord.core.results import Result
from mirrord.core.states import State, Verb
from mirrord.core.status import MirrorStatus, Reading, judge
from mirrord.engine import direction
from mirrord.engine.direction import Turned
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system import clock
from mirrord.system.explain import explained

if TYPE_CHECKING:
    from mirrord.core.records import AlarmRecord
    from mirrord.core.reports import DeltaReport, History, NamedSchedule, NextRuns, SnapshotTable

_TEST = "break --test"
_NOT_RECORDED = "the break is recorded at the destination only"


class Service(Opener):
    """Every verb and report of mirrord on this host."""

    # Definitions

    def create(
        self,
        name: str,
        source: str = "",
        destination: str = "",
        *,
        members: tuple[str, ...] = (),
        keep_source: int | str = 2,
        keep_destination: int | str = 10,
        snapshots: tuple[str, ...] = (),
        schedule: str = "",
        rpo: str = "",
        throttle: str = "",
        recursive: bool = False,
        sites: tuple[str, ...] = SITE_NAMES,
    ) -> Result:
        """Define a mirror after checking both ends; transfers no data.

        members: of a mirror with several, in place of source and destination, each as
        `SOURCE=DESTINATION`. sites: the names of the source's and the destination's place.
        """
        if not all(snapshots):
            raise UsageError("a pattern for replicated user snapshots is empty")
        beside = bool(recursive or snapshots)
        pairs = creating.pairs(source, destination, members, beside=beside)
        ends = [pairs[0].source, pairs[0].destination]
        if recursive:
            ends = [recursive_end(end, str(end)) for end in ends]
        first, second = creating.two_sites(sites)
        definition = Definition(
            name=check_mirror_name(name),
            id=os.urandom(4).hex(),
            source=ends[0],
            destination=ends[1],
            keep_source=as_keep(keep_source),
            keep_destination=as_keep(keep_destination),
            snapshots=snapshots,
            timing=Timing((schedule,) if schedule else ()),
            promise=Promise(strict.duration(rpo) if rpo else None),
            pace=Pace(as_rates(throttle) if throttle else ""),
            site_names=(first, second),
            source_site=first,
            members=pairs if members else (),
        )
        with explained():
            self.paths.make()
            self.definitions.check_free(name)
            if schedule:
                from mirrord.config.schedules import Schedules

                Schedules(self.paths.schedules, zone=self.host.zone).of(definition)
            check_together([*self.definitions.all(), definition])
            mirror = self._open(definition)
            notes = check_places(mirror)
            definition = self.definitions.add(definition)
            direction.record(mirror.catalogue, definition.id, first)
            mirror.catalogue.add_mirror(definition.id, State.UNINITIALIZED)
        text = f"'{name}' is defined in {definition.file}."
        for note in notes:
            text += f"\nNote: {note}"
        text += f"\nNext: 'mirrord initialize {name}'."
        return Result("done", text, {"name": name, "file": definition.file, "notes": list(notes)})

    def check(self) -> Result:
        """Read all definitions strictly, each by itself in either direction, and all together."""
        with explained():
            found = self.definitions.all()
            either = [one for each in found for one in self.definitions.both(each.name)]
            check_links(either, load_host(self.paths.host), str(self.paths.host))
            Hosts(self.paths.hosts).all()
            if any(definition.timing.rules for definition in either):
                from mirrord.config.schedules import Schedules

                schedules = Schedules(self.paths.schedules)
                for definition in either:
                    schedules.of(definition)
        count = len(found)
        return Result(
            "done",
            f"{count} definition{'' if count == 1 else 's'} in {self.definitions.folder}: "
            f"{'all ' if count > 1 else ''}valid."
            if count
            else f"No mirrors are defined in {self.definitions.folder}.",
            {"mirrors": [definition.name for definition in found]},
        )

    # Verbs

    def update_known(self, definition: Definition) -> Result:
        """Update by a definition that was read earlier, even if its file changed since."""
        from mirrord.engine import update

        with self._recorded(Verb.UPDATE, definition), explained():
            if self._source_of(definition.id) not in ("", definition.source_site):
                return self._with(definition.name, update.update)  # it was reversed since
            try:
                return self.at(definition, update.update)
            except Turned:
                return self._with(definition.name, update.update)

    def initialize(self, name: str) -> Result:
        """See `mirrord.engine.update.initialize`."""
        from mirrord.engine import update

        return self._verb(Verb.INITIALIZE, name, update.initialize)

    def update(self, name: str) -> Result:
        """See `mirrord.engine.update.update`."""
        from mirrord.engine import update

        return self._verb(Verb.UPDATE, name, update.update)

    def abort(self, name: str, *, hard: bool) -> Result:
        """See `mirrord.engine.simple.abort`."""
        from mirrord.engine import simple

        return self._verb(Verb.ABORT, name, lambda mirror: simple.abort(mirror, hard=hard))

    def quiesce(self, name: str) -> Result:
        """See `mirrord.engine.simple.quiesce`."""
        from mirrord.engine import simple

        return self._verb(Verb.QUIESCE, name, simple.quiesce)

    def resume(self, name: str) -> Result:
        """See `mirrord.engine.simple.resume`."""
        from mirrord.engine import simple

        return self._verb(Verb.RESUME, name, simple.resume)

    def break_off(self, name: str, *, snapshot: str | None = None) -> Result:
        """See `mirrord.engine.failover.break_off`. It does not need the catalogue: where that
        cannot be used, the state is found from the ends, now and once it can be used again.
        """
        from mirrord.engine import failover

        def work(mirror: Mirror) -> Result:
            return failover.break_off(mirror, snapshot=snapshot)

        try:
            return self._verb(Verb.BREAK, name, work)
        except (Damaged, IoFailed, NoSpace) as error:
            if error.where != str(self.paths.catalogue):
                raise
            with self.without_catalogue():
                result = self._verb(Verb.BREAK, name, work)
            warning = f"{one_line(error)}; {_NOT_RECORDED}"
            data = {**result.data, "warnings": [*result.data.get("warnings", []), warning]}
            return Result(result.status, f"{result.text}\nWarning: {warning}", data)

    def begin_test(self, name: str, *, place: str = "") -> Result:
        """See `mirrord.engine.failover.begin_test`."""
        from mirrord.engine import failover

        return self._verb(
            Verb.BREAK, name, lambda mirror: failover.begin_test(mirror, place), kind=_TEST
        )

    def end_test(self, name: str) -> Result:
        """See `mirrord.engine.failover.end_test`."""
        from mirrord.engine import failover

        return self._verb(Verb.BREAK, name, failover.end_test, kind=_TEST)

    def resync(self, name: str, *, yes: bool, force: bool = False) -> Result:
        """See `mirrord.engine.failover.resync`."""
        from mirrord.engine import failover

        return self._verb(
            Verb.RESYNC, name, lambda mirror: failover.resync(mirror, yes=yes, force=force)
        )

    def takeover(self, name: str, *, source: str = "", yes: bool) -> Result:
        """See `mirrord.engine.relation.take_over`, and with the name of a site `choose_source`."""
        from mirrord.engine import relation

        if source:
            from mirrord.control import adopting

            return adopting.choose_source(self, name, source)
        return self._verb(Verb.TAKEOVER, name, lambda mirror: relation.take_over(mirror, yes=yes))

    def adopt(
        self, endpoint: str, *, other: str = "", mirror: str = "", name: str = "", yes: bool
    ) -> Result:
        """See `mirrord.control.adopting.adopt`."""
        from mirrord.control import adopting

        return adopting.adopt(self, endpoint, other=other, mirror=mirror, name=name, yes=yes)

    def resume_operation(self, name: str, *, yes: bool) -> Result:
        """See `mirrord.engine.simple.resume_operation`."""
        from mirrord.engine import simple

        return self._verb(
            Verb.RESUME_OPERATION, name, lambda mirror: simple.resume_operation(mirror, yes=yes)
        )

    def reverse(self, name: str, *, yes: bool, force: bool = False) -> Result:
        """See `mirrord.engine.failover.reverse`."""
        from mirrord.engine import failover

        with explained():
            before = self.definition(name).source

        def work(mirror: Mirror) -> Result:
            if mirror.definition.source != before:
                return failover.turned(mirror)
            return failover.reverse(mirror, yes=yes, force=force)

        return self._verb(Verb.REVERSE, name, work)

    def restore_files(
        self,
        name: str,
        paths: list[str],
        *,
        snapshot: str | None,
        into: Path | None,
        overwrite: bool,
    ) -> Result:
        """See `mirrord.engine.restore.restore_files`."""
        from mirrord.engine import restore

        return self._verb(
            Verb.RESTORE,
            name,
            lambda mirror: restore.restore_files(
                mirror, paths, snapshot=snapshot, into=into, overwrite=overwrite
            ),
        )

    def restore_all(
        self, name: str, *, snapshot: str | None, yes: bool, force: bool = False
    ) -> Result:
        """See `mirrord.engine.restore.restore_all`."""
        from mirrord.engine import restore

        return self._verb(
            Verb.RESTORE,
            name,
            lambda mirror: restore.restore_all(mirror, snapshot=snapshot, yes=yes, force=force),
        )

    def release(self, name: str) -> Result:
        """See `mirrord.engine.simple.release`."""
        from mirrord.engine import simple

        return self._verb(Verb.RELEASE, name, simple.release)

    def delete(self, name: str, *, yes: bool, keep_snapshots: bool) -> Result:
        """See `mirrord.engine.simple.delete`."""
        from mirrord.engine import simple

        return self._verb(
            Verb.DELETE,
            name,
            lambda mirror: simple.delete(mirror, yes=yes, keep_snapshots=keep_snapshots),
        )

    def change_source(self, name: str, source: str) -> Result:
        """See `mirrord.engine.cascade.change_source`."""
        from mirrord.engine import cascade

        endpoint = parse_endpoint(source, what="source")
        definition = self.definition(name)
        cascade.refuse_members(definition)
        others = [one for one in self.definitions.all() if one.name != name]
        check_together([*others, definition._replace(source=endpoint)])
        return self._verb(
            Verb.CHANGE_SOURCE,
            name,
            lambda mirror: cascade.change_source(mirror, endpoint, self.driver(endpoint)),
        )

    def throttle(self, name: str, rate: str) -> Result:
        """Set how fast a mirror may transfer, for the running transfer too; docs/schedules.md."""
        with explained():
            before = self.definition(name).pace.throttle or "unlimited"
            text = "" if rate.strip() in ("unlimited", "none") else as_rates(rate)
            self.definitions.set_throttle(name, text)
        now = text or "unlimited"
        return Result(
            "done",
            f"The rate limit of '{name}' is now {now} (before: {before}); a running transfer "
            "applies it within a second.",
            {"throttle": now, "before": before},
        )

    def prune(self, name: str, *, dry_run: bool, accept: bool, unpin: str = "") -> Result:
        """See `mirrord.engine.prune.prune_now`, and with a mirror's id `unpin`."""
        from mirrord.engine import prune

        if unpin and (dry_run or accept):
            raise UsageError(
                "'--unpin' cannot be combined with '--dry-run' or '--accept'",
                hint=f"'mirrord prune {name} --dry-run' says what is pinned; it changes nothing.",
            )

        def work(mirror: Mirror) -> Result:
            if unpin:
                return prune.unpin(mirror, unpin)
            return prune.prune_now(mirror, dry_run=dry_run, accept=accept)

        return self._verb(Verb.PRUNE, name, work)

    def recover(self, name: str) -> str:
        """Finish what a crash interrupted on this mirror; returns that verb, or ""."""
        from mirrord.engine.recovery import recover

        def work(mirror: Mirror) -> str:
            operation = mirror.catalogue.operation(mirror.id)
            if operation is None:
                return ""
            with mirror.hold(Verb.ABORT):
                recover(mirror)
            return operation.verb

        return self._with(name, work)

    def accept_clock(self) -> Result:
        """Accept the clock change: what was held back for it continues."""
        with explained():
            doubt = self.catalogue.fact("clock_doubt")
            if doubt is None:
                return Result("already_accepted", "No clock change is pending.")
            self.catalogue.set_fact("clock_doubt", None)
        return Result("done", "The clock change is accepted.", {"doubt": doubt})

    def reload(self) -> Result:
        """Read the definitions again, in the daemon."""
        raise Refused(
            "the daemon is not running",
            where=str(self.paths.run),
            hint="Commands read the definitions each time. 'systemctl start mirrord' starts it.",
        )

    # Reports

    def alarms(self, *, up: bool = True) -> list[AlarmRecord]:
        """The active alarms, or all that are recorded; newest first."""
        with explained():
            names = {d.id: d.name for d in self._readable()}
            return [
                row._replace(mirror=names.get(row.mirror_id or "", ""))
                for row in self.catalogue.alarms(up=up)
            ]

    def _readable(self) -> Iterator[Definition]:
        for name in self.definitions.names():
            try:
                yield self.definitions.load_listed(name)
            except (ConfigError, NotFound):
                continue

    def schedules(self) -> list[NamedSchedule]:
        """The named schedules: the owner's and the predefined ones."""
        from mirrord.control import timing

        with explained():
            return timing.named(self.paths.schedules)

    def schedule_next(self, name: str, *, count: int = 10) -> NextRuns:
        """When a mirror runs next, and why."""
        from mirrord.control import timing

        return self._with(
            name, lambda mirror: timing.next_times(mirror, self.paths.schedules, count=count)
        )

    def status(self, name: str | None = None) -> list[MirrorStatus]:
        """The status of one mirror, or of all."""
        if name is not None:
            return [self._status(name)]
        rows = map(self._status_or_problem, self.definitions.names())
        return [row for row in rows if row is not None]

    def _status(self, name: str) -> MirrorStatus:
        from mirrord.engine import report

        try:
            return self._with(name, report.status)
        except Refused as error:  # neither the catalogue nor the ends say which one is the source
            return _unread(name, f"{error} {error.hint}")

    def _status_or_problem(self, name: str) -> MirrorStatus | None:
        """One wrong definition must not hide the status of the others. None: deleted meanwhile."""
        try:
            return self._status(name)
        except (ConfigError, UsageError) as error:  # UsageError: the file's name is no name
            return _unread(name, str(error))
        except NotFound:
            if name in self.definitions.names():
                raise
            return None

    def history(self, name: str, *, limit: int) -> History:
        """See `mirrord.engine.listings.history`."""
        from mirrord.engine import listings

        return self._with(name, lambda mirror: listings.history(mirror, limit=limit))

    def snapshots(self, name: str) -> SnapshotTable:
        """See `mirrord.engine.listings.snapshots`."""
        from mirrord.engine import listings

        return self._with(name, listings.snapshots)

    def delta(
        self, name: str, *, base: str | None, incremental: str | None, states: bool, files: bool
    ) -> DeltaReport:
        """See `mirrord.engine.delta.delta`."""
        from mirrord.engine.delta import delta

        return self._with(
            name,
            lambda mirror: delta(
                mirror, base=base, incremental=incremental, states=states, files=files
            ),
        )

    def delete_diverged(self, name: str, snapshot: str) -> Result:
        """See `mirrord.engine.simple.delete_diverged`."""
        from mirrord.engine import simple

        return self._verb(Verb.PRUNE, name, lambda mirror: simple.delete_diverged(mirror, snapshot))

    def explain(self, name: str) -> Result:
        """See `mirrord.engine.explain.explain`."""
        from mirrord.engine import explain

        return self._with(name, explain.explain)


def _unread(name: str, problem: str) -> MirrorStatus:
    """The status of a mirror whose definition cannot be read."""
    return judge(Reading(name, problem=problem), now_ns=clock.now_ns())
