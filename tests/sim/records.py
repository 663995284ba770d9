"""The relationship records of a volume in memory."""

from __future__ import annotations

from mirrord.core.relationship import Relationship
from mirrord.drivers.contract import Volume
from mirrord.system import steps
from tests.sim.volume import Disk


class MemoryRecords(Volume):
    """They are stored in the volume, and are lost with it."""

    _disk: Disk

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`."""
        volume = self._disk.volumes.get(self.location)
        return dict(volume.relationships) if volume is not None else {}

    def _relate(self, record: Relationship) -> None:
        steps.reached("MEMORY:RELATE")
        self._disk.volumes[self.location].relationships[record.mirror_id] = record

    def _unrelate(self, mirror_id: str) -> None:
        steps.reached("MEMORY:UNRELATE")
        del self._disk.volumes[self.location].relationships[mirror_id]
