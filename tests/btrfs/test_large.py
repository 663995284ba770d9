"""Volumes of very many extents: the memory that a delta takes; whether others go on meanwhile."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.drivers.btrfs import ioctl
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system.native import BtrfsExtents, StreamChecksum, block_checksums
from tests.btrfs.pair import Pair

MIB = 1 << 20
#: What `EXTENTS_MAX` extents take, with what this test feeds.
BOUND_BYTES = 140 * MIB


def extents(first: int, count: int) -> bytes:
    """Items of a tree search: files of one extent each, as the kernel's call gives them."""
    packed = bytearray(count * (32 + 53))
    for n in range(count):
        place = (first + n) << 13
        head = struct.pack("<QQQII", 1, 256 + first + n, 0, 108, 53)
        data = struct.pack("<QQBBHBQQQQ", 5, 4096, 0, 0, 0, 1, place, 4096, 0, 4096)
        packed[n * 85 : n * 85 + 85] = head + data
    return bytes(packed)


def rss_bytes(field: str = "VmRSS") -> int:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) << 10


def fed(pieces: list[bytes], repeats: int, part: int, parts: int) -> BtrfsExtents:
    """A tree of `repeats` times as many extents, each time at other places."""
    found = BtrfsExtents(0, True, part=part, parts=parts)
    for repeat in range(repeats):
        for piece in pieces:
            moved = bytearray(piece)
            moved[32 + 21 + 5 :: 85] = bytes([repeat]) * (len(moved) // 85)
            found.feed(moved, len(moved) // 85)
    return found


def test_a_delta_of_tens_of_millions_of_extents_takes_bounded_memory() -> None:
    """24 million extents: 384 MiB were all of them held, and twice that while they are gathered."""
    pieces = [extents(at, 100_000) for at in range(0, 400_000, 100_000)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak is reset
    before = rss_bytes()
    repeats = 60
    old = fed(pieces, repeats, 0, 1)
    assert old.parts == 8
    most = rss_bytes("VmHWM") - before
    assert most < BOUND_BYTES, f"{most / MIB:.0f} MiB"
    assert 23_000_000 < old.blocks() * old.parts < 25_000_000


def test_others_go_on_while_native_code_works() -> None:
    """Hashing and walking, each in calls that take ten milliseconds or more: in one of them another
    thread has its turn again and again. On a busy machine that may not be the first.
    """
    data = bytes(256 * MIB)
    items = extents(0, 200_000) * 5
    turns = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal turns
        while not over.wait(0.001):
            turns += 1

    def most(work: Callable[[], object]) -> int:
        found = 0
        for _ in range(50):
            before = turns
            work()
            found = max(found, turns - before)
            if found > 3:
                break
        return found

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        assert most(lambda: block_checksums(data, 4096)) > 3
        assert most(lambda: StreamChecksum().update(data)) > 3
        assert most(lambda: walked(items)) > 3
    finally:
        over.set()
        ticking.join()


def walked(items: bytes) -> None:
    found = BtrfsExtents(0, True)
    found.feed(items, len(items) // 85)
    found.blocks()


def test_the_parts_of_a_real_tree_are_the_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in four parts, a delta says what it says in one."""
    for number in range(600):
        (pair.home / f"f{number}").write_bytes(os.urandom(4096 * (number % 3 + 1)))
    base = pair.source.take_snapshot("s1")
    for number in range(0, 600, 5):
        (pair.home / f"f{number}").write_bytes(os.urandom(9000))
    incremental = pair.source.take_snapshot("s2")
    whole = pair.source.delta(base.guid, incremental.guid, states=True)
    real = ioctl.search_extents

    def in_parts(*words: int, part: int = 0, parts: int = 1, **more: object) -> BtrfsExtents:
        return real(*words, part=part, parts=max(4, parts), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ioctl, "search_extents", in_parts)
    assert (
        BtrfsDriver(pair.source.location).delta(base.guid, incremental.guid, states=True) == whole
    )
    assert whole.states is not None and whole.states.added > 200
