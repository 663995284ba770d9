"""The operations on a block volume that `mirrord volume` uses."""

from pathlib import Path

from mirrord.core.errors import MIRROR, NotFound, Refused
from mirrord.core.model import Snapshot
from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.images import read_image, root_of
from mirrord.drivers.block.transfer import (
    export_image,
    export_tar,
    import_folder,
    import_image,
    import_stream,
    import_tar,
)
from mirrord.drivers.block.volume import Volume
from mirrord.system import locks

__all__ = [
    "Volume",
    "check_volume",
    "delete_snapshot",
    "export_image",
    "export_tar",
    "find_snapshot",
    "import_folder",
    "import_image",
    "import_stream",
    "import_tar",
    "promote",
    "read_image",
    "root_of",
]

#: How long a mirror that uses the volume is awaited.
_PATIENCE_S = 5.0


def find_snapshot(volume: Volume, text: str) -> Snapshot:
    """The snapshot with that guid or that name; `NotFound`."""
    for snapshot in reversed(volume.snapshots()):
        if text in (snapshot.guid, snapshot.name):
            return snapshot
    raise NotFound(f"no snapshot is called '{text}'", where=str(volume.path))


def delete_snapshot(path: Path, name: str) -> None:
    """Delete a user snapshot; `Busy` while a mirror receives into the volume: what arrives would
    be written to the blocks that the deletion returns to the file system.
    """
    driver, purpose = BlockDriver(str(path.absolute())), "deleting a snapshot"
    with (
        locks.waited_for(lambda: driver.lock(purpose), _PATIENCE_S),
        Volume.managed(path, purpose) as volume,
    ):
        volume.delete_snapshot(find_snapshot(volume, name).guid)


def promote(path: Path) -> None:
    """Make the destination of a deleted mirror a live volume; `Refused` otherwise."""
    driver = BlockDriver(str(path.absolute()))
    owner = driver.facts().mirror_id
    if owner:
        raise Refused(
            "this is the destination of a mirror",
            where=str(path),
            why=f"its id is {owner}",
            hint=f"'mirrord break {MIRROR}' makes it live.",
        )
    driver.promote()
