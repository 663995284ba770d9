"""Making a dataset live, freezing it, testing it and rolling it back (see failover/failover.py)."""

from __future__ import annotations

import contextlib
import secrets

from mirrord.core.errors import MIRROR, NoSpace, Refused
from mirrord.core.model import (
    Divergence,
    OpenWriter,
    Role,
    VolumeFacts,
)
from mirrord.drivers import refusals as texts
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import mounting, names, writers
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.failover import copies, failover, freezing, reinstate
from mirrord.drivers.zfs.receive import held_receive
from mirrord.drivers.zfs.snapshots import compare, proof
from mirrord.drivers.zfs.volume import place_facts
from mirrord.drivers.zfs.volume.volume import ZfsDataset


class ZfsFailover(freezing.Freezable, ZfsDataset):
    """The role `Failover` of the contract, for one dataset."""

    def detach(self) -> None:
        """See `Driver.detach`."""
        super().detach()
        if self._freeze is not None:
            self.thaw()

    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`."""
        # (In a full pool the records of a commit cannot be written.)
        with contextlib.suppress(NoSpace):
            self._finish_commit()
        with self._changing():
            self._promote(guid)

    def _promote(self, guid: str | None) -> None:
        where, place = str(self), self._look(fresh=True)
        role, here = self._role(place)[0], place.here
        if role is Role.LIVE:
            assert here is not None
            if place.mark.role == "live":
                mounting.mount("ZFS:PROMOTE:MOUNT", here)
            elif place_facts.lost_mark(here):
                failover.promote(place, self._list(place), guid, where)
            return
        if role is not Role.MIRROR:
            raise texts.not_a_mirror(where)
        held_receive.drop(self.location)
        if here is None and place.fresh is not None:
            failover.finish_swap(place, where)
            place = self._look(fresh=True)
        with contextlib.suppress(NoSpace):
            place = self._recover(place)
        if place.here is None:
            raise Refused(
                "there is no snapshot to make live",
                where=where,
                why="the destination shows no snapshot",
                hint=f"Complete the first transfer: 'mirrord initialize {MIRROR}'.",
            )
        failover.promote(place, self._list(place), guid, where)

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`. A kept volume is read-only: no process can write to it."""
        place = self._look()
        if kept or self._role(place)[0] is not Role.LIVE or place.here is None:
            return []
        return writers.of([place.here], limit)

    def freeze(self) -> None:
        """See `Driver.freeze`."""
        here = self._live().there
        if self._freeze is None:
            with self._changing():
                self._freeze = freezing.Freeze([here], str(self))

    def thaw(self) -> None:
        """See `Driver.thaw`."""
        if self._role(self._look(fresh=True))[0] is Role.LIVE:
            with self._changing():
                freezing.thaw([self.location], str(self))
        self._unfreeze()

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
        """The state of a place that is not LIVE. (After a write it never compares equal.)"""
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
        return type(self)(name).facts()

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
        held_receive.drop(self.location)
        place = self._recover(place)
        found = self._list(place)
        target = texts.demand_base(found.find(guid), where, guid)
        failover.refuse_diverged(target, where)
        return failover.rollback(
            place, found, target, mirror_id=mirror_id, keep_as=keep_as, where=where
        )

    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        with self._changing():
            where, place = str(self), self._look(fresh=True)
            if self._role(place)[0] not in (Role.LIVE, Role.MIRROR) or place.volume is None:
                raise texts.not_live(where)
            held_receive.drop(self.location)
            reinstate.reinstate(place, self._list(place), name, where)
