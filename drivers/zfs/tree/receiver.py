"""Receiving a tree: each member by a separate `zfs recv`, all held back before their END."""

from __future__ import annotations

from collections.abc import Callable

from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers import refusals
from mirrord.drivers.memberstreams import DONE, FULL, Manifest, Member, TreeReceiver
from mirrord.drivers.zfs.receive import held_receive, receiver
from mirrord.drivers.zfs.receive.receiver import ZfsReceiver
from mirrord.drivers.zfs.stream.send import TOKEN
from mirrord.drivers.zfs.tree import layout, operation_record
from mirrord.drivers.zfs.tree.layout import Tree
from mirrord.drivers.zfs.tree.operation_record import Transfer
from mirrord.drivers.zfs.tree.stream import parse_manifest


def location_of(tree: Tree, member: Member) -> str | None:
    """The dataset that a member is received into: the one that has its base, at any path. A new
    one waits beside the root. None: the base does not exist here.
    """
    there = tree.holder(member.guid)
    if there is not None:
        return there
    if member.base is not None:
        return tree.holder(member.base)
    return layout.waiting(tree.root, member.guid) if member.path else tree.root


def request_of(request: ReceiveRequest, member: Member) -> ReceiveRequest:
    """The request for a member."""
    snapshot = request.snapshot._replace(guid=member.guid, name=member.name)
    return request._replace(base=member.base, snapshot=snapshot)


class ZfsTreeReceiver(TreeReceiver):
    """ready: makes the bases the newest snapshots of their datasets, and reads the tree again."""

    def __init__(
        self, request: ReceiveRequest, root: str, where: str, ready: Callable[[Manifest], Tree]
    ) -> None:
        super().__init__(request, where)
        self._root, self._ready = root, ready
        self._tree: Tree | None = None
        self._received: list[str] = []

    def _parse(self, text: str) -> Manifest:
        return parse_manifest(text, self._root)

    def _begin(self, manifest: Manifest) -> list[str]:
        request, first = self._request, manifest.members[0]
        if (first.guid, first.base) != (request.snapshot.guid, request.base):
            raise ValueError("its snapshot or its base is not the announced one")
        self._tree = tree = self._ready(manifest)
        operation_record.begin_transfer(self._root, Transfer(request, manifest))
        return [one.path for one in manifest.members if location_of(tree, one) is None]

    def _open(self, member: Member) -> ZfsReceiver:
        tree = self._tree
        assert tree is not None
        at = f"{self._where}/{member.path}"
        location = refusals.demand_base(location_of(tree, member), at, str(member.base))
        request, listed = request_of(self._request, member), tree.listings.get(location)
        where = f"zfs:{location}"
        held_receive.drop(location)
        lock, waited = held_receive.receive_lock(location, where)
        if waited:  # received data may just have been saved
            self._tree = tree = layout.load(self._root, self._where, beside=True)
            listed = tree.listings.get(location)
        return ZfsReceiver(
            tree.place(location),
            request,
            receiver.target_name(listed, location, request.snapshot, where),
            where,
            mirror_id=request.mirror_id,
            lock=lock,
            present=listed is not None and listed.find(member.guid) is not None,
        )

    def _complete(self, member: Member) -> None:
        assert self._tree is not None
        self._received.append(str(location_of(self._tree, member)))

    def _staged(self) -> Staging:
        return Staging(
            self._request.transfer_id,
            self._request.base,
            self._request.snapshot,
            complete=True,
            received_bytes=self._received_bytes,
        )

    def close(self) -> None:
        """See `Receiver.close`."""
        super().close()
        if self._staging is None:
            while self._received:
                held_receive.drop(self._received.pop())


def staging(tree: Tree, begun: Transfer) -> Staging:
    """The staging of a transfer, with the checkpoints of its members."""
    request, checkpoint, received, complete = begun.request, dict[str, int | str](), 0, True
    for one in begun.manifest.members:
        location = location_of(tree, one)
        if location is None:
            complete, checkpoint[one.guid] = False, FULL
            continue
        listed = tree.listings.get(location)
        if listed is not None and listed.find(one.guid) is not None:
            checkpoint[one.guid] = DONE
            continue
        if held_receive.kept(location, request.transfer_id) is not None:
            continue
        complete = False
        there = tree.datasets.get(location)
        token = there.token if there else ""
        found = receiver.decoded(token) if token else None
        if found is not None and str(found.toguid) == one.guid:
            checkpoint[one.guid], received = token, received + found.bytes
    return Staging(
        request.transfer_id,
        request.base,
        request.snapshot,
        complete,
        checkpoint=None if complete or not checkpoint else checkpoint,
        received_bytes=received,
    )


def checkpoint_of(checkpoint: dict[str, int | str] | None, guid: str) -> dict[str, int | str]:
    """The checkpoint of a member, from that of the tree."""
    found = (checkpoint or {}).get(guid)
    return {TOKEN: found} if found not in (None, DONE, FULL) else {}
