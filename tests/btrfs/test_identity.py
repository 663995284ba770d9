"""Which snapshots are the same, and which were changed: by what the kernel says, not by names."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import btrfsutil
import pytest

from mirrord.core.errors import Diverged, PermissionMissing, Refused, Unsupported
from mirrord.core.model import Endpoint, Role
from mirrord.core.sealed import sealed, unsealed
from mirrord.drivers.btrfs import ioctl, layout, subvolume
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.registry import Drivers
from tests.btrfs.pair import Pair, request, run, same, transfer
from tests.support import btrfs


def flip(path: str, *, write: bool) -> None:
    btrfsutil.set_subvolume_read_only(path, False)
    if write:
        Path(path, "intruder").write_text("x")
    btrfsutil.set_subvolume_read_only(path, True)


def test_a_snapshot_and_its_received_copy_have_one_identity(pair: Pair) -> None:
    base = pair.initialize()
    [here], [there] = pair.source.snapshots(), pair.destination.snapshots()
    assert here.guid == there.guid == base.guid
    assert here.intact and there.intact
    assert subvolume.info(here.path).uuid != subvolume.info(there.path).uuid


def test_making_a_snapshot_writable_and_back_changes_nothing(pair: Pair) -> None:
    base = pair.initialize()
    for driver in (pair.source, pair.destination):
        [before] = driver.snapshots()
        flip(before.path, write=False)
        btrfsutil.sync(before.path)
        [after] = driver.snapshots()
        assert after.intact and after.guid == base.guid


def test_a_snapshot_that_was_written_to_is_neither_intact_nor_a_base(pair: Pair) -> None:
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    snapshot = pair.source.take_snapshot("next")
    [received] = pair.destination.snapshots()
    flip(received.path, write=True)
    assert not pair.destination.snapshots()[0].intact
    with pytest.raises(Diverged):
        pair.destination.receive(request("t", base, snapshot))
    flip(pair.source.snapshots()[0].path, write=True)
    [changed, _next] = pair.source.snapshots()
    assert not changed.intact and changed.guid != base.guid
    with pytest.raises(Diverged):
        pair.source.send(base.guid, snapshot.guid)


def test_an_overwrite_that_is_still_in_memory_breaks_the_identity_too(pair: Pair) -> None:
    base = pair.initialize()
    [received] = pair.destination.snapshots()
    btrfsutil.set_subvolume_read_only(received.path, False)
    with (Path(received.path) / "big").open("r+b") as file:
        file.write(b"changed")
    btrfsutil.sync(received.path)
    btrfsutil.set_subvolume_read_only(received.path, True)
    assert [s.intact for s in pair.destination.snapshots()] == [False]
    with pytest.raises(Diverged):
        pair.destination.rollback(base.guid, mirror_id="m1", keep_as="lost")


def test_a_changed_copy_of_a_received_snapshot_is_not_used_as_base(pair: Pair) -> None:
    """The kernel lets them inherit what they were received from, changes and all."""
    base = pair.initialize()
    [received] = pair.destination.snapshots()
    for name in ("before", "later"):
        copy = pair.backup.parent / name
        btrfsutil.create_snapshot(received.path, str(copy), read_only=True)
        assert subvolume.info(copy).guid == base.guid
        flip(str(copy), write=True)
        assert subvolume.info(copy).guid == base.guid, "a wrong copy with the right identity"
    assert [s.guid for s in pair.destination.snapshots()] == [base.guid]
    btrfs.change(pair.home, 1)
    snapshot = pair.update(base, "next")
    assert same(pair.home, pair.view)
    assert pair.destination.facts().shown == snapshot.guid


def test_data_are_never_cloned_from_another_copy_that_was_changed(pair: Pair) -> None:
    """Two destinations on one file system: `btrfs receive` finds the first one's copy, and is not
    started. `mirrord-receive` is given its base.
    """
    first = Pair(pair.home, pair.backup.parent / "first")
    base = first.initialize()
    pair.destination.prepare("m1")
    transfer(pair.source, pair.destination, None, base)
    for name in ("reflink", "hard link"):
        (pair.home / name).unlink()
    btrfs.reflink(pair.home / "big", pair.home / "clone")
    with (pair.home / "big").open("r+b") as file:  # now only the base has what the clone has
        file.write(os.urandom(3 << 20))
    snapshot = pair.update(base, "next")
    assert same(pair.home, pair.view)
    [copy] = first.destination.snapshots()
    btrfsutil.set_subvolume_read_only(copy.path, False)
    with (Path(copy.path) / "big").open("r+b") as file:
        file.write(b"wrong" * 600_000)
    btrfsutil.set_subvolume_read_only(copy.path, True)
    pair.destination.rollback(base.guid, mirror_id="m1", keep_as="lost")
    pair.destination.delete_snapshot(snapshot.guid)
    pair.receiver = "btrfs-progs"
    with pytest.raises(Diverged, match="another copy"):
        transfer(pair.source, pair.destination, base, snapshot)
    pair.receiver = "native"
    transfer(pair.source, pair.destination, base, snapshot)
    assert same(pair.home, pair.view)
    pair.destination.rollback(base.guid, mirror_id="m1", keep_as="again")
    pair.destination.delete_snapshot(snapshot.guid)
    btrfsutil.delete_subvolume(copy.path)
    pair.receiver = "btrfs-progs"
    transfer(pair.source, pair.destination, base, snapshot)
    assert same(pair.home, pair.view)


def test_balance_and_remount_keep_identity_and_rest(pair: Pair) -> None:
    base = pair.initialize()
    for path in (pair.home, pair.backup):
        run("btrfs", "balance", "start", "--full-balance", path)
    assert [s.intact for s in pair.source.snapshots()] == [True]
    assert [s.intact for s in pair.destination.snapshots()] == [True]
    btrfs.change(pair.home, 1)
    pair.update(base, "next")
    assert same(pair.home, pair.view)


def test_order_and_time_come_from_the_volume(pair: Pair) -> None:
    taken = []
    for name in ("c", "a", "b"):
        (pair.home / "file").write_text(name)
        taken.append(pair.source.take_snapshot(name))
    listed = pair.source.snapshots()
    assert [s.name for s in listed] == ["c", "a", "b"]
    assert all(abs(s.taken_at_ns / 1e9 - time.time()) < 60 for s in listed)


def test_when_a_snapshot_was_taken_is_asked_of_the_kernel_only_without_a_record(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = pair.initialize()
    taken = pair.update(base, "one")
    asked: list[str | Path] = []
    real = ioctl.made_at_ns

    def made_at_ns(path: str | Path) -> int | None:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(ioctl, "made_at_ns", made_at_ns)
    here = pair.source.snapshots()
    assert len(asked) == len(here) == 2
    assert here[-1].taken_at_ns % 1_000_000_000 and here[-1].taken_at_ns == taken.taken_at_ns
    asked.clear()
    there = pair.destination.snapshots()
    assert [one.taken_at_ns for one in there] == [one.taken_at_ns for one in here]
    assert asked == []


def test_an_idle_volume_is_known_to_be_unchanged_within_5_ms(pair: Pair) -> None:
    snapshot = pair.source.take_snapshot("one")
    source = pair.source
    took: list[float] = []
    while len(took) < 25 or (len(took) < 1000 and min(took) >= 0.005):  # (the host may be busy)
        began = time.perf_counter()
        assert not source.changed_since(snapshot.guid)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.005
    other = btrfs.make_subvolume(pair.home.parent / "other")
    (other / "file").write_text("elsewhere on the file system")
    pair.source.take_snapshot("two")
    assert not source.changed_since(snapshot.guid)


@pytest.mark.parametrize("how", ["append", "overwrite", "mmap", "touch", "attribute", "unlink"])
def test_each_kind_of_change_is_noticed_while_still_in_memory(pair: Pair, how: str) -> None:
    snapshot = pair.source.take_snapshot("one")
    path = pair.home / "big"
    if how == "append":
        with path.open("ab") as appended:
            appended.write(b"x")
    elif how == "overwrite":
        with path.open("r+b") as file:
            file.write(b"x")
    elif how == "mmap":
        import mmap

        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[5:6] = b"y"
            assert pair.source.changed_since(snapshot.guid)
    elif how == "touch":
        os.utime(path)
    elif how == "attribute":
        os.setxattr(path, "user.new", b"1")
    else:
        (pair.home / "reflink").unlink()
    assert pair.source.changed_since(snapshot.guid)


# Places


def test_nested_subvolumes_are_told_and_not_mirrored(pair: Pair) -> None:
    btrfs.make_subvolume(pair.home / "nested")
    (pair.home / "nested" / "file").write_text("x")
    pair.source.take_snapshot("one")
    [note] = pair.source.facts().notes
    assert "'nested' is not mirrored" in note
    pair.initialize()
    assert not (pair.view / "nested" / "file").exists()
    assert (pair.view / "big").exists()


def test_a_mounted_subvolume_is_a_source_but_never_rolled_back(pair: Pair) -> None:
    with btrfs.filesystem(size_mib=300) as mount:
        btrfs.fill(mount)
        pair = Pair(mount, pair.backup)
        base = pair.initialize()
        assert not pair.source.changed_since(base.guid)
        with pair.source.lock("update"):
            pair.source.delete_snapshot(pair.source.take_snapshot("gone").guid)
        assert not pair.source.changed_since(base.guid), "our own files count as changes"
        assert pair.source.facts().notes == ()
        (mount / "big").write_bytes(b"new")
        pair.update(base, "next")
        assert (pair.view / "big").read_bytes() == (mount / "big").read_bytes()
        with pytest.raises(Refused, match="mounted"):
            pair.source.rollback(base.guid, mirror_id="m1", keep_as="d")
        assert pair.source.facts().role is Role.LIVE


def test_the_owners_snapshots_are_found_wherever_they_are(pair: Pair) -> None:
    numbered = pair.home.parent / "snapper" / "12"
    numbered.mkdir(parents=True)
    inside = pair.home / "inside"
    for path in (numbered / "snapshot", inside):
        run("btrfs", "-q", "subvolume", "snapshot", "-r", pair.home, path)
    run("btrfs", "-q", "subvolume", "snapshot", pair.home, pair.home.parent / "writable")
    pair.source.take_snapshot("ours")
    found = pair.source.own_snapshots(("*",))
    assert [s.name for s in found] == ["12-snapshot", "inside"]
    assert pair.source.own_snapshots(("snap*",))[0].path == str(numbered / "snapshot")


def test_other_file_systems_and_users_are_told_what_is_missing(tmp_path: Path, pair: Pair) -> None:
    with pytest.raises(Unsupported, match="is on"):
        BtrfsDriver(str(tmp_path)).facts()
    os.seteuid(12345)
    try:
        with pytest.raises(PermissionMissing):
            pair.source.facts()
    finally:
        os.seteuid(0)


def test_places_that_are_not_ours_are_foreign_and_stay(pair: Pair) -> None:
    folder = pair.home.parent
    (folder / "plain").mkdir()
    (folder / "plain" / "file").touch()
    btrfs.make_subvolume(folder / "holder")
    (folder / "file").touch()
    (folder / "with").mkdir()
    btrfs.make_subvolume(folder / "with" / "current")
    for name in ("plain", "file", "with"):
        driver = BtrfsDriver(str(folder / name))
        assert driver.facts().role is Role.FOREIGN and driver.facts().notes
        with pytest.raises(Refused):
            driver.prepare("m1")
    missing = folder / "no 'such' parent"
    with pytest.raises(Refused) as refusal:
        BtrfsDriver(str(missing / "copy")).prepare("m1")
    _, colon, command = refusal.value.hint.partition("Create it with: ")
    assert colon and command.startswith("mkdir -p ")
    subprocess.run(["sh", "-c", command], check=True)
    BtrfsDriver(str(missing / "copy")).prepare("m1")
    assert missing.is_dir() and not (folder / "no").exists()


def test_old_snapshots_of_a_source_are_for_root_only(pair: Pair) -> None:
    pair.initialize()
    store = pair.home.parent / ".mirrord" / "home"
    assert (store / "snapshots").stat().st_mode & 0o777 == 0o700
    store = pair.backup / ".mirrord" / "current"
    assert (store / "snapshots").stat().st_mode & 0o777 == 0o755
    assert (store / "staging").stat().st_mode & 0o777 == 0o700
    pair.destination.promote()
    assert (store / "snapshots").stat().st_mode & 0o777 == 0o700


def test_a_record_is_read_once_by_all_drivers_of_a_process(pair: Pair) -> None:
    pair.initialize()
    drivers, place = Drivers(), Endpoint("btrfs", str(pair.backup))
    [before] = drivers.open(place).snapshots()
    record = Path(before.path).parent / layout.RECORD
    found = record.stat()
    # What nobody but a test does: the file is another one, and looks the same.
    document = unsealed(record.read_bytes())
    document["snapshot"]["name"] = "next"
    record.write_text(json.dumps(sealed(document), indent=1) + "\n")
    assert record.stat().st_size == found.st_size
    os.utime(record, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert [one.name for one in drivers.open(place).snapshots()] == ["base"]
    assert [one.name for one in Drivers().open(place).snapshots()] == ["next"]
