"""The OpenZFS driver: the contract of drivers/contract.py over datasets.

volume/ has facts and snapshots, and makes a volume live or rolls it back; this module sends and
receives. dataset/marks.py describes what is stored where, receive/held_receive.py how an update
becomes visible in one step, and failover/failover.py how a volume is rolled back without losing
anything.
"""

from __future__ import annotations

import functools
import os
import shlex
from typing import ClassVar

from mirrord.core.errors import Refused
from mirrord.core.model import (
    Changes,
    Delta,
    ReceiveRequest,
    Role,
    Snapshot,
    Staging,
)
from mirrord.drivers import refusals as texts
from mirrord.drivers.contract import Capability
from mirrord.drivers.zfs.commands import command, features
from mirrord.drivers.zfs.dataset import delegation, names
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.failover import failover
from mirrord.drivers.zfs.receive import commit, held_receive, receiver
from mirrord.drivers.zfs.snapshots import compare, deleting, proof
from mirrord.drivers.zfs.snapshots.listing import Entry, Listing
from mirrord.drivers.zfs.stream import deltas, send, survey
from mirrord.drivers.zfs.stream.send import ZfsSendStream
from mirrord.drivers.zfs.verify.trees import ZfsTrees
from mirrord.drivers.zfs.volume import place_facts
from mirrord.drivers.zfs.volume.switching import ZfsFailover


