"""A block volume against a plain bytearray, and against everything that disks do."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import (
    Busy,
    Damaged,
    InvariantError,
    IoFailed,
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    UsageError,
)
from mirrord.core.model import Snapshot
from mirrord.drivers.block import owner
from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from mirrord.system.explain import explained
from tests.contract.flows import MIRROR, mirror, request
from tests.support import btrfs
from tests.support.blocks import read_snapshot

SIZE = 3 << 20
ranges = st.tuples(st.integers(0, SIZE), st.integers(0, 40_000)).map(
    lambda pair: (pair[0], min(pair[1], SIZE - pair[0]))
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), ranges, st.integers(0, 255)),
        st.tuples(st.just("trim"), ranges, st.just(0)),
        st.tuples(st.just("flush"), st.just((0, 0)), st.just(0)),
        st.tuples(st.just("snapshot"), st.just((0, 0)), st.just(0)),
        st.tuples(st.just("delete"), st.just((0, 0)), st.integers(0, 9)),
        st.tuples(st.just("reopen"), st.just((0, 0)), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_a_volume_is_a_bytearray_with_snapshots(
    todo: list[tuple[str, tuple[int, int], int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v"
        volume = Volume.create(path, SIZE)
        model, kept = bytearray(SIZE), dict[str, bytes]()
        for number, (what, (offset, length), value) in enumerate(todo):
            if what == "write":
                data = random.Random(number).randbytes(length) if value % 3 else bytes(length)
                volume.write(offset, data)
                model[offset : offset + length] = data
            elif what == "trim":
                volume.trim(offset, length)
                model[offset : offset + length] = bytes(length)
            elif what == "flush":
                volume.flush()
            elif what == "snapshot":
                kept[volume.snapshot(f"s{number}").guid] = bytes(model)
            elif what == "delete" and kept:
                guid = sorted(kept)[value % len(kept)]
                volume.delete_snapshot(guid)
                del kept[guid]
            elif what == "reopen":
                volume.close()
                volume = Volume.open(path, writable=True)
        assert volume.read(0, SIZE) == model
        for guid, content in kept.items():
            assert read_snapshot(volume, guid, 0, SIZE) == content
        volume.close()
        assert check_volume(path).findings == []


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with some content and a snapshot."""
    with Volume.create(tmp_path / "v", SIZE) as made:
        made.write(0, random.Random(1).randbytes(700_000))
        made.snapshot("one")
        made.write(100_000, random.Random(2).randbytes(50_000))
    return tmp_path / "v"


def test_every_flipped_byte_is_found(volume: Path) -> None:
    data = volume / "data"
    blocks = data.stat().st_size // 4096
    whole = data.read_bytes()
    used = [n for n in range(1, blocks) if any(whole[n * 4096 : (n + 1) * 4096])]
    assert len(used) > 100
    for number in random.Random(3).sample(used, 25):
        spoiled = bytearray(whole)
        spoiled[number * 4096 + 77] ^= 1
        data.write_bytes(spoiled)
        found = check_volume(volume).findings
        assert any(f"block {number} is damaged" in finding for finding in found), number
    data.write_bytes(whole)
    assert check_volume(volume).findings == []


