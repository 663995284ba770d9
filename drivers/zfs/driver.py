"""The OpenZFS driver: the contract of drivers/base.py over datasets.

This module is the contract's face; marks.py says what is remembered where, running.py how an
update becomes visible in one step, failover.py how a volume goes back without losing anything.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator
from typing import ClassVar

from mirrord.core.errors import MirrordError, NoSpace, Refused
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
from mirrord.drivers import base as texts
from mirrord.drivers.base import Capability, Driver
from mirrord.drivers.zfs import (
    cache,
    command,
    commit,
    compare,
    copies,
    counters,
    delegation,
    deleting,
    deltas,
    failover,
    features,
    freezing,
    holding,
    listing,
    locking,
    mounting,
    names,
    proof,
    receive,
    running,
    standing,
    stream,
    survey,
    taking,
    writers,
)
from mirrord.drivers.zfs.listing import Entry, Listing
from mirrord.drivers.zfs.marks import SnapshotMark
from mirrord.drivers.zfs.place import Place
from mirrord.drivers.zfs.sight import Sight
from mirrord.drivers.zfs.stream import ZfsSendStream
from mirrord.system import clock, locks


class ZfsDriver(Driver):
    """One dataset, or the place where one is mirrored to. location: `pool/dataset`."""

    kind: ClassVar[str] = "zfs"
    capabilities: ClassVar[Capability] = Capability.FILES | Capability.RESUME | Capability.COPY

    def __init__(self, location: str) -> None:
        super().__init__(names.check_dataset(location, f"zfs:{location}"))
        self._sight = Sight(location, str(self))
        #: What is left of a commit to do when the volume is given back.
        self._due: commit.Due | None = None
        self._sent: list[str] = []
        self._freeze: freezing.Freeze | None = None

    def detach(self) -> None:
        """See `Driver.detach`."""
        with contextlib.suppress(MirrordError, OSError):
            self._settle()
        if self._freeze is not None:
            self.thaw()

    # Facts

    def _look(self, *, fresh: bool = False) -> Place:
        return self._sight.place(fresh=fresh)

    def _list(self, place: Place) -> Listing:
        return self._sight.listing(place)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around what changes more than a snapshot: nothing that was seen is true any more."""
        self._settle()
        try:
            yield
        finally:
            self._sight.forget()

    def _settle(self) -> None:
        """Do what is left of a commit."""
        sent, self._sent = self._sent, []
        if sent:  # each is the next base (and should one be gone, there is its bookmark)
            command.together([holding.hold("ZFS:SEND:HOLD", full) for full in sent], str(self))
        due, self._due = self._due, None
        if due is not None:
            self._sight.added(commit.settle(due, str(self)))

    def _heal(self, place: Place) -> Place:
        """Do what a process that ended left of a commit."""
        self._settle()
        due = commit.left(place, self._list(place)) if place.mark.role == "mirror" else None
        if due is None:
            return place
        commit.settle(due, str(self))
        return self._look(fresh=True)

    def _role(self, place: Place) -> tuple[Role, tuple[str, ...]]:
        return standing.role_of(place)

    def facts(self) -> VolumeFacts:
        """See `Driver.facts`."""
        place = self._look(fresh=True)
        role = self._role(place)[0]
        found = self._list(place) if role is Role.MIRROR else None
        return standing.facts_of(place, found)

    @contextlib.contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        """By name: so a place that is not there yet can be locked as well."""
        path = locking.lock_file(self.location, "lock")
        with locks.exclusive(path, purpose, what=str(self)):
            self._settle()
            self._sight.trust(True)
            try:
                yield True
            finally:
                # (Should it fail, whoever comes next does it.)
                with contextlib.suppress(MirrordError, OSError):
                    self._settle()
                self._sight.trust(False)

    # Snapshots

    def _snapshot(self, one: Entry, place: Place) -> Snapshot:
        volume = place.volume
        folder = mounting.folder_of(volume)
        if volume is not None and one.dataset != volume.name:
            folder = mounting.folder_aside(volume, one.dataset)
        return listing.snapshot_of(one, folder)

    def snapshots(self) -> list[Snapshot]:
        """See `Driver.snapshots`."""
        place = self._look()
        if self._role(place)[0] is Role.FOREIGN and place.mark.role != "forgotten":
            return []
        found = self._list(place)
        past = found.history()
        return [
            self._snapshot(one, place)._replace(aside=one.order > past.get(one.dataset, -1))
            for one in found.ours()
        ]

    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """See `Driver.own_snapshots`."""
        if not patterns:
            return []
        place = self._look()
        if self._role(place)[0] is not Role.LIVE:
            return []
        return [
            self._snapshot(one, place)
            for one in self._sight.listing(place, certain=True).own()
            if one.mark is None
            and not one.name.startswith(proof.PREFIX)
            and listing.matches(one, patterns)
        ]

    def _live(self, *, mounted: bool = True) -> Place:
        place = self._look()
        if self._role(place)[0] is not Role.LIVE:
            raise texts.not_live(str(self))
        missing = mounting.missing(place.here)
        if mounted and missing is not None:
            raise missing
        return place

    def take_snapshot(self, name: str) -> Snapshot:
        """See `Driver.take_snapshot`. It is held from when it is sent until mirrord deletes it."""
        where = str(self)
        names.check_snapshot(name, where)
        mark = SnapshotMark(SnapshotKind.REFERENCE, "", clock.now_ns())
        place = self._sight.hinted_place()
        taken = None
        if place is not None and self._role(place)[0] is Role.LIVE and mounting.there(place.here):
            taken = taking.at_once(place, name, mark)
        if place is None or taken is None:
            place = self._live()
            taken = taking.one_by_one(place, name, mark, where)
        self._sight.added(taken.entry)
        self._sight.follows(taken.entry, taken.before, taken.written)
        return self._snapshot(taken.entry, place)

    def delete_snapshot(self, guid: str) -> None:
        """See `Driver.delete_snapshot`."""
        self._settle()
        seen = self._sight.hinted_place()
        live = seen is not None and self._role(seen)[0] is Role.LIVE
        where, (place, found) = str(self), self._sight.keeping(guid, live=live)
        one = found.find(guid)
        if one is None:
            return
        if one.mark is None:
            raise Refused("the snapshot is its owner's", where=where, why=one.full)
        if place.mark.role == "mirror" and failover.shown(place, found) == guid:
            raise Refused(
                "the snapshot is what the destination shows", where=where, why=one.name,
                hint="It goes when a newer one is shown.",
            )  # fmt: skip
        change = cache.Change(place)
        deleting.delete(place, found, one, where)
        change.done(gone=guid)
        self._sight.gone(guid)
        if place.mark.kept:
            self._sight.forget()

    def changed_since(self, guid: str) -> bool:
        """See `Driver.changed_since`."""
        where, one, seen = str(self), self._sight.hint(guid), self._sight.hinted_place()
        if one is not None and seen is not None and seen.here is not None:
            live = self._role(seen)[0] is Role.LIVE and mounting.there(seen.here)
            if live and counters.moved(seen.here, guid):
                return True
            answer = compare.changed(seen.here, one, where) if live else None
            if answer is not None:
                return answer
        place = self._live()
        assert place.here is not None
        found = self._list(place)
        one = found.find(guid) or found.bookmark(guid)
        if one is None:
            raise texts.snapshot_missing(where, guid)
        if one.dataset != self.location:
            return True  # it was set aside: the volume went back to before it
        compare.sync([place.here], where)
        return compare.written(self.location, one, where) != 0

    def base_left(self, guid: str) -> Snapshot | None:
        """See `Driver.base_left`: a bookmark."""
        place = self._look(fresh=True)
        one = self._sight.listing(place, certain=True).bookmark(guid)
        if one is None or self._role(place)[0] is not Role.LIVE:
            return None
        return listing.snapshot_of(one, "")._replace(kind=SnapshotKind.REFERENCE)

    # Source

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`."""
        where = str(self)
        place, older, newer = self._sight.pair(base, incremental)
        written = None if states or files else self._sight.gap(base, incremental)
        known = deltas.small(base, incremental, written) if written is not None else None
        if known is not None:
            return known
        accounts = compare.accounts(older, newer, where)
        if accounts is None:  # not what they were
            place, older, newer = self._sight.found_pair(base, incremental)
            accounts = compare.accounts(older, newer, where)
            if accounts is None:
                raise texts.snapshot_missing(where, incremental)
        return deltas.between(place, older, newer, accounts, where, states=states, files=files)

    def changes(self, base: str, incremental: str) -> Changes:
        """See `Driver.changes`. The stream is made for it, and thrown away."""
        place, older, newer = self._sight.pair(base, incremental)
        if base == incremental:
            return Changes(b"", b"")  # of that ZFS makes no stream
        found = survey.look_through(deltas.sending(place, older, newer), str(self))
        return survey.changes(found)

    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> ZfsSendStream:
        """See `Driver.send`. The stream's own beginning says whether it is the right one."""
        place, older, newer = self._sight.pair(base, incremental)
        sending = deltas.sending(place, older, newer)
        token = stream.check_token(checkpoint, sending, str(self))
        hold = newer.mark is not None and not newer.holds
        ended = functools.partial(self._sent.append, newer.full) if hold else None
        return ZfsSendStream(sending, str(self), token, ended=ended)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`. The dataset is made by the first receive, as ZFS wants it."""
        where, place = str(self), self._look()
        role, notes = self._role(place)
        if role in (Role.LIVE, Role.FOREIGN):
            raise standing.not_empty(
                where, "it is a live volume" if role is Role.LIVE else notes[0]
            )
        owner = place.mark.mirror_id or place.prepared
        if role is Role.MIRROR and owner != mirror_id:
            raise texts.other_mirror(where, owner)
        if role is Role.MIRROR:
            return
        if notes:
            above = names.parent_of(self.location)
            raise Refused(
                "the dataset above the destination is not there", where=where, why=notes[0],
                hint=f"Make it with: zfs create -p {above}",
            )  # fmt: skip
        features.require(names.pool_of(self.location), where)
        # 'zfs recv' itself would only warn of a property, and leave the copy writable.
        delegation.require(self.location, "destination", where)
        words = [f"{names.prepared_property(self.location)}={mirror_id}",
                 names.parent_of(self.location)]  # fmt: skip
        with self._changing():
            command.effect("ZFS:PREPARE:MARK", ["zfs", "set", *words], where)

    def _mirror(self) -> Place:
        place = self._look()
        if self._role(place)[0] is not Role.MIRROR:
            raise texts.not_a_mirror(str(self))
        return place

    def receive(self, request: ReceiveRequest) -> receive.ZfsReceiver:
        """See `Driver.receive`."""
        self._settle()
        where, place = str(self), self._mirror()
        owner = place.mark.mirror_id or place.prepared
        if owner != request.mirror_id:
            raise texts.other_mirror(where, owner)
        left = running.kept(self.location) is not None
        running.drop(self.location)
        lock, waited = running.alone(self.location, where)
        try:
            # What was received may just have been saved.
            place, found = self._ready(self._look(fresh=left or waited), request)
            target = receive.target_name(found, self.location, request.snapshot, where)
            present = found.find(request.snapshot.guid) is not None
            made = receive.ZfsReceiver(
                place, request, target, where, mirror_id=owner, present=present, lock=lock
            )
        except BaseException:
            os.close(lock)
            raise
        try:
            made.ahead()
        except BaseException:
            made.close()
            raise
        return made

    def _ready(self, place: Place, request: ReceiveRequest) -> tuple[Place, Listing]:
        """Make the base the newest snapshot: nothing else can be received upon."""
        where = str(self)
        if place.here is None and place.fresh is not None:
            with self._changing():
                failover.finish_swap(place, where)
            place = self._look()
        place = self._heal(place)
        found = self._list(place)
        if request.base is None:
            if found.own():
                raise standing.not_empty(where, f"it holds the snapshot '{found.own()[-1].name}'")
            return place, found
        base = found.find(request.base)
        if base is None:
            raise texts.base_missing(where, request.base)
        own = found.own()
        if own[-1].guid == base.guid or found.find(request.snapshot.guid) is not None:
            return place, found
        refusal = receive.refuse_foreign(found, base.guid, where)
        if refusal is not None:
            raise refusal
        pin = failover.shown(place, found)  # until the commit that stays
        with self._changing():
            failover.make_anew(place, found, base, place.mark, None, where, pin=pin)
        place = self._look()
        return place, self._list(place)

    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        place = self._look()
        if receive.begun(place) is not None and running.kept(self.location) is None:
            place = self._look(fresh=True)  # what another process left may just have been saved
        return receive.stagings(place, self._list(place))

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        self._settle()
        place = self._mirror()
        try:
            done = commit.commit(place, self._list(place), transfer_id, show=show, where=str(self))
        except BaseException:
            self._sight.forget()
            raise
        entry, self._due = done.entry, done.due
        if done.fresh:
            self._sight.forget()
        else:
            self._sight.added(entry)
        if done.due is not None and not self.locked:
            self._settle()
            entry = self._sight.hint(entry.guid) or entry
        return self._snapshot(entry, done.place)

    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        place = self._look(fresh=True)
        request = receive.begun(place)
        if running.kept(self.location, transfer_id) is None:
            if request is None or request.transfer_id != transfer_id:
                return
            if self._list(place).find(request.snapshot.guid) is not None:
                return  # it is no staging any more
        with self._changing():
            receive.discard(place, str(self))

    # Failing over and back

    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`."""
        # (A pool without room may refuse to note what a commit left to be noted.)
        with contextlib.suppress(NoSpace):
            self._settle()
        with self._changing():
            self._promote(guid)

    def _promote(self, guid: str | None) -> None:
        where, place = str(self), self._look(fresh=True)
        role, here = self._role(place)[0], place.here
        if role is Role.LIVE:
            assert here is not None
            if place.mark.role == "live":
                mounting.mount("ZFS:PROMOTE:MOUNT", here)
            elif standing.nobodys(here):
                failover.promote(place, self._list(place), guid, where)
            return
        if role is not Role.MIRROR:
            raise texts.not_a_mirror(where)
        running.drop(self.location)
        if here is None and place.fresh is not None:
            failover.finish_swap(place, where)
            place = self._look(fresh=True)
        with contextlib.suppress(NoSpace):
            place = self._heal(place)
        if place.here is None:
            raise standing.nothing_shown(where)
        failover.promote(place, self._list(place), guid, where)

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`. What is kept is read-only: nobody can go on writing to it."""
        if kept:
            return []
        here = self._live(mounted=False).here
        return writers.of([here], limit) if here is not None else []

    def freeze(self) -> None:
        """See `Driver.freeze`."""
        here = self._live().here
        assert here is not None
        if self._freeze is None:
            with self._changing():
                self._freeze = freezing.Freeze([here], str(self))

    def thaw(self) -> None:
        """See `Driver.thaw`."""
        if self._role(self._look(fresh=True))[0] is Role.LIVE:
            with self._changing():
                freezing.thaw([self.location], str(self))
        self._unfreeze()

    def _unfreeze(self) -> None:
        """What this object froze is thawed, or a rollback's."""
        freeze, self._freeze = self._freeze, None
        if freeze is not None:
            freeze.release()

    def mark(self) -> str:
        """See `Driver.mark`."""
        where, place = str(self), self._look(fresh=True)
        role = self._role(place)[0]
        if role is not Role.LIVE or place.here is None:
            return proof.text(role, self._state(place))
        with self._changing():
            return proof.text(role, proof.live([place.here], where))

    def is_marked(self, mark: str) -> bool:
        """See `Driver.is_marked`."""
        where, place = str(self), self._look(fresh=True)
        role = self._role(place)[0]
        marked, state = proof.parse(mark)
        if marked is not role or role is Role.FOREIGN:
            return False
        if role is not Role.LIVE or place.here is None:
            return state == self._state(place)
        return proof.holds(state, [place.here], where)

    def _state(self, place: Place) -> list[str]:
        """What a place that is not LIVE is. (One that somebody wrote to is never the same.)"""
        if place.volume is None:
            return [place.prepared]
        found = self._list(place)
        command.run(["zpool", "sync", names.pool_of(self.location)], str(self))
        asked = ["zfs", "get", "-Hp", "-o", "value", "written", place.volume.name]
        written = command.run(asked, str(self)).strip()
        unique = secrets.token_hex(8) if written != "0" else ""
        newest = [one.guid for one in found.own()[-1:]]
        shown = failover.shown(place, found) or ""
        return [place.volume.guid, place.mark.mirror_id, shown, *newest, unique]

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`: a clone."""
        here = self._look(fresh=True)
        there = bool(here.mark.copy) and self._role(here)[0] is Role.LIVE
        if not there and self._role(here)[0] is not Role.MIRROR:
            raise texts.not_a_mirror(str(self))
        with self._changing():
            name = copies.begin(here, self._list(here), place, str(self))
        return ZfsDriver(name).facts()

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        with self._changing():
            return copies.end(self._look(fresh=True), str(self))

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        where, place = str(self), self._look(fresh=True)
        found = self._list(place)
        start = found.find(guid)
        if start is None or place.volume is None:
            raise texts.base_missing(where, guid)
        return compare.divergence(place.volume, found, start, limit=limit, where=where)

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`."""
        try:
            with self._changing():
                return self._rollback(guid, mirror_id, keep_as)
        finally:
            self._unfreeze()

    def _rollback(self, guid: str, mirror_id: str, keep_as: str) -> str | None:
        where, place = str(self), self._look(fresh=True)
        role = self._role(place)[0]
        if role is Role.FOREIGN:
            raise texts.not_a_mirror(where)
        running.drop(self.location)
        place = self._heal(place)
        found = self._list(place)
        target = found.find(guid)
        if target is None:
            raise texts.base_missing(where, guid)
        if target.mark is not None and target.mark.kind is SnapshotKind.DIVERGED:
            raise Refused("a diverged snapshot cannot be the base of a mirror", where=where)
        return failover.rollback(
            place, found, target, mirror_id=mirror_id, keep_as=keep_as, where=where
        )

    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        with self._changing():
            where, place = str(self), self._look(fresh=True)
            if self._role(place)[0] not in (Role.LIVE, Role.MIRROR) or place.volume is None:
                raise texts.not_live(where)
            running.drop(self.location)
            failover.reinstate(place, self._list(place), name, where)

    def forget(self) -> None:
        """See `Driver.forget`."""
        with self._changing():
            self._forget()

    def _forget(self) -> None:
        where, place = str(self), self._heal(self._look(fresh=True))
        request = receive.begun(place)
        running.drop(self.location)
        if request is not None and not self._list(place).find(request.snapshot.guid):
            receive.discard(place, where)
            place = self._look(fresh=True)
        if place.here is not None:
            proof.remove([place.here.name], "", where)
        deleting.forget(place, self._list(place), where, live=self._role(place)[0] is Role.LIVE)
