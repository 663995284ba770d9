"""Trees of digests of btrfs snapshots, by which both ends are compared."""

from __future__ import annotations

from pathlib import Path

from mirrord.core.verification import PIECE_BYTES, VerifyMode, VerifyProgress, VerifyRequest
from mirrord.drivers import pinfiles, refusals
from mirrord.drivers.btrfs import repair, reserve, staging, store, walk
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.snapshottrees import Changed, StoredTrees, Subject


class Trees(StoredTrees):
    """The role `Verification` of the btrfs driver, which has the place."""

    def _place(self) -> Layout:
        raise NotImplementedError

    def _trees_folder(self) -> Path:
        return self._place().verify

    def _pinned_guids(self) -> set[str]:
        return pinfiles.guids(self._place().pins)

    @guarded
    def verify_step(self, request: VerifyRequest, seconds: float) -> VerifyProgress:
        """See `Verification.verify_step`."""
        return self._trees().step(request, lambda: self._subject(request), seconds)

    def _subject(self, request: VerifyRequest) -> Subject:
        place = self._place()
        one = store.shown(place)  # of two copies this one: an interrupted repair may have left both
        if one is None or request.guid != one.snapshot.guid:
            one = store.find_to_send(place, request.guid) or staging.received(place, request.guid)
        wanted = refusals.demand_snapshot(one, str(self), request.guid)

        def changed() -> Changed | None:
            base = store.find_to_send(place, request.base)
            if base is None or not base.snapshot.intact or not wanted.snapshot.intact:
                return None
            return walk.changed_since(base, wanted, str(self))

        return Subject(request.guid, str(wanted.path), changed)

    @guarded
    def verify_read(self, guid: str, path: str, offset: int, length: int) -> bytes:
        """See `Verification.verify_read`."""
        one = refusals.demand_snapshot(store.find_to_send(self._place(), guid), str(self), guid)
        length = max(0, min(length, PIECE_BYTES))
        return repair.read(one.path, path, max(0, offset), length, str(self))

    @guarded
    def repair_begin(self, guid: str) -> None:
        """See `Verification.repair_begin`."""
        place = self._place()
        reserve.use(place, lambda: repair.begin(place, guid, str(self)))

    @guarded
    def repair_write(self, guid: str, path: str, offset: int, data: bytes) -> None:
        """See `Verification.repair_write`."""
        repair.write(self._place(), path, offset, data, str(self))

    @guarded
    def repair_finish(self, guid: str, root: str) -> None:
        """See `Verification.repair_finish`."""
        request = VerifyRequest(guid, VerifyMode.CHANGED, base=guid)

        def digest(damaged: SnapshotEntry, copy: SnapshotEntry) -> str:
            def changed() -> Changed:
                return walk.changed_since(damaged, copy, str(self))

            subject = Subject(guid, str(copy.path), changed)
            while not (found := self._trees().step(request, lambda: subject, 1.0)).done:
                self.waiting.look()
            return "" if found.unreadable else found.root

        repair.finish(self._place(), guid, root, digest, str(self))