def test_a_damaged_block_is_never_read_as_if_it_were_right(volume: Path) -> None:
    content = Volume.open(volume).read(0, SIZE)
    data = volume / "data"
    whole = data.read_bytes()
    for number in range(1, len(whole) // 4096):
        spoiled = bytearray(whole)
        spoiled[number * 4096 + 4000] ^= 0x80
        data.write_bytes(spoiled)
        with Volume.open(volume) as opened:
            try:
                assert opened.read(0, SIZE) == content
            except Damaged as error:
                assert "volume check" in error.hint


@pytest.mark.parametrize("spoil", ["empty", "short", "flipped", "gone", "rubbish"])
def test_a_root_record_that_is_torn_is_named_and_left_alone(volume: Path, spoil: str) -> None:
    root = volume / "root"
    whole = root.read_bytes()
    left = {
        "empty": b"",
        "short": whole[:-1],
        "rubbish": os.urandom(len(whole)),
        "flipped": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "gone": b"",
    }[spoil]
    if spoil == "gone":
        root.unlink()
    else:
        root.write_bytes(left)
    for work in (
        lambda: Volume.open(volume),
        lambda: Volume.open(volume, writable=True),
        lambda: check_volume(volume),
    ):
        with pytest.raises((Damaged, NotFound)) as caught:
            work()
        assert caught.value.hint
    if spoil != "gone":
        assert root.read_bytes() == left


def test_blocks_of_a_snapshot_are_never_overwritten(volume: Path) -> None:
    with Volume.open(volume) as opened:
        [one] = opened.snapshots()
        before = read_snapshot(opened, one.guid, 0, SIZE)
    made = random.Random(4)
    for _ in range(40):
        with Volume.open(volume, writable=True) as opened:
            opened.write(made.randrange(SIZE - 60_000), made.randbytes(60_000))
            assert read_snapshot(opened, one.guid, 0, SIZE) == before
    assert check_volume(volume).findings == []


def test_deleting_a_snapshot_gives_its_space_back(volume: Path) -> None:
    def disk() -> int:
        return (volume / "data").stat().st_blocks

    with Volume.open(volume, writable=True) as opened:
        opened.trim(0, SIZE)
    held = disk()
    with Volume.open(volume, writable=True) as opened:
        opened.delete_snapshot(opened.snapshots()[0].guid)
    assert disk() < held / 4
    assert check_volume(volume).findings == []


def test_hundreds_of_snapshots_are_as_quick_as_one(tmp_path: Path) -> None:
    with Volume.create(tmp_path / "v", 1 << 40) as opened:
        for number in range(300):
            opened.write(number << 30, b"x")
            opened.snapshot(f"s{number}")
        assert len(opened.snapshots()) == 300
    with Volume.open(tmp_path / "v") as opened:
        newest = opened.snapshots()[-1]
        assert read_snapshot(opened, newest.guid, 299 << 30, 1) == b"x"
    assert check_volume(tmp_path / "v").findings == []


def test_one_writer_at_a_time_and_any_number_of_readers(volume: Path) -> None:
    with Volume.open(volume, writable=True) as writer:
        with pytest.raises(Busy, match="writing"):
            Volume.open(volume, writable=True, wait_s=0.1)
        writer.write(0, b"new")
        assert Volume.open(volume).read(0, 3) != b"new", "not flushed yet"
        writer.flush()
        assert Volume.open(volume).read(0, 3) == b"new"


def test_a_writer_waits_for_another_that_is_soon_done(volume: Path) -> None:
    first = Volume.open(volume, writable=True)
    ends = threading.Timer(0.3, first.close)
    ends.start()
    with Volume.open(volume, writable=True) as second:
        second.write(0, b"second")
    ends.join()
    assert Volume.open(volume).read(0, 6) == b"second"


def test_a_destination_cannot_be_written(tmp_path: Path) -> None:
    driver = BlockDriver(str(tmp_path / "d"))
    driver.prepare(MIRROR)
    with pytest.raises(Refused):
        Volume.open(tmp_path / "d", writable=True)


@pytest.mark.parametrize("size", [0, -1, (16 << 40) + 1])
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UsageError):
        Volume.create(tmp_path / "v", size)


def test_the_largest_volume_takes_no_space(tmp_path: Path) -> None:
    with Volume.create(tmp_path / "v", 16 << 40) as opened:
        opened.write((16 << 40) - 5, b"hello")
    with Volume.open(tmp_path / "v") as opened:
        assert opened.read((16 << 40) - 5, 5) == b"hello"
        assert int(str(opened.info()["disk_bytes"])) < 200_000


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_full_disk_loses_nothing_that_was_committed(tiny: Path) -> None:
    with Volume.create(tiny / "v", 64 << 20) as opened:
        opened.write(0, b"a" * 1_000_000)
    with pytest.raises(NoSpace), Volume.open(tiny / "v", writable=True) as opened:
        for number in range(64):
            opened.write(number << 20, os.urandom(1 << 20))
            opened.flush()
    with Volume.open(tiny / "v", writable=True) as opened:
        assert opened.read(0, 1)  # it opens, and reads
        before = opened.read(0, 64 << 20)
    assert check_volume(tiny / "v").findings == []
    with Volume.open(tiny / "v", writable=True) as opened:
        opened.trim(1 << 20, 63 << 20)
        opened.flush()
        assert opened.read(0, 1 << 20) == before[: 1 << 20]


