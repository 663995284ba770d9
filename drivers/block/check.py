"""Checking a volume: an fsck that changes nothing.

From the root record it walks the live image and every snapshot, verifies every block by the
checksum that its pointer carries, and compares what can be reached with the active maps: a block
that is reached but not marked could be overwritten; one that is marked but not reached is leaked
space; one that is reached twice in an image is corruption.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pyroaring import BitMap64

from mirrord.core.errors import Damaged, IoFailed
from mirrord.drivers.block import rootrecord
from mirrord.drivers.block.activemap import MapView, runs_of
from mirrord.drivers.block.format import (
    CHUNK_BITS,
    FANOUT,
    HOLE,
    Pointer,
    Root,
    describe,
)
from mirrord.drivers.block.rootrecord import RootRecord
from mirrord.drivers.block.store import BlockStore
from mirrord.system.native import pointer_runs

#: How many findings of one kind in one image are listed individually.
_LISTED_MAX = 10
#: Blocks verified in one read: 1 MiB.
_BLOCKS_PER_READ = 256
#: So often a volume is checked that changes meanwhile.
_TRIES = 3

Progress = Callable[[int], None]


@dataclass(slots=True)
class CheckReport:
    """The result of a check. findings: one line each, with what to do; empty: no errors."""

    images: int = 0
    blocks: int = 0
    findings: list[str] = field(default_factory=list)


def check_volume(path: Path, *, progress: Progress | None = None) -> CheckReport:
    """Check the volume in a directory. Raises only when there is no readable root record.

    progress: called with the number of blocks verified so far, from time to time.
    """
    for _ in range(_TRIES):
        before, damage = rootrecord.load_noting_damage(path)
        report = _checked(path, before, damage, progress)
        # The image that is checked is not held: a program that writes may reuse its blocks.
        if not report.findings or rootrecord.load_noting_damage(path)[0].roots == before.roots:
            return report
    report.findings = [
        "it was written to, or snapshots of it were deleted, while it was checked; check it again "
        "while no program writes to it"
    ]
    return report


def _checked(path: Path, record: RootRecord, damage: str, progress: Progress | None) -> CheckReport:
    report = CheckReport()
    if damage:
        report.findings.append(f"{damage}; the next update replaces it")
    with closing(BlockStore(path, writable=False)) as store:
        verified = BitMap64()
        images = {"the live image": record.live}
        for entry in record.snapshots:
            images[f"snapshot {entry.name}"] = entry.root
            if not entry.intact:
                report.findings.append(
                    f"snapshot {entry.name}: its entry in the root record does not match its "
                    "identity; delete it"
                )
        for name, root in images.items():
            _Image(store, name, root, verified, report, progress).check()
    return report


class _Image:
    """One image under check."""

    def __init__(
        self,
        store: BlockStore,
        name: str,
        root: Root,
        verified: BitMap64,
        report: CheckReport,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.name = name
        self.root = root
        self.verified = verified
        self.report = report
        self.progress = progress
        self.reached = BitMap64()
        self.damaged = 0
        self.twice = 0

    def check(self) -> None:
        self.report.images += 1
        self._tree(self.root.data, self.root.height, payload_is_data=True)
        for one in self.root.segments:
            self._tree(one.root, one.height, payload_is_data=False)
        if self.twice:
            self._find(f"{self.twice} blocks are referenced twice; restore from the other end")
        if self.damaged > _LISTED_MAX:
            self._find(f"… {self.damaged - _LISTED_MAX} more damaged blocks")
        if not self.damaged:
            self._compare_maps()

    def _tree(self, root: Pointer, height: int, *, payload_is_data: bool) -> None:
        pending = [(height, root)] if root.address else []
        while pending:
            level, pointer = pending.pop()
            self._reach(pointer.address, 1)
            try:
                node = self.store.node(*pointer)
            except (Damaged, IoFailed) as error:
                self._bad(error)
                continue
            self._count(1)
            if level == 0:
                continue
            words = array("Q", node)
            if level == 1 and payload_is_data:
                self._data(words)
                continue
            pending.extend(
                (level - 1, Pointer(words[2 * slot], words[2 * slot + 1]))
                for slot in range(FANOUT)
                if words[2 * slot]
            )

    def _data(self, words: array[int]) -> None:
        for begin, end in pointer_runs(words[0::2]):
            address = words[2 * begin]
            if not address:
                continue
            self._reach(address, end - begin)
            if self.verified.contains_range(address, address + end - begin):
                continue
            for place in range(begin, end, _BLOCKS_PER_READ):
                stop = min(end, place + _BLOCKS_PER_READ)
                self._verify(words[2 * place], words[2 * place + 1 : 2 * stop : 2])
            self.verified.add_range(address, address + end - begin)

    def _verify(self, address: int, checksums: array[int]) -> None:
        try:
            self.store.read_verified(address, checksums.tobytes())
        except (Damaged, IoFailed) as error:
            if len(checksums) == 1:
                self._bad(error)
                return
            for place in range(len(checksums)):
                self._verify(address + place, checksums[place : place + 1])
            return
        self._count(len(checksums))

    def _reach(self, address: int, count: int) -> None:
        before = len(self.reached)
        self.reached.add_range(address, address + count)
        self.twice += before + count - len(self.reached)

    def _compare_maps(self) -> None:
        marked = BitMap64()
        for address, count in self._marked_runs():
            marked.add_range(address, address + count)
        unmarked, leaked = self.reached - marked, marked - self.reached
        if unmarked:
            self._find(
                f"{len(unmarked)} blocks are in use but not marked in the active map (first: "
                f"{describe(unmarked.min())}); stop writing to it and restore from the other end"
            )
        if leaked:
            self._find(
                f"{len(leaked)} blocks are marked in the active map but not in use (first: "
                f"{describe(leaked.min())}); only their space is lost"
            )
        if self.root.allocated != len(marked):
            self._find(
                f"the root records {self.root.allocated} blocks in use, the active map marks "
                f"{len(marked)}"
            )

    def _marked_runs(self) -> Iterator[tuple[int, int]]:
        view = MapView(self.store, self.root)
        for one in self.root.segments:
            for chunk in range(-(-one.high // CHUNK_BITS)):
                if view.pointer(one.segment, chunk) != HOLE:
                    yield from runs_of(one.segment, chunk, view.bits(one.segment, chunk))

    def _bad(self, error: Damaged | IoFailed) -> None:
        self.damaged += 1
        if self.damaged <= _LISTED_MAX:
            why = error.why or error.what
            self._find(f"{error.what} ({why}); restore from the other end of the mirror")

    def _find(self, text: str) -> None:
        self.report.findings.append(f"{self.name}: {text}")

    def _count(self, blocks: int) -> None:
        self.report.blocks += blocks
        if self.progress is not None:
            self.progress(self.report.blocks)
