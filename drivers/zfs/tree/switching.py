"""Making a tree live, freezing it, testing it and rolling it back (see failover.py)."""

from __future__ import annotations

import contextlib
import secrets

from mirrord.core.errors import MirrordError
from mirrord.core.model import (
    Divergence,
    OpenWriter,
    Role,
    VolumeFacts,
)
from mirrord.drivers import refusals as texts
from mirrord.drivers.zfs.dataset import writers
from mirrord.drivers.zfs.dataset.place import Dataset, look
from mirrord.drivers.zfs.failover import failover, freezing
from mirrord.drivers.zfs.snapshots import listing, proof
from mirrord.drivers.zfs.tree import arrange, operation_record
from mirrord.drivers.zfs.tree import copies as tree_copies
from mirrord.drivers.zfs.tree import failover as tree_failover
from mirrord.drivers.zfs.tree import reinstate as tree_reinstate
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.volume import TreeVolume
from mirrord.drivers.zfs.volume import place_facts


class TreeFailover(freezing.Freezable, TreeVolume):
    """The role `Failover` of the contract, for a tree."""

    def detach(self) -> None:
        """See `Driver.detach`."""
        if self._freeze is not None:
            with contextlib.suppress(MirrordError, OSError):
                self.thaw()

    def promote(self, guid: str | None = None) -> None:
        """See `Driver.promote`."""
        where, facts = str(self), self.facts()
        here = self._look().datasets.get(self.location)
        damaged = here is not None and place_facts.lost_mark(here)
        if facts.role is Role.LIVE and facts.mirror_id == "" and not damaged:
            return
        if facts.role not in (Role.LIVE, Role.MIRROR):
            raise texts.not_a_mirror(where)
        self._finish_pending()
        facts = self._root.facts()
        if facts.role is Role.MIRROR or damaged:
            tree = self._look(beside=True)
            first = failover.promotion_base(
                tree.place(self.location), tree.listings[self.location], guid
            )
            late = first is not None and any(
                tree.own(name)[-1].guid != one.guid
                for name, one in tree.together(first).items()
                if name in tree.mirrored()
            )
            if guid is not None and first is None:
                raise texts.snapshot_missing(where, guid)
            if first is not None and late:
                tree_failover.roll_back(
                    tree,
                    first.guid,
                    mirror_id=facts.mirror_id,
                    keep_as=None,
                    live=False,
                    where=where,
                )
        tree_failover.promote(self._root, facts.mirror_id, where)

    def _datasets(self, tree: Tree) -> list[Dataset]:
        return [tree.datasets[name] for name in tree.mirrored()]

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """See `Driver.writers`. A kept tree is read-only: no process can write to it."""
        if kept or self._root.facts().role is not Role.LIVE:
            return []
        return writers.of(self._datasets(self._look()), limit)

    def freeze(self) -> None:
        """See `Driver.freeze`: all members."""
        if self._freeze is None:
            self._freeze = freezing.Freeze(self._datasets(self._live()), str(self))

    def thaw(self) -> None:
        """See `Driver.thaw`."""
        if self._root.facts().role is Role.LIVE:
            freezing.thaw(self._look().mirrored(), str(self))
        self._unfreeze()

    def mark(self) -> str:
        """See `Driver.mark`."""
        role = self.facts().role
        tree = self._look()
        if role is not Role.LIVE:
            return proof.text(role, self._state(tree))
        return proof.text(role, [tree.digest(), proof.live(self._datasets(tree), str(self))])

    def is_marked(self, mark: str) -> bool:
        """See `Driver.is_marked`. An added, removed or renamed dataset is also a change."""
        role, (marked, state) = self.facts().role, proof.parse(mark)
        if marked is not role or role is Role.FOREIGN:
            return False
        tree = self._look()
        if role is not Role.LIVE:
            return state == self._state(tree)
        if not isinstance(state, list) or len(state) != 2 or state[0] != tree.digest():
            return False
        return proof.holds(state[1], self._datasets(tree), str(self))

    def _state(self, tree: Tree) -> list[object]:
        """The state of a place that is not LIVE: of the root, and of each member."""
        state: list[object] = [self._root.mark(), tree.digest()]
        for name in tree.inside():
            written = tree.datasets[name].get("written")
            unique = secrets.token_hex(8) if written not in ("", "0") else ""
            state.append([one.guid for one in tree.own(name)[-1:]] + [unique])
        return state

    def begin_test(self, place: str = "") -> VolumeFacts:
        """See `Driver.begin_test`: a clone of each member."""
        if self._root.facts().role is not Role.MIRROR:
            raise texts.not_a_mirror(str(self))
        name = tree_copies.begin(self._look(), self._root, place, str(self))
        return type(self)(name).facts()

    def end_test(self) -> bool:
        """See `Driver.end_test`."""
        return tree_copies.end(self._look(), str(self))

    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """See `Driver.divergence`."""
        return tree_failover.divergence(self._look(), guid, limit=limit, where=str(self))

    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """See `Driver.rollback`."""
        try:
            return self._rollback(guid, mirror_id, keep_as)
        finally:
            self._unfreeze()

    def _rollback(self, guid: str, mirror_id: str, keep_as: str) -> str | None:
        where, facts = str(self), self.facts()
        if facts.role not in (Role.LIVE, Role.MIRROR):
            raise texts.not_a_mirror(where)
        if facts.role is Role.MIRROR and facts.mirror_id not in ("", mirror_id):
            raise texts.other_mirror(where, facts.mirror_id)
        if operation_record.rollback(self.location) is None:
            self._finish_pending()
            if facts.role is Role.MIRROR and facts.shown == guid:
                arrange.mount(self._look())
                return self._kept(keep_as)
        tree = self._look(beside=True)
        entry = texts.demand_base(tree.root_entry(guid), where, guid)
        failover.refuse_diverged(entry, where)
        kept = tree_failover.roll_back(
            tree,
            guid,
            mirror_id=mirror_id,
            keep_as=keep_as,
            live=facts.role is Role.LIVE,
            where=where,
        )
        return kept or self._kept(keep_as)

    def _kept(self, keep_as: str) -> str | None:
        """The name under which this rollback, or an earlier attempt, has kept the tree."""
        place = look(self.location, str(self))
        listed = listing.load(self.location, place.mark.kept, None, str(self))
        kept = failover.kept_as(listed, keep_as)
        return kept.name if kept is not None else None

    def reinstate(self, name: str) -> None:
        """See `Driver.reinstate`."""
        role = self._root.facts().role
        if role is Role.FOREIGN:
            raise texts.not_live(str(self))
        tree_reinstate.reinstate(self.location, name, str(self), live=role is Role.LIVE)
