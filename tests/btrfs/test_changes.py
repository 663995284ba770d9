"""What was allocated and freed between two snapshots, against what the device shows."""

from __future__ import annotations

import itertools
import os
import re
import struct
from pathlib import Path

import pytest

from mirrord.core.model import Changes, Snapshot
from tests.btrfs.pair import Pair, run, stream_of
from tests.support import btrfs

BLOCK = 4096


def runs(packed: bytes, wanted: int) -> list[tuple[int, int]]:
    """(offset, length) of the runs of one object."""
    every = struct.iter_unpack("<QQQ", packed)
    return [(offset, length) for number, offset, length in every if number == wanted]


def blocks(packed: bytes, wanted: int) -> set[int]:
    found: list[int] = []
    for offset, length in runs(packed, wanted):
        assert offset % BLOCK == 0 and length > 0
        found.extend(range(offset // BLOCK, -(-(offset + length) // BLOCK)))
    assert len(found) == len(set(found)), "a block is in two runs"
    return set(found)


def named_by_dump(snapshot: Snapshot) -> tuple[set[int], set[tuple[int, int]]]:
    """Blocks on disk that files name, and (inode, generation) of contents in the tree, as `btrfs
    inspect-internal dump-tree` reads them from the device.
    """
    run("sync", "-f", snapshot.path)
    device = run("findmnt", "-n", "-o", "SOURCE", "--target", snapshot.path).split("[")[0].strip()
    number = run("btrfs", "inspect-internal", "rootid", snapshot.path).strip()
    dump = run("btrfs", "inspect-internal", "dump-tree", "-t", number, device)
    disk: set[int] = set()
    inline: set[tuple[int, int]] = set()
    inode, offset, generation, place, size = 0, 0, 0, 0, {}
    for line in dump.splitlines():
        text = line.strip()
        if key := re.search(r"item \d+ key \((\d+) (INODE_ITEM|EXTENT_DATA) (\d+)\)", line):
            inode, offset = int(key[1]), int(key[3])
        elif found := re.search(r"transid \d+ size (\d+) ", line):
            size[inode] = int(found[1])
        elif found := re.match(r"generation (\d+) type (\d)", text):
            generation = int(found[1])
            written = int(found[2]) == 1
        elif "inline extent data size" in text:
            inline.add((inode, generation))
        elif found := re.match(r"extent data disk byte (\d+) nr \d+", text):
            place = int(found[1])
        elif (found := re.match(r"extent data offset (\d+) nr (\d+)", text)) and place and written:
            length = min(int(found[2]), size[inode] - offset)
            first = place + int(found[1])
            disk.update(range(first // BLOCK, -(-(first + max(length, 0)) // BLOCK)))
    return disk, inline


@pytest.mark.parametrize("seeds", [1, 5])
def test_changes_are_those_that_the_device_shows(pair: Pair, seeds: int) -> None:
    base = pair.source.take_snapshot("base")
    for seed in range(seeds):
        btrfs.change(pair.home, seed)
    (pair.home / "small").write_text("in the tree itself")
    with (pair.home / "reserved").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.pwrite(file.fileno(), b"x" * 8192, 65536)
    incremental = pair.source.take_snapshot("incremental")
    changes = pair.source.changes(base.guid, incremental.guid)
    (old, old_inline), (new, new_inline) = named_by_dump(base), named_by_dump(incremental)
    assert blocks(changes.allocated, 0) == new - old != set()
    assert blocks(changes.freed, 0) == old - new != set()
    inodes = {inode for inode, _ in new_inline - old_inline}
    assert blocks(changes.allocated, 1) == inodes != set()
    gone = {inode for inode, _ in old_inline} - {inode for inode, _ in new_inline}
    assert blocks(changes.freed, 1) == gone
    assert all(length % BLOCK == 0 for _, length in runs(changes.freed, 0) + runs(changes.freed, 1))


def test_a_chain_is_told_as_its_pairs_are(pair: Pair) -> None:
    """What is kept of one call for the next makes no difference."""
    chain = [pair.source.take_snapshot("s0")]
    for seed in range(4):
        btrfs.change(pair.home, seed)
        chain.append(pair.source.take_snapshot(f"s{seed + 1}"))
    pairs = list(itertools.pairwise(chain))
    driver = pair.source
    together = [driver.changes(one.guid, other.guid) for one, other in pairs]
    alone = [pair.source.changes(one.guid, other.guid) for one, other in pairs]
    assert together == alone
    assert pair.source.changes(chain[-1].guid, chain[-1].guid) == Changes(b"", b"")


def test_exact_bytes_are_those_of_the_stream(pair: Pair) -> None:
    """Files that end within a block, extents of which only parts are left, sparse files."""
    base = pair.source.take_snapshot("base")
    for number in range(50):
        (pair.home / f"odd{number}").write_bytes(os.urandom(5000 + 3 * number))
    with (pair.home / "parts").open("wb") as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
        for number in range(0, 256, 5):
            os.pwrite(file.fileno(), os.urandom(4096), number * 4096)
    with (pair.home / "sparse2").open("wb") as file:
        file.truncate(1 << 30)
        os.pwrite(file.fileno(), b"y" * 10_000, 1 << 29)
    newer = pair.source.take_snapshot("next")
    found = pair.source.changes(base.guid, newer.guid)
    length = sum(length for _, length in runs(found.allocated, 0) + runs(found.allocated, 1))
    expected = sum(5000 + 3 * number for number in range(50)) + (1 << 20) + 10_000
    # The sparse file's data begin and end on a block's border within it.
    assert expected <= length <= expected + 8192
    stream = stream_of(pair.source, base, newer)
    assert length <= len(stream) <= length * 1.02 + 20_000


def test_a_view_of_a_mirror_can_be_told_too(pair: Pair, tmp_path: Path) -> None:
    base = pair.initialize()
    btrfs.change(pair.home, 7)
    pair.update(base, "second")
    one, other = pair.destination.snapshots()
    there = pair.destination.changes(one.guid, other.guid)
    assert sum(length for _, length in runs(there.allocated, 0)) > 0
