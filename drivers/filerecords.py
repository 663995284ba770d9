"""The pins and relationship records of a volume, for drivers that store them in files: one for each
mirror, in a folder of the volume.
"""

from __future__ import annotations

import abc
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mirrord.core import relationship
from mirrord.core.relationship import Relationship
from mirrord.core.text import can_name
from mirrord.drivers import pinfiles, pins, snapshottrees
from mirrord.drivers.contract import Volume
from mirrord.drivers.refusals import not_a_mirror
from mirrord.system import files

_RELATIONSHIPS = "relationships"


class FileRecords(Volume):
    """Pins and relationship records in `pins/` and `relationships/` of one folder."""

    @abc.abstractmethod
    def _records(self) -> Path | None:
        """That folder; None when there is no volume."""

    @abc.abstractmethod
    def _keep(self, work: Callable[[], None]) -> None:
        """Run `work`, which writes there; its failure is raised as a `MirrordError`."""

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """See `Volume.pin`."""
        folder, words = self._records(), (self._op("PIN"), mirror_id, guids, str(self))
        if folder is not None:
            self._keep(lambda: pinfiles.pin(folder / pinfiles.NAME, *words))

    def _demand_unpinned(self, guid: str, name: str) -> None:
        folder = self._records()
        if folder is not None:
            pinned = snapshottrees.pinned(
                folder / snapshottrees.NAME, pinfiles.load(folder / pinfiles.NAME)
            )
            pins.demand_free(pinned, [guid], name, str(self))

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`."""
        records = self._records()
        if records is None or not (records / _RELATIONSHIPS).is_dir():
            return {}
        folder = records / _RELATIONSHIPS
        names = sorted(name for name in os.listdir(folder) if name[0] != ".")
        # (Of a record that was never completed only the temporary file is there.)
        begun = dict.fromkeys(files.interrupted(folder))
        found = {name: relationship.decode((folder / name).read_bytes()) for name in names}
        return begun | {
            name: one if one and one.mirror_id == name else None for name, one in found.items()
        }

    def relationship(self, mirror_id: str) -> Relationship | None:
        """See `Volume.relationship`. Each call that changes the volume reads it first."""
        records = self._records()
        if records is None or mirror_id.startswith(".") or not can_name(mirror_id):
            return None
        try:
            data = (records / _RELATIONSHIPS / mirror_id).read_bytes()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        return relationship.decode_stored(data, mirror_id, str(self))

    def _relate(self, record: Relationship) -> None:
        records = self._records()
        if records is None:
            raise not_a_mirror(str(self))
        op, folder = self._op("RELATE"), records / _RELATIONSHIPS

        def write() -> None:
            files.make_directory(f"{op}:FOLDER", folder, mode=0o700)
            data = relationship.encode(record) + b"\n"
            files.write_atomic(f"{op}:RECORD", folder / record.mirror_id, data, mode=0o600)

        self._keep(write)

    def _unrelate(self, mirror_id: str) -> None:
        records = self._records()
        if records is None:
            return
        op, folder = self._op("UNRELATE"), records / _RELATIONSHIPS

        def remove() -> None:
            # (A write that failed or was killed may have left its temporary file.)
            files.beside(folder / mirror_id).unlink(missing_ok=True)
            files.remove_file(f"{op}:RECORD", folder / mirror_id)
            if not os.listdir(folder):
                files.remove_directory(f"{op}:FOLDER", folder)

        self._keep(remove)

    def _op(self, what: str) -> str:
        return f"{self.kind.upper()}:{what}"
