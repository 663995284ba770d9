"""Trees of digests of a dataset's snapshots, by which both ends are compared.

The files of a snapshot are read through a read-only mount that has no mountpoint: no other process
sees it, and it ends with this one, however that ends. While it exists, or while `zfs send` reads a
volume, the snapshot cannot be destroyed.
"""

from __future__ import annotations

import abc
import os
from functools import partial
from pathlib import Path

from mirrord.core.errors import PermissionMissing
from mirrord.core.verification import VerifyProgress, VerifyRequest
from mirrord.drivers import refusals
from mirrord.drivers.snapshottrees import Changed, StoredTrees, Subject
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import names, place, transfer_record
from mirrord.drivers.zfs.dataset.place import Place
from mirrord.drivers.zfs.snapshots import listing
from mirrord.drivers.zfs.snapshots.listing import Entry
from mirrord.drivers.zfs.stream import deltas, survey
from mirrord.drivers.zfs.stream.send import Sending
from mirrord.drivers.zfs.verify import pool
from mirrord.drivers.zfs.verify.zvol import ZvolTree
from mirrord.system.native import mount_detached

#: The end of an object, in a stream.
_OFFSET_MAX = (1 << 63) - 1


class ZfsTrees(StoredTrees):
    """The role `Verification` of a dataset, or of a tree of them."""

    @abc.abstractmethod
    def _find(self, guid: str) -> Entry | None:
        """The snapshot of the volume, or of one of its datasets."""

    def _parts(self) -> int:
        """How many datasets the volume consists of."""
        return 1

    def _trees_folder(self) -> Path:
        return transfer_record.trees(self.location)

    def verify_step(self, request: VerifyRequest, seconds: float) -> VerifyProgress:
        """See `Verification.verify_step`."""
        runs = self._trees().runs(request)
        try:
            found = self._trees().step(request, lambda: self._subject(request), seconds)
        except _KeyMissing as error:
            found = VerifyProgress(True, request.mode, str(error))
        if runs and not found.done:
            return found
        return found._replace(pool=pool.state(names.pool_of(self.location), str(self)))

    def _subject(self, request: VerifyRequest) -> Subject:
        entry = self._find(request.guid)
        there = place.look(entry.dataset, str(self)) if entry is not None else None
        if entry is None or there is None or there.here is None:
            raise refusals.snapshot_missing(str(self), request.guid)
        if there.here.get("keystatus") == "unavailable":
            raise _KeyMissing(
                f"the encryption key of {entry.dataset} is not loaded ('zfs load-key "
                f"{entry.dataset}')"
            )
        if there.here.is_zvol:
            words = ["zfs", "get", "-Hp", "-o", "value", "volsize", entry.full]
            size = int(command.run(words, str(self)))
            sending = Sending(None, None, entry.full, entry.guid, raw=False, plain=True)
            tree = ZvolTree(sending, size, request, self.waiting)
            return Subject(
                request.guid, entry.full, tree=tree.begin, parts=self._parts(), close=tree.close
            )
        mounted = self._mounted(entry)
        return Subject(
            request.guid,
            f"/proc/self/fd/{mounted}/.",
            partial(self._changed, request.base, entry, there),
            parts=self._parts(),
            close=partial(os.close, mounted),
        )

    def _mounted(self, entry: Entry) -> int:
        """A descriptor of the root of the snapshot's files."""
        try:
            mounted = mount_detached("zfs", entry.full)
        except PermissionError as error:
            raise PermissionMissing(
                "only root can read all files of a snapshot",
                where=str(self),
                why=str(error),
                hint="Verify as root at both ends: 'zfs allow' cannot delegate that.",
            ) from error
        # (From here on it cannot be destroyed: what has its name now is what was mounted.)
        found = listing.load_one(entry.full, str(self))
        if found is None or found.guid != entry.guid:
            os.close(mounted)
            raise refusals.snapshot_missing(str(self), entry.guid)
        return mounted

    def _changed(self, guid: str, newer: Entry, there: Place) -> Changed | None:
        """What the stream from the base on changes: an object is the inode of the same number."""
        older = self._find(guid)
        if older is None or older.dataset != newer.dataset or older.order >= newer.order:
            return None
        found = survey.parse_stream(deltas.sending(there, older, newer), str(self))
        ranges = {
            number: [
                (start, min(end, _OFFSET_MAX) - start)
                for start, end in (*one.added, *one.freed)
                if start < _OFFSET_MAX
            ]
            for number, one in found.objects.items()
        }
        return Changed([], ranges)  # a folder whose entries changed is among them


class _KeyMissing(Exception):
    """A dataset cannot be read: its encryption key is not loaded."""
