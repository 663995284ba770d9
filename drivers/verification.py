"""The role of volumes whose snapshots can be verified: an optional part of the driver contract.

Both ends compute a tree of digests of a snapshot's logical content, alone. Then the engine compares
the roots, and descends only where they differ (docs/verify.md). Nothing of the volume is changed;
what is computed is kept beside it, and is computed again when it is lost or damaged.
"""

from __future__ import annotations

import abc

from mirrord.core.errors import MIRROR, MirrordError, Unsupported
from mirrord.core.model import FileName
from mirrord.core.verification import VerifyNode, VerifyProgress, VerifyRequest
from mirrord.drivers.contract import Driver, Volume, changing


class Verification(Volume):
    """A volume whose snapshots have a tree of digests; not every kind has one."""

    @abc.abstractmethod
    def verify_step(self, request: VerifyRequest, seconds: float) -> VerifyProgress:
        """Work on the tree of a snapshot for about that long. The first call begins it, and so does
        the next one after an interruption; until it is done the snapshot is not deleted.

        What cannot be read is counted, and is no error. Raises `NotFound`: the snapshot, `Busy`:
        it is being verified by another one, `NoSpace`.
        """

    @abc.abstractmethod
    def verify_end(self) -> None:
        """Drop what is not done."""

    @abc.abstractmethod
    def verify_nodes(
        self, request: VerifyRequest, folder: FileName, after: FileName, limit: int
    ) -> list[VerifyNode]:
        """What is directly in a folder ("": the root), at most `limit`, after the path `after`, by
        the tree that `verify_step` has completed. The folder "." stands for the root itself.
        Raises `NotFound`: there is no such tree, `Damaged`.
        """

    @abc.abstractmethod
    def verify_blocks(
        self, request: VerifyRequest, path: FileName, first: int, limit: int
    ) -> bytes:
        """The digests, 32 bytes each, of at most `limit` blocks of a file."""

    # Repair, of the snapshot that a destination shows; `Unsupported` for most kinds. Until
    # `repair_finish` nothing is different for anybody.

    def verify_read(self, guid: str, path: FileName, offset: int, length: int) -> bytes:
        """A part of a file of a snapshot, at most `PIECE_BYTES`; shorter only at its end. Only a
        repair needs it.
        """
        raise repair_unsupported(self)

    @changing
    def repair_begin(self, guid: str) -> None:
        """Prepare a copy of the snapshot; drops one that was not finished. `Refused`: the
        destination shows another one.
        """
        raise repair_unsupported(self)

    @changing
    def repair_write(self, guid: str, path: FileName, offset: int, data: bytes) -> None:
        """Write a part of a file of the copy, within its size; its metadata do not change."""
        raise repair_unsupported(self)

    @changing
    def repair_finish(self, guid: str, root: str) -> None:
        """Replace the snapshot by the copy, if the copy's tree has that root. Before, `verify_step`
        with FULL or CHANGED must have computed the tree of the damaged snapshot. Raises
        `TransferFailed` when the copy has another root: then nothing is different.
        """
        raise repair_unsupported(self)


def repair_unsupported(volume: Volume) -> MirrordError:
    """The error for a kind of volume that cannot be repaired."""
    pool = (
        "A ZFS pool with redundancy repairs itself by 'zpool scrub'; without it, 'zfs receive -c' "
        "(OpenZFS 2.2 or later) replaces damaged blocks. "
    )
    return Unsupported(
        "volumes of this kind cannot be repaired",
        where=str(volume),
        hint=(pool if volume.kind.startswith("zfs") else "") + "For a complete new copy: "
        f"'mirrord break {MIRROR}', 'mirrord release {MIRROR}', move the destination away, then "
        f"'mirrord initialize {MIRROR}'.",
    )


def verification_of(driver: Driver) -> Verification:
    """The driver as one whose snapshots can be verified; raises `Unsupported` otherwise."""
    if not isinstance(driver, Verification):
        raise Unsupported("volumes of this kind cannot be verified", where=str(driver))
    return driver
