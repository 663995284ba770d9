"""The driver of an endpoint. The only module that names a concrete driver."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from mirrord.core.errors import UsageError
from mirrord.core.model import Endpoint
from mirrord.drivers.btrfs.known import Known
from mirrord.drivers.contract import Driver


class Drivers:
    """Opens drivers. A process needs one: its drivers share what they know of btrfs volumes."""

    def __init__(self, btrfs_receiver: Callable[[], str] | None = None) -> None:
        """btrfs_receiver: what applies streams on this host; None: the default."""
        self._btrfs = Known()
        self.btrfs_receiver = btrfs_receiver

    def open(self, endpoint: Endpoint) -> Driver:
        """The driver of an endpoint; the modules of the other drivers are not imported."""
        if endpoint.kind == "block":
            from mirrord.drivers.block.driver import BlockDriver

            return BlockDriver(endpoint.location)
        if endpoint.kind in ("btrfs", "btrfs-tree"):
            if endpoint.kind == "btrfs":
                from mirrord.drivers.btrfs.driver import BtrfsDriver as Btrfs
            else:
                from mirrord.drivers.btrfs.nested_driver import NestedDriver as Btrfs

            return Btrfs(endpoint.location, self._btrfs, receiver=self.btrfs_receiver)
        if endpoint.kind == "zfs":
            from mirrord.drivers.zfs.driver import ZfsDriver

            return ZfsDriver(endpoint.location)
        if endpoint.kind == "zfs-tree":
            from mirrord.drivers.zfs.tree.driver import TreeDriver

            return TreeDriver(endpoint.location)
        if endpoint.kind == "image":
            from mirrord.drivers.image.driver import ImageDriver

            return ImageDriver.at(endpoint.location)
        raise UsageError(f"no driver for volumes of the kind '{endpoint.kind}'")


def open_driver(endpoint: Endpoint) -> Driver:
    """The driver of an endpoint, which shares nothing with other drivers."""
    return Drivers().open(endpoint)


def is_copied(folder: str) -> bool:
    """Whether what is in a directory began as a copy of other data: of a snapshot, or received."""
    from mirrord.drivers.btrfs import ioctl

    return ioctl.is_copied(folder)


def block_volumes() -> ModuleType:
    """The module to use block volumes directly: `Volume`, import, export, check."""
    from mirrord.drivers.block import owner

    return owner
