"""What applies streams: mirrord's own program ("native") or 'btrfs receive' ("btrfs-progs")."""

from __future__ import annotations

from mirrord.core.model import ReceiveRequest
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import layout, store
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.native_receive import NativeReceiver
from mirrord.drivers.btrfs.receive import BtrfsReceiver

DEFAULT = "native"


def demand_owner(place: Layout, request: ReceiveRequest, where: str) -> None:
    """Refuse a transfer of another mirror."""
    owner = layout.read_mirror_id(place)
    if owner != request.mirror_id:
        raise refusals.other_mirror(where, owner)


def open_receiver(
    place: Layout, request: ReceiveRequest, where: str, *, native: bool
) -> BtrfsReceiver | NativeReceiver:
    """See `Driver.receive`."""
    here = None
    if request.base is not None:
        here = store.find(place, request.base)
        if here is None or not here.snapshot.intact:
            raise refusals.base_missing(where, request.base)
    if native:
        return NativeReceiver(place, request, here, where)
    if here is not None:
        store.taken_for(place, here, where)  # refused here rather than after the transfer
    return BtrfsReceiver(place, request, here, where)