class ZfsDriver(ZfsTrees, ZfsFailover):
    """See `drivers.contract.Driver`. location: `pool/dataset`."""

    kind: ClassVar[str] = "zfs"
    capabilities: ClassVar[Capability] = Capability.FILES | Capability.RESUME | Capability.COPY
    capabilities |= Capability.POOL | Capability.VERIFY

    # Source

    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """See `Driver.delta`."""
        where = str(self)
        place, older, newer = self._cache.pair(base, incremental)
        written = None if states or files else self._cache.gap(base, incremental)
        known = deltas.small(base, incremental, written) if written is not None else None
        if known is not None:
            return known
        accounts = compare.accounts(older, newer, where)
        if accounts is None:  # they have changed
            place, older, newer = self._cache.found_pair(base, incremental)
            found = compare.accounts(older, newer, where)
            accounts = texts.demand_snapshot(found, where, incremental)
        return deltas.between(place, older, newer, accounts, where, states=states, files=files)

    def changes(self, base: str, incremental: str) -> Changes:
        """See `Driver.changes`. A stream is generated for it, and discarded."""
        place, older, newer = self._cache.pair(base, incremental)
        if base == incremental:
            return Changes(b"", b"")  # ZFS has no stream for that
        found = survey.parse_stream(deltas.sending(place, older, newer), str(self))
        return survey.changes(found)

    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> ZfsSendStream:
        """See `Driver.send`. The first record of the stream shows whether it is the right one."""
        place, older, newer = self._cache.pair(base, incremental)
        sending = deltas.sending(place, older, newer)
        token = send.check_token(checkpoint, sending, str(self))
        hold = newer.mark is not None and not newer.holds
        ended = functools.partial(self._sent.append, newer.full) if hold else None
        return ZfsSendStream(sending, str(self), token, ended=ended)

    def _find(self, guid: str) -> Entry | None:
        return self._list(self._look(fresh=True)).find(guid)

    # Destination

    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """See `Driver.prepare`. The dataset is created by the first receive, as ZFS requires."""
        where, place = str(self), self._look()
        role, notes = self._role(place)
        if role in (Role.LIVE, Role.FOREIGN):
            raise place_facts.not_empty(
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
                "the parent of the destination does not exist",
                where=where,
                why=notes[0],
                hint=f"Create it with: zfs create -p {shlex.quote(above)}",
            )
        features.require(names.pool_of(self.location), where)
        # 'zfs recv' itself would only warn about a property, and leave the copy writable.
        delegation.require(self.location, "destination", where)
        words = [
            f"{names.prepared_property(self.location)}={mirror_id}",
            names.parent_of(self.location),
        ]
        with self._changing():
            command.effect("ZFS:PREPARE:MARK", ["zfs", "set", *words], where)

    def _mirror(self) -> Place:
        place = self._look()
        if self._role(place)[0] is not Role.MIRROR:
            raise texts.not_a_mirror(str(self))
        return place

    def receive(self, request: ReceiveRequest) -> receiver.ZfsReceiver:
        """See `Driver.receive`."""
        self._finish_commit()
        where, place = str(self), self._mirror()
        owner = place.mark.mirror_id or place.prepared
        if owner != request.mirror_id:
            raise texts.other_mirror(where, owner)
        left = held_receive.kept(self.location) is not None
        held_receive.drop(self.location)
        lock, waited = held_receive.receive_lock(self.location, where)
        try:
            # Received data may just have been saved.
            place, found = self._ready(self._look(fresh=left or waited), request)
            target = receiver.target_name(found, self.location, request.snapshot, where)
            present = found.find(request.snapshot.guid) is not None
            made = receiver.ZfsReceiver(
                place, request, target, where, mirror_id=owner, present=present, lock=lock
            )
        except BaseException:
            os.close(lock)
            raise
        try:
            made.start_early()
        except BaseException:
            made.close()
            raise
        return made

    def _ready(self, place: Place, request: ReceiveRequest) -> tuple[Place, Listing]:
        """Make the base the newest snapshot: ZFS receives only on top of that."""
        where = str(self)
        if place.here is None and place.fresh is not None:
            with self._changing():
                failover.finish_swap(place, where)
            place = self._look()
        place = self._recover(place)
        found = self._list(place)
        if request.base is None:
            if found.own():
                raise place_facts.not_empty(
                    where, f"it holds the snapshot '{found.own()[-1].name}'"
                )
            return place, found
        base = texts.demand_base(found.find(request.base), where, request.base)
        own = found.own()
        if own[-1].guid == base.guid or found.find(request.snapshot.guid) is not None:
            return place, found
        refusal = receiver.later_snapshots_error(found, base.guid, where)
        if refusal is not None:
            raise refusal
        pin = failover.shown(place, found)  # it is shown until the commit
        with self._changing():
            failover.rebuild_by_clone(place, found, base, place.mark, None, where, pin=pin)
        place = self._look()
        return place, self._list(place)

    def stagings(self) -> list[Staging]:
        """See `Driver.stagings`."""
        place = self._look()
        if receiver.begun(place) is not None and held_receive.kept(self.location) is None:
            place = self._look(fresh=True)  # another process may just have saved received data
        return receiver.stagings(place, self._list(place))

    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """See `Driver.commit`."""
        self._finish_commit()
        place = self._mirror()
        try:
            done = commit.commit(place, self._list(place), transfer_id, show=show, where=str(self))
        except BaseException:
            self._cache.forget()
            raise
        entry, self._pending = done.entry, done.pending
        if done.fresh:
            self._cache.forget()
        else:
            self._cache.added(entry)
        if done.pending is not None and not self.locked:
            self._finish_commit()
            entry = self._cache.hint(entry.guid) or entry
        return self._snapshot(entry, done.place)

    def discard(self, transfer_id: str) -> None:
        """See `Driver.discard`."""
        place = self._look(fresh=True)
        request = receiver.begun(place)
        if held_receive.kept(self.location, transfer_id) is None:
            if request is None or request.transfer_id != transfer_id:
                return
            if self._list(place).find(request.snapshot.guid) is not None:
                return  # it is no longer a staging
        with self._changing():
            receiver.discard(place, str(self))

    def forget(self) -> None:
        """See `Driver.forget`."""
        with self._changing():
            where, place = str(self), self._recover(self._look(fresh=True))
            request = receiver.begun(place)
            held_receive.drop(self.location)
            if request is not None and not self._list(place).find(request.snapshot.guid):
                receiver.discard(place, where)
                place = self._look(fresh=True)
            if place.here is not None:
                proof.remove([place.here.name], "", where)
            live = self._role(place)[0] is Role.LIVE
            deleting.forget(place, self._list(place), where, live=live)
        self._trees().remove()
