"""One end of a mirror: the volumes of all its members, driven as if they were one volume.

Snapshots of an end are sets (mirrord/core/sets.py). Every operation runs at each member in the
mirror's order, and each step of it is idempotent: an operation that was interrupted between two
members is finished by running it again. Data is sent by each member, not by an end (ship.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from mirrord.core import sets
from mirrord.core.errors import Busy, InvariantError, MirrordError, NotFound, Refused, Unsupported
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    OpenWriter,
    ReceiveRequest,
    Role,
    Snapshot,
    SnapshotKind,
    Staging,
    VolumeFacts,
)
from mirrord.core.relationship import Relationship
from mirrord.core.sets import base_parts, joined, parts_of
from mirrord.drivers.contract import Capability, Clones, Driver, Pool, clones_of
from mirrord.drivers.refusals import base_missing, staging_missing
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.engine import plan, together
from mirrord.engine.joint import Joint, at_once, deletions
from mirrord.system import clock


class Members(Joint, Clones):
    """The members' volumes at one end, in the mirror's order."""

    def present(self) -> Members:
        """The same end without the members that are lost; `self` when none or all are lost."""
        return self._without([role is not Role.ABSENT for role in self.roles()])

    def mounted(self) -> Members:
        """The same without the members below whose path is another kind of file system: theirs is
        not mounted; `self` when none or all are like that.
        """
        return self._without([_is_mounted(one) for one in self.drivers]) if self._others else self

    def _without(self, there: Sequence[bool]) -> Members:
        if all(there) or not any(there):
            return self
        kept = [n for n, here in enumerate(there) if here]
        return Members([self.drivers[n] for n in kept], [self.names[n] for n in kept])

    # Facts and snapshots

    def facts(self) -> VolumeFacts:
        """See `Volume.facts`. An end of which a member is lost is ABSENT, and the first note names
        that member; one that has a LIVE member is LIVE.
        """
        found = [driver.facts() for driver in self.drivers]
        return together.facts(
            found,
            self._labels,
            location=self.location,
            shown=self._one_set([one.shown for one in found]),
            origin=self._one_set([one.origin for one in found]),
        )

    def _one_set(self, guids: Sequence[str | None]) -> str | None:
        """The set of these snapshots, one of each member; None when they do not form one."""
        known = [guid for guid in guids if guid is not None]
        if len(known) < len(self.drivers):
            return None
        for number in range(1, len(known)):
            if self._name(number, known[number]) != self._name(0, known[0]):
                return None
        return joined(known)

    def _name(self, number: int, guid: str) -> str:
        """The name of a member's snapshot; a unique string for one that it no longer has."""
        if (number, guid) not in self._seen:
            for one in self.drivers[number].snapshots():
                self._seen[number, one.guid] = one.name
        return self._seen.get((number, guid), f"{number} {guid}")

    def snapshots(self) -> list[Snapshot]:
        """See `Volume.snapshots`: the sets, including incomplete ones, which are not intact."""
        return sets.gathered([driver.snapshots() for driver in self.drivers])

    def members(self, guid: str) -> dict[str, str]:
        """See `Volume.members`."""
        found: dict[str, str] = {}
        for driver, name, part in zip(self.drivers, self.names, self.parts(guid), strict=True):
            paths = driver.members(part).items()
            found |= {one: "/".join(filter(None, (name, path))) for one, path in paths}
        return found

    def changed_since(self, guid: str) -> bool:
        """See `Volume.changed_since`."""
        return any(
            driver.changed_since(part)
            for driver, part in zip(self.drivers, self.parts(guid), strict=True)
        )

    def delete_snapshot(self, guid: str) -> None:
        """See `Volume.delete_snapshot`."""
        self.begin_delete(guid)()

    def begin_delete(self, guid: str) -> Callable[[], None]:
        """See `Volume.begin_delete`. A set of which any member needs its snapshot stays complete:
        that member comes first, and refuses.
        """
        there = [(d, p) for d, p in zip(self.drivers, self.parts(guid), strict=True) if p]
        needed = [
            number
            for number, (driver, part) in enumerate(there[1:], 1)
            if driver.facts().shown == part or part in driver.pins()
        ]
        deletes = deletions([there[number] for number in (*needed, *range(len(there)))])

        def finish() -> None:
            for delete in deletes:
                delete()

        return finish

    def in_use(self, guid: str) -> str:
        """See `Volume.in_use`: at any member."""
        found = zip(self.drivers, self.parts(guid), strict=True)
        return next(filter(None, (driver.in_use(part) for driver, part in found if part)), "")

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """See `Volume.pin`."""
        wanted = [self.parts(guid) for guid in guids]
        for number, driver in enumerate(self.drivers):
            driver.pin(
                mirror_id, [parts[number] for parts in wanted if parts[number] or not any(parts)]
            )

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`: those of the first member. They may differ, so
        `mirrord.engine.relation` asks each of them.
        """
        return self.drivers[0].relationships()

    def relate(self, record: Relationship, after: int) -> None:
        """See `Volume.relate`."""
        for driver in self.drivers:
            driver.relate(record, after)

    def unrelate(self, mirror_id: str) -> None:
        """See `Volume.unrelate`."""
        for driver in self.drivers:
            driver.unrelate(mirror_id)

    def _relate(self, record: Relationship) -> NoReturn:
        raise InvariantError(f"{self}: each member keeps its record itself")

    def _unrelate(self, mirror_id: str) -> NoReturn:
        raise InvariantError(f"{self}: each member keeps its record itself")

    def reclaim(self) -> None:
        """See `Volume.reclaim`."""
        for driver in self.drivers:
            driver.reclaim()

    # Source

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Source.own_snapshots`: none where it is not known which of them form a set."""
        return [] if self._others else self.drivers[0].own_snapshots(patterns)

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Source.take_snapshot`: together for members next to each other, at the same time for
        the rest. Those (`spread_ms`) are of one moment only while writers are paused.
        """
        taken: dict[Driver, tuple[Snapshot, float]] = {}
        works = [partial(_taken, some, name) for some in self._beside()]
        for found_there in at_once(works):
            taken |= found_there
        every = [taken[driver][0] for driver in self.drivers]
        self.took_s = [taken[driver][1] for driver in self.drivers]
        found = sets.together(every)
        times = [one.taken_at_ns for one in every]
        spread_ns = max(max(times) - min(times), *(one.spread_ns for one in every))
        if len(works) > 1 and self.remote:  # clocks of hosts are not compared
            spread_ns = round(1e9 * max(self.took_s))
        self._spread_ms[found.guid] = spread_ns // 1_000_000
        return found

    def _beside(self) -> list[list[Driver]]:
        """The members in groups whose snapshots are taken together."""
        groups: list[list[Driver]] = []
        for driver in self.drivers:
            for some in groups:
                if isinstance(some[0], Pool) and some[0].is_beside(driver):
                    some.append(driver)
                    break
            else:
                groups.append([driver])
        return groups

    def make_ready(self, name: str) -> None:
        """See `Source.make_ready`."""
        works = [partial(driver.make_ready, name) for driver in self.drivers]
        at_once(works)

    def spread_ms(self, guid: str) -> int | None:
        """How far apart in time the snapshots of a set taken by this object are; None for any other
        set. Where other hosts took several parts of it: how long taking the slowest one took.
        """
        return self._spread_ms.get(guid)

    def base_left(self, guid: str) -> Snapshot | None:
        """See `Source.base_left`. Members that still have the snapshot use that."""
        found = []
        for driver, part in zip(self.drivers, self.parts(guid), strict=True):
            one = driver.base_left(part)
            if one is None and self._others:
                one = next(
                    (s for s in driver.snapshots() if s.guid == part and plan.usable(s)), None
                )
            if one is None:
                return None
            found.append(one)
        return sets.together(found)

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Source.delta`: the sum."""
        count = len(self.drivers)
        parts = zip(
            self.drivers, base_parts(base, count), parts_of(incremental, count), strict=True
        )
        found = [
            driver.delta(before, after, states=states, files=files)
            for driver, before, after in parts
        ]
        return together.delta(base, incremental, found, self._folders)

    def changes(self, base: str, incremental: str) -> Changes:
        """See `Source.changes`."""
        return self._only("changed blocks cannot be recorded").changes(base, incremental)

    def send(
        self, base: str | None, incremental: str, *, checkpoint: dict[str, int | str] | None = None
    ) -> SendStream:
        """See `Source.send`."""
        sender = self._only("there is no single stream")
        return sender.send(base, incremental, checkpoint=checkpoint)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Destination.prepare`. Locations in use come first: they may refuse."""
        for driver in sorted(self.drivers, key=lambda one: one.facts().role is Role.ABSENT):
            driver.prepare(mirror_id, in_place=in_place)

    def receive(self, request: ReceiveRequest) -> Receiver:
        """See `Destination.receive`."""
        return self._only("there is no single stream").receive(request)

    def stagings(self) -> list[Staging]:
        """See `Destination.stagings`; complete: every member has it, staged or committed."""
        listed = [{one.transfer_id: one for one in d.stagings()} for d in self.drivers]
        found = []
        for transfer_id in dict.fromkeys(name for staged in listed for name in staged):
            parts = [staged.get(transfer_id) for staged in listed]
            name = next(one.snapshot.name for one in parts if one is not None)
            held = [
                None if part else self._committed(driver, name)
                for driver, part in zip(self.drivers, parts, strict=True)
            ]
            found.append(together.staging(parts, held))
        return found

    def held(self, name: str) -> set[str]:
        """The members' snapshots of the set of that name, as far as they have committed it."""
        found = (self._committed(driver, name) for driver in self.drivers)
        return {one.guid for one in found if one is not None}

    @staticmethod
    def _committed(driver: Driver, name: str) -> Snapshot | None:
        """A member's committed snapshot of a set that other members have staged."""
        for one in driver.snapshots():
            if one.name == name and one.intact and one.kind is not SnapshotKind.DIVERGED:
                return one
        return None

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Destination.commit`. Where a driver can commit without showing, no member shows the
        set before every other one holds it: so a set that any member shows is complete.
        """
        if Capability.SHOW_LATER in self.capabilities:
            first, last = self.drivers[:-1], self.drivers[-1:]
        else:  # the staging of each member must be complete before the first one shows it
            self._demand_complete(transfer_id)
            first, last = (), self.drivers
        for driver in first:
            driver.commit(transfer_id, show=False)
        done = {driver: driver.commit(transfer_id, show=show) for driver in (*last, *first)}
        return sets.together([done[driver] for driver in self.drivers])

    def _demand_complete(self, transfer_id: str) -> None:
        if self._others and any(
            one.transfer_id == transfer_id and not one.complete for one in self.stagings()
        ):
            raise staging_missing(str(self), transfer_id)

    def discard(self, transfer_id: str) -> None:
        """See `Destination.discard`."""
        for driver in self.drivers:
            driver.discard(transfer_id)

    # Failing over and back

    def promote(self, guid: str | None = None) -> None:
        """See `Failover.promote`. All members begin as snapshots of one set."""
        begun = self._others and set(self.roles()) == {Role.LIVE}
        guid = None if begun else guid or self._beginning()
        for driver, part in zip(self.drivers, base_parts(guid, len(self.drivers)), strict=True):
            if guid is not None and part is None:
                raise base_missing(str(driver), guid)
            driver.promote(part)

    def _beginning(self) -> str | None:
        """The set that a promotion begins with; None: a single member chooses by itself."""
        if not self._others:
            return None
        found = [driver.facts() for driver in self.drivers]
        live = self._names([one.origin if one.role is Role.LIVE else None for one in found])
        shown = self._names([one.shown for one in found])
        chosen = plan.beginning(self.snapshots(), live, shown)
        if chosen is None:
            foreign = [one for one in found if one.role is Role.FOREIGN]
            why = "there is no set of which every member has an intact snapshot"
            raise Refused(
                "there is no complete set to promote",
                where=foreign[0].location if foreign else str(self),
                why=", ".join(foreign[0].notes) or why if foreign else why,
                hint="Move that away: the other members are then made writable without it."
                if foreign
                else "",
            )
        return chosen

    def _names(self, guids: Sequence[str | None]) -> set[str]:
        return {self._name(number, guid) for number, guid in enumerate(guids) if guid}

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Failover.writers`."""
        found: list[OpenWriter] = []
        for driver in self.drivers:
            found += driver.writers(kept, limit=limit - len(found))
        return found

    def freeze(self) -> None:
        """See `Failover.freeze`: all or none."""
        frozen: list[Driver] = []
        try:
            for driver in self.drivers:
                driver.freeze()
                frozen.append(driver)
        except BaseException:
            for driver in frozen:
                with suppress(MirrordError, OSError):
                    driver.thaw()
            raise

    def thaw(self) -> None:
        """See `Failover.thaw`."""
        self._all(lambda driver: driver.thaw())

    def mark(self) -> str:
        """See `Failover.mark`: a line for each member."""
        return "\n".join(driver.mark() for driver in self.drivers)

    def is_marked(self, mark: str) -> bool:
        """See `Failover.is_marked`."""
        return all(
            driver.is_marked(line)
            for driver, line in zip(self.drivers, self.marks(mark), strict=True)
        )

    def marks(self, mark: str) -> list[str]:
        """The part of such a mark to compare each member with."""
        lines = mark.split("\n")
        return lines if len(lines) == len(self.drivers) else [mark] * len(self.drivers)

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Failover.divergence`: the sum of the members that are not yet set aside."""
        parts = zip(self.drivers, self.parts(guid), self._folders, strict=True)
        found = [
            (driver.divergence(part, limit=limit), folder)
            for driver, part, folder in parts
            if not self._others or driver.facts().role is Role.LIVE
        ]
        return together.divergence(guid, found, limit=limit)

    def losses(self, guid: str) -> Divergence | None:
        """What `rollback(guid)` would take from members that are live and were changed since; None:
        nothing.
        """
        parts = zip(self.drivers, self.parts(guid), self._folders, strict=True)
        found = [
            (driver.divergence(part), folder)
            for driver, part, folder in parts
            if driver.facts().role is Role.LIVE and driver.changed_since(part)
        ]
        return together.divergence(guid, found, limit=100) if found else None

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Failover.rollback`. Only the members that were changed have something to keep."""
        parts = self.parts(guid)
        if not all(parts):
            raise base_missing(str(self), guid)
        kept = [
            driver.rollback(part, mirror_id=mirror_id, keep_as=keep_as)
            for driver, part in zip(self.drivers, parts, strict=True)
        ]
        return next((name for name in kept if name is not None), None)

    def go_back(self, ahead: str, complete: str | None, mirror_id: str, name: str) -> None:
        """Roll members that show their part of an incomplete set back to an older set; then delete
        the parts of the incomplete one.
        """
        parts = zip(self.drivers, self.parts(ahead), self.parts(complete or ""), strict=True)
        for driver, part, older in parts:
            if part and older and driver.facts().shown == part:
                driver.rollback(older, mirror_id=mirror_id, keep_as=name)
        with suppress(Busy):  # it is mounted: an update deletes it later, as left over
            self.delete_snapshot(ahead)

    def reinstate(self, name: str) -> None:
        """See `Failover.reinstate`."""
        if not self.put_back(name):
            raise NotFound("nothing is set aside under that name", where=str(self), why=name)

    def put_back(self, name: str, base: str | None = None) -> bool:
        """Make live again what was set aside under that name; members for which nothing was kept
        had no other changes: they begin as `base`, or as what they show. False: nothing was kept.
        The last member comes first: one that is live has only live ones behind it, if interrupted.
        """
        listed = [one for driver in self.drivers for one in driver.snapshots()]
        found = any(one.name == name and one.intact for one in listed)
        bare: list[Callable[[], None]] = []
        parts = base_parts(base, len(self.drivers))
        for driver, part in reversed([*zip(self.drivers, parts, strict=True)]):
            try:
                driver.reinstate(name)
                found = True
            except NotFound:
                bare.append(partial(driver.promote, part))
            while found and bare:
                bare.pop(0)()
        return found

    def forget(self) -> None:
        """See `Failover.forget`."""
        for driver in self.drivers:
            driver.forget()

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Clones.begin_test`."""
        return clones_of(self._only("there are no writable copies")).begin_test(place)

    def end_test(self) -> bool:
        """See `Clones.end_test`."""
        return clones_of(self._only("there are no writable copies")).end_test()


def _taken(some: Sequence[Driver], name: str) -> dict[Driver, tuple[Snapshot, float]]:
    """Take the snapshots of volumes next to each other; each with how many seconds that took."""
    began_s = clock.monotonic_s()
    first, *others = some
    if others:
        assert isinstance(first, Pool), first
        pools = [one for one in others if isinstance(one, Pool)]
        taken = first.take_together(name, pools)
    else:
        taken = [first.take_snapshot(name)]
    took_s = clock.monotonic_s() - began_s
    return {driver: (one, took_s) for driver, one in zip(some, taken, strict=True)}


def _is_mounted(driver: Driver) -> bool:
    try:
        driver.facts()
    except Unsupported:
        return False
    return True
