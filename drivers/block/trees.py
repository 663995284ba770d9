"""Trees of digests of a block volume's snapshots, by which both ends are compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mirrord.core.errors import Damaged, IoFailed
from mirrord.core.verification import BLOCK_BYTES as TREE_BLOCK_BYTES
from mirrord.core.verification import VerifyProgress, VerifyRequest
from mirrord.drivers import pinfiles, snapshottrees
from mirrord.drivers.block import content, rootrecord, staging
from mirrord.drivers.block.format import BLOCK_BYTES, Root
from mirrord.drivers.block.place import is_volume
from mirrord.drivers.block.store import BlockStore
from mirrord.drivers.block.tree import RadixTree
from mirrord.drivers.refusals import demand_snapshot
from mirrord.drivers.snapshottrees import StoredTrees, Subject, VolumeTrees

#: Blocks of the volume in one of the tree.
_EACH = TREE_BLOCK_BYTES // BLOCK_BYTES


class Trees(StoredTrees):
    """The role `Verification` of the block driver."""

    def _trees_folder(self) -> Path:
        return Path(self.location) / snapshottrees.NAME

    def _pinned_guids(self) -> set[str]:
        return pinfiles.guids(Path(self.location) / pinfiles.NAME)

    def verify_step(self, request: VerifyRequest, seconds: float) -> VerifyProgress:
        """See `Verification.verify_step`."""
        return self._trees().step(request, lambda: self._subject(request), seconds)

    def _subject(self, request: VerifyRequest) -> Subject:
        path = Path(self.location)
        entry = rootrecord.load(path).entry(request.guid) if is_volume(path) else None
        found = entry or staging.received(path, request.guid)
        entry = demand_snapshot(found, str(self), request.guid)
        make = partial(_ContentTree, path, entry.root, request)
        return Subject(request.guid, str(path), tree=make)


class _ContentTree(VolumeTrees):
    """Computes the tree of one image. Each block is also checked against the volume's own
    checksums; one that does not match is unreadable.
    """

    def __init__(self, path: Path, image: Root, request: VerifyRequest, out: str) -> None:
        super().__init__(request, image.size_bytes)
        self.begin(out)
        self._store = BlockStore(path, writable=False)
        self._content = RadixTree(self._store, image.data, image.height)
        self._data: Iterator[int] | None = _blocks_with_data(self._store, image)
        self._next_data: int | None = -1
        for segment in path.glob("data*"):  # what is in the page cache may differ from the disk
            with segment.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def step(self, seconds: float) -> bool:
        """See `VolumeTrees.step`."""
        is_done = super().step(seconds)
        if is_done:
            self._store.close()
        return is_done

    def _take(self, number: int) -> None:
        first, end = number * TREE_BLOCK_BYTES, min((number + 1) * TREE_BLOCK_BYTES, self._size)
        try:
            if end - first == TREE_BLOCK_BYTES and self._is_hole(number):
                self._tree.add_hole()
                return
            data = content.read_bytes(self._store, self._content, first, end - first)
        except (Damaged, IoFailed):
            self._unreadable += 1
            self._tree.add_unreadable()
            return
        self._read_blocks += 1
        self._read_bytes += len(data)
        self._tree.add(data)

    def _is_hole(self, number: int) -> bool:
        try:
            while self._data is not None and self._next_data is not None:
                if self._next_data >= number:
                    break
                self._next_data = next(self._data, None)
        except (Damaged, IoFailed):
            self._data = None  # a node is damaged: from here on each block is looked for
        return self._data is not None and self._next_data != number


def _blocks_with_data(store: BlockStore, image: Root) -> Iterator[int]:
    """The numbers of the tree's blocks that are not holes, ascending."""
    last = -1
    for first, count in content.data_ranges(store, image):
        for number in range(max(first // _EACH, last + 1), (first + count - 1) // _EACH + 1):
            yield number
            last = number