def test_a_quota_is_named(tmp_path: Path) -> None:
    """Of the file system with the volume, and of one with any other file."""
    with btrfs.filesystem(size_mib=256) as mount:
        limited = btrfs.make_subvolume(mount / "limited")
        subprocess.run(["btrfs", "quota", "enable", mount], check=True)
        with Volume.create(limited / "v", 64 << 20) as opened:
            opened.write(0, b"a" * 4096)
        subprocess.run(["btrfs", "qgroup", "limit", "2M", limited], check=True)
        with (
            pytest.raises(NoSpace, match=r"the quota is exceeded: .*[Qq]uota") as caught,
            Volume.open(limited / "v", writable=True) as opened,
        ):
            for number in range(64):
                opened.write(number << 20, os.urandom(1 << 20))
                opened.flush()
        assert "btrfs qgroup show" in caught.value.hint and "zfs get quota" in caught.value.hint
        with pytest.raises(NoSpace, match="the quota is exceeded"), explained():
            (limited / "file").write_bytes(os.urandom(4 << 20))
        with Volume.open(limited / "v") as opened:
            assert opened.read(0, 1)


def test_a_full_destination_shows_what_it_showed_and_goes_on_later(
    tiny: Path, tmp_path: Path
) -> None:
    with Volume.create(tmp_path / "s", 64 << 20) as opened:
        opened.write(0, os.urandom(2 << 20))
    source, destination = BlockDriver(str(tmp_path / "s")), BlockDriver(str(tiny / "d"))
    destination.prepare(MIRROR)
    base = mirror(source, destination, None, "base")
    before = Volume.open(tiny / "d").read(0, 64 << 20)
    (tiny / "filler").write_bytes(b"x" * (5 << 20))
    with Volume.open(tmp_path / "s", writable=True) as opened:
        opened.write(8 << 20, os.urandom(3 << 20))
    snapshot = source.take_snapshot("next")
    with (
        pytest.raises(NoSpace),
        destination.receive(request("t", base, snapshot)) as receiver,
        source.send(base.guid, snapshot.guid) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
        receiver.finish()
    assert Volume.open(tiny / "d").read(0, 64 << 20) == before
    assert check_volume(tiny / "d").findings == []
    (tiny / "filler").unlink()
    destination.discard("t")
    mirror(source, destination, base, "next")
    assert Volume.open(tiny / "d").read(0, 64 << 20) == Volume.open(tmp_path / "s").read(
        0, 64 << 20
    )
    assert check_volume(tiny / "d").findings == []


def test_after_a_break_both_sides_write_and_neither_uses_the_others_numbers(
    tmp_path: Path,
) -> None:
    with Volume.create(tmp_path / "s", SIZE) as opened:
        opened.write(0, os.urandom(500_000))
    source, destination = BlockDriver(str(tmp_path / "s")), BlockDriver(str(tmp_path / "d"))
    destination.prepare(MIRROR)
    base = mirror(source, destination, None, "base")
    destination.promote()
    for path in (tmp_path / "s", tmp_path / "d"):
        with Volume.open(path, writable=True) as opened:
            opened.write(100_000, os.urandom(300_000))
    assert len(list((tmp_path / "d").glob("data.*"))) == 1
    theirs = Volume.open(tmp_path / "d").read(0, SIZE)
    destination.rollback(base.guid, mirror_id=MIRROR, keep_as="kept")
    mirror(source, destination, base, "next")
    [kept] = [s for s in destination.snapshots() if s.name == "kept"]
    with Volume.open(tmp_path / "d") as opened:
        assert read_snapshot(opened, kept.guid, 0, SIZE) == theirs
        assert opened.read(0, SIZE) == Volume.open(tmp_path / "s").read(0, SIZE)
    assert check_volume(tmp_path / "d").findings == []


def test_a_snapshot_whose_blocks_the_source_reused_goes_the_base_never(tmp_path: Path) -> None:
    with Volume.create(tmp_path / "s", SIZE) as opened:
        opened.write(0, os.urandom(SIZE))
    source, destination = BlockDriver(str(tmp_path / "s")), BlockDriver(str(tmp_path / "d"))
    destination.prepare(MIRROR)
    base = mirror(source, destination, None, "n0")
    for number in range(1, 9):
        with Volume.open(tmp_path / "s", writable=True) as opened:
            opened.write(0, os.urandom(SIZE // 2))
        old, base = base, mirror(source, destination, base, f"n{number}")
        source.delete_snapshot(old.guid)
        assert check_volume(tmp_path / "d").findings == []
        shown = destination.facts().shown
        assert shown == base.guid
        same = Volume.open(tmp_path / "d").read(0, SIZE) == Volume.open(tmp_path / "s").read(
            0, SIZE
        )
        assert same
    assert 1 <= len(destination.snapshots()) < 9


def test_a_snapshot_that_another_mirror_has_pinned_is_not_deleted_for_its_blocks(
    tmp_path: Path,
) -> None:
    with Volume.create(tmp_path / "s", SIZE) as opened:
        opened.write(0, os.urandom(SIZE))
    source, destination = BlockDriver(str(tmp_path / "s")), BlockDriver(str(tmp_path / "d"))
    destination.prepare(MIRROR)
    base = first = mirror(source, destination, None, "n0")
    destination.pin("0a1b2c3d", [first.guid])

    def updates(base: Snapshot) -> None:
        for number in range(1, 9):
            with Volume.open(tmp_path / "s", writable=True) as opened:
                opened.write(0, os.urandom(SIZE // 2))
            old, base = base, mirror(source, destination, base, f"n{number}")
            destination.pin(MIRROR, [base.guid])
            source.delete_snapshot(old.guid)

    with pytest.raises(Refused, match="0a1b2c3d has pinned"):
        updates(base)
    assert first.guid in {one.guid for one in destination.snapshots() if one.intact}
    assert check_volume(tmp_path / "d").findings == []


def test_what_the_owner_may_not_delete(volume: Path) -> None:
    driver = BlockDriver(str(volume))
    reference = driver.take_snapshot("reference")
    with Volume.open(volume, writable=True) as opened, pytest.raises(Refused):
        opened.delete_snapshot(reference.guid)
    with pytest.raises(MirrordError):
        Volume.open(volume).write(0, b"x")


def test_a_folder_comes_back_from_the_tar_stream_and_nothing_escapes(tmp_path: Path) -> None:
    folder, again, outside = tmp_path / "folder", tmp_path / "again", tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("content")
    (folder / "link").symlink_to("below/file")
    again.mkdir()
    with Volume.create(tmp_path / "v", SIZE) as opened:
        owner.import_folder(opened, folder)
        opened.flush()
        owner.export_tar(opened, None, again)
    assert (again / "below" / "file").read_text() == "content"
    assert (again / "link").readlink() == Path("below/file")
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        for name, kind in (
            ("way", tarfile.SYMTYPE),
            ("way/out", tarfile.REGTYPE),
            ("../up", tarfile.REGTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, str(outside) if kind == tarfile.SYMTYPE else ""
            tar.addfile(entry, io.BytesIO())
    evil.seek(0)
    outside.mkdir()
    with Volume.create(tmp_path / "w", SIZE) as opened:
        owner.import_tar(opened, evil)
        opened.flush()
        with pytest.raises(IoFailed):
            owner.export_tar(opened, None, again)
    assert list(outside.iterdir()) == [] and not (tmp_path / "up").exists()


def test_an_export_replaces_no_device_and_no_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Volume.create(tmp_path / "v", SIZE) as opened:
        owner.import_tar(opened, io.BytesIO(b"content"))
        opened.flush()
        for export in (owner.export_image, owner.export_tar):
            with pytest.raises(UsageError, match="is not a regular file"):
                export(opened, None, pipe)
    assert pipe.is_fifo()


def test_a_block_is_neither_allocated_nor_freed_twice(tmp_path: Path) -> None:
    with Volume.create(tmp_path / "v", SIZE) as opened:
        opened.write(0, b"x")
        opened.flush()
        held = opened.image.map
        address = next(one for one in range(1, 9) if held.bits(0, 0) >> one & 1)
        with pytest.raises(InvariantError, match="twice"):
            held.set_run(address, 1)
        free = next(one for one in range(1, 99) if not held.bits(0, 0) >> one & 1)
        with pytest.raises(InvariantError, match="twice"):
            held.clear_run(free, 1)


@pytest.mark.parametrize("writes", [1, 100])
def test_a_check_of_a_volume_that_is_written_to_reports_no_damage(
    tmp_path: Path, writes: int
) -> None:
    """The blocks of the image that is checked are reused meanwhile."""
    place, left = tmp_path / "v", [writes]
    with Volume.create(place, SIZE) as volume:
        volume.write(0, random.Random(0).randbytes(SIZE))
        volume.flush()

        def write(_blocks: int) -> None:
            left[0] -= 1
            for seed in (1, 2, 3) if left[0] >= 0 else ():
                volume.write(0, random.Random(seed).randbytes(SIZE))
                volume.flush()

        found = check_volume(place, progress=write).findings
        if writes == 1:
            assert found == []
        else:
            assert len(found) == 1 and "was written to" in found[0]
    assert check_volume(place).findings == []
    # Damage of what is not written to stays damage.
    content = (place / "data").read_bytes()
    (place / "data").write_bytes(bytes(byte ^ 1 for byte in content))
    assert any("is damaged" in one for one in check_volume(place).findings)
