"""Receiving with `mirrord-receive` through the driver: checkpoints, and what is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from mirrord.core.errors import Busy, CheckpointUseless, Damaged, MirrordError, Unsupported
from mirrord.core.model import ReceiveRequest, Snapshot
from mirrord.drivers.btrfs import alone
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.native_receive import explain
from mirrord.system import native as native_code
from mirrord.system import steps
from tests.btrfs.pair import MIRROR, Pair, run, same, stream_of
from tests.support import btrfs
from tests.support.service import until


@pytest.fixture(autouse=True)
def native(pair: Pair) -> None:
    pair.receiver = "native"


def wanted(base: Snapshot | None, snapshot: Snapshot) -> ReceiveRequest:
    return ReceiveRequest("t", MIRROR, base.guid if base else None, snapshot, resumable=True)


def kept_of(pair: Pair) -> Path:
    return pair.backup / ".mirrord" / "current" / "checkpoints"


def grown(pair: Pair, mib: int = 12) -> tuple[Snapshot, Snapshot, bytes]:
    """A base at both ends, a snapshot that is so much larger, and the stream between them."""
    base = pair.initialize()
    (pair.home / "large").write_bytes(random.Random(mib).randbytes(mib << 20))
    snapshot = pair.source.take_snapshot("next")
    return base, snapshot, stream_of(pair.source, base, snapshot)


def test_a_stream_goes_from_pipe_to_pipe_in_steps_of_the_asked_size(pair: Pair) -> None:
    base, snapshot, data = grown(pair, 3)
    step, sizes = 300_000, []
    with (
        pair.destination.receive(wanted(base, snapshot)) as receiver,
        pair.source.send(base.guid, snapshot.guid) as stream,
    ):
        while taken := receiver.take_from(stream, step):
            sizes.append(taken)
        assert taken == 0
        receiver.finish()
    assert sum(sizes) == len(data) and max(sizes) <= step
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view)


def test_a_program_that_ended_is_reported_from_pipe_to_pipe_too(pair: Pair) -> None:
    base, snapshot, _data = grown(pair, 3)
    with (
        pair.destination.receive(wanted(base, snapshot)) as receiver,
        pair.source.send(base.guid, snapshot.guid) as stream,
        pytest.raises(Damaged, match="does not begin as a btrfs stream"),
    ):
        receiver.write(b"no stream at all" * 4096)
        while receiver.take_from(stream, 1 << 20):
            pass


def interrupted(pair: Pair, base: Snapshot, snapshot: Snapshot, data: bytes) -> int:
    """Receive so much and break off; returns the bytes that are kept."""
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(data)
    return kept(pair)


def kept(pair: Pair) -> int:
    return sum(staging.received_bytes for staging in pair.destination.stagings())


def go_on(pair: Pair, base: Snapshot, snapshot: Snapshot) -> int:
    """Finish the transfer; returns the bytes that were sent for that."""
    [staging] = pair.destination.stagings()
    sent = 0
    checkpoint = dict(staging.checkpoint or {})
    with (
        pair.destination.receive(wanted(base, snapshot)) as receiver,
        pair.source.send(base.guid, snapshot.guid, checkpoint=checkpoint) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
            sent += len(chunk)
        receiver.finish()
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view)
    assert pair.destination.stagings() == [] and os.listdir(kept_of(pair)) == []
    return sent


def test_what_was_written_is_kept_to_the_last_command(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    for cut in (2_000_000, 7_000_001, len(whole) - 1):
        now = interrupted(pair, base, snapshot, whole[kept(pair) : cut])
        assert cut - (144 << 10) < now <= cut
    assert go_on(pair, base, snapshot) <= 144 << 10


def test_a_whole_stream_may_be_cut_before_its_finish(pair: Pair) -> None:
    """Only END is sent again."""
    base, snapshot, whole = grown(pair)
    assert interrupted(pair, base, snapshot, whole) == len(whole) - 10
    assert go_on(pair, base, snapshot) == 10


def test_what_need_not_be_resumable_keeps_nothing(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    with pair.destination.receive(wanted(base, snapshot)._replace(resumable=False)) as receiver:
        receiver.write(whole[:-1])
    assert pair.destination.stagings() == [] and not kept_of(pair).exists()


def test_a_finished_transfer_leaves_no_checkpoint(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole)
        paths = [kept_of(pair), kept_of(pair) / "t", kept_of(pair) / "t" / "record"]
        until(paths[-1].exists)  # the program makes it
        assert not [path for path in paths if path.stat().st_mode & 0o077]
        receiver.finish()
    assert os.listdir(kept_of(pair)) == []
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view)


def test_a_damaged_stream_is_not_kept(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    bad = bytearray(whole)
    bad[len(bad) // 2] ^= 1
    with pytest.raises(Damaged), pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(bytes(bad))
        receiver.finish()
    assert pair.destination.stagings() == [] and os.listdir(kept_of(pair)) == []


@pytest.mark.parametrize("at", [0, 40, 70, 5000])
def test_a_damaged_record_counts_as_none(pair: Pair, at: int) -> None:
    base, snapshot, whole = grown(pair)
    assert interrupted(pair, base, snapshot, whole[: len(whole) // 2]) > 0
    record = kept_of(pair) / "t" / "record"
    data = bytearray(record.read_bytes())
    for slot in range(0, len(data), 32 << 10):
        data[slot + at] ^= 1
    record.write_bytes(bytes(data))
    assert kept(pair) == 0
    assert go_on(pair, base, snapshot) == len(whole)


def slot_of_newest(pair: Pair) -> int:
    """Where the newest of two checkpoints is in the record."""
    data = (kept_of(pair) / "t" / "record").read_bytes()
    sequences = [int.from_bytes(data[at + 8 : at + 16], "little") for at in (0, 32 << 10)]
    assert min(sequences) > 0
    return sequences.index(max(sequences)) * (32 << 10)


@pytest.mark.parametrize("how", ["byte", "zeros", "junk", "torn"])
def test_a_damaged_slot_leaves_the_checkpoint_before_it(pair: Pair, how: str) -> None:
    """What a power cut in the middle of a checkpoint may leave."""
    base, snapshot, whole = grown(pair)
    first = interrupted(pair, base, snapshot, whole[:4_000_000])
    second = interrupted(pair, base, snapshot, whole[first:9_000_000])
    assert 0 < first < second
    record, at = kept_of(pair) / "t" / "record", slot_of_newest(pair)
    data = bytearray(record.read_bytes())
    if how == "byte":
        data[at + 5000] ^= 1
    elif how == "torn":
        data[at + 4096 : at + (32 << 10)] = bytes(28 << 10)
    else:
        data[at : at + (32 << 10)] = (bytes(4) if how == "zeros" else b"junk") * (8 << 10)
    record.write_bytes(bytes(data))
    assert kept(pair) == first
    assert go_on(pair, base, snapshot) == len(whole) - first


@pytest.mark.parametrize("bytes_left", [0, 100, 40_000])
def test_a_record_that_is_too_short_is_no_error(pair: Pair, bytes_left: int) -> None:
    base, snapshot, whole = grown(pair)
    first = interrupted(pair, base, snapshot, whole[:4_000_000])
    second = interrupted(pair, base, snapshot, whole[first:9_000_000])
    os.truncate(kept_of(pair) / "t" / "record", bytes_left)
    assert kept(pair) in ((first, second) if bytes_left == 40_000 else (0,))
    left = kept(pair)
    assert go_on(pair, base, snapshot) == len(whole) - left


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "\xff"])
def test_an_announcement_that_cannot_be_read_counts_as_none(pair: Pair, text: str) -> None:
    base, snapshot, whole = grown(pair)
    interrupted(pair, base, snapshot, whole[:4_000_000])
    (kept_of(pair) / "t" / "transfer.json").write_text(text, encoding="latin-1")
    [staging] = pair.destination.stagings()
    assert staging.checkpoint is None and staging.received_bytes == 0
    assert go_on(pair, base, snapshot) == len(whole)


def test_a_checkpoint_that_was_changed_does_not_count(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    assert interrupted(pair, base, snapshot, whole[: len(whole) // 2]) > 0
    [one] = (kept_of(pair) / "t" / "snapshots").iterdir()
    subprocess.run(["btrfs", "property", "set", "-ts", one, "ro", "false"], check=True)
    assert kept(pair) == 0
    assert go_on(pair, base, snapshot) == len(whole)


def test_a_stream_for_another_snapshot_is_refused(pair: Pair) -> None:
    base, snapshot, _whole = grown(pair)
    other = stream_of(pair.source, None, snapshot)
    with (
        pytest.raises(Damaged, match="not announced"),
        pair.destination.receive(wanted(base, snapshot)) as receiver,
    ):
        receiver.write(other)
        receiver.finish()
    with (
        pytest.raises(Damaged, match="not the announced"),
        pair.destination.receive(wanted(None, base)) as receiver,
    ):
        receiver.write(other)
        receiver.finish()
    assert pair.destination.stagings() == []


KILLED = """
import os, sys
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.btrfs.driver import BtrfsDriver
place, base, guid, name, file = sys.argv[1:]
snapshot = Snapshot(guid, name, SnapshotKind.REFERENCE, 1, 1)
driver = BtrfsDriver(place, receiver=lambda: "native")
receiver = driver.receive(ReceiveRequest("t", "m1", base, snapshot, True))
receiver.write(open(file, "rb").read())
os.kill(os.getpid(), 9)
"""


def _keeps(pair: Pair, size: int) -> bool:
    return kept(pair) >= size


def test_when_the_driver_is_killed_all_that_it_passed_on_is_kept(
    pair: Pair, tmp_path: Path
) -> None:
    """Also of a complete stream: nobody has verified it."""
    base, snapshot, whole = grown(pair)
    for cut in (5_000_001, len(whole)):
        part = whole[kept(pair) : cut]
        (tmp_path / "stream").write_bytes(part)
        words = [str(pair.backup), base.guid, snapshot.guid, "next", str(tmp_path / "stream")]
        done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
        assert done.returncode == -signal.SIGKILL
        until(partial(_keeps, pair, cut - (144 << 10)))  # a child may not have ended yet
    assert go_on(pair, base, snapshot) == 10


def test_a_receive_that_goes_on_can_be_ended_at_any_moment(pair: Pair) -> None:
    """Nothing hangs, and nothing is lost."""
    base, snapshot, whole = grown(pair)
    size = interrupted(pair, base, snapshot, whole[:-1])
    for pause_s in (0.0, 0.002, 0.01, 0.05):
        receiver = pair.destination.receive(wanted(base, snapshot))
        time.sleep(pause_s)
        began_s = time.monotonic()
        receiver.close()
        receiver.close()
        assert time.monotonic() - began_s < 10
        assert kept(pair) == size
    assert go_on(pair, base, snapshot) == len(whole) - size


def test_a_receiver_waits_for_the_program_of_one_that_was_killed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still write under the same name."""
    base, snapshot, _whole = grown(pair, mib=1)
    monkeypatch.setattr(alone, "_WAIT_S", 0.2)
    staging = pair.backup / ".mirrord" / "current" / "staging"
    left = subprocess.Popen(["flock", staging, "sleep", "60"])
    try:
        asking: list[str | Path] = ["flock", "-n", staging, "true"]
        until(lambda: subprocess.run(asking, check=False).returncode)
        with pytest.raises(Busy):
            pair.destination.receive(wanted(base, snapshot))
        monkeypatch.setattr(alone, "_WAIT_S", 90.0)
        ending = ["pkill", "-P", str(left.pid)]  # (the lock is held before the child is there)
        until(lambda: subprocess.run(ending, check=False).returncode == 0)
        pair.destination.receive(wanted(base, snapshot)).close()
    finally:
        left.kill()
        left.wait()


def test_a_stream_that_begins_elsewhere_than_the_checkpoint_ends_is_not_applied(pair: Pair) -> None:
    """A program of a killed process took it after the sender had asked where to begin."""
    base, snapshot, whole = grown(pair)
    first = interrupted(pair, base, snapshot, whole[: 4 << 20])
    now = interrupted(pair, base, snapshot, whole[first : 9 << 20])
    for told in (0, first, now + 1):
        with pytest.raises(CheckpointUseless, match=f"{now} bytes .* not {told}") as refused:
            pair.destination.receive(wanted(base, snapshot)._replace(resume_bytes=told))
        assert "shortened" in refused.value.data and kept(pair) == now
    pair.destination.receive(wanted(base, snapshot)._replace(resume_bytes=now)).close()
    assert go_on(pair, base, snapshot) == len(whole) - now


def test_a_checkpoint_that_is_newer_than_the_driver_object_is_seen(pair: Pair) -> None:
    """Another process has taken it meanwhile."""
    base, snapshot, whole = grown(pair)
    driver = BtrfsDriver(str(pair.backup))
    interrupted(pair, base, snapshot, whole[: 4 << 20])
    first = sum(one.received_bytes for one in driver.stagings())
    interrupted(pair, base, snapshot, whole[first : 9 << 20])
    assert sum(one.received_bytes for one in driver.stagings()) == kept(pair) > first


def test_a_power_cut_costs_what_came_after_the_last_checkpoint(pair: Pair, tmp_path: Path) -> None:
    """The image is copied in mid-transfer, as a power cut would leave it: one that was interrupted
    before, and goes on; and one that has come to its first checkpoint by itself.
    """
    with btrfs.filesystem(size_mib=1024, options="commit=300") as mount:
        cut = Pair(pair.home, mount / "backup")
        base, snapshot, whole = grown(cut, mib=100)
        first = interrupted(cut, base, snapshot, whole[:9_000_000])
        copies = [tmp_path / "early", tmp_path / "late"]
        with cut.destination.receive(wanted(base, snapshot)) as receiver:
            receiver.write(whole[first : 30 << 20])
            run("cp", "--sparse=always", mount.parent / "image", copies[0])
            time.sleep(2.1)
            receiver.write(whole[30 << 20 : 90 << 20])
            until(lambda: kept(cut) > first)
            run("cp", "--sparse=always", mount.parent / "image", copies[1])
    _go_on_in(copies[0], pair.home, base, snapshot, first)
    _go_on_in(copies[1], pair.home, base, snapshot, first + (64 << 20))


def _go_on_in(image: Path, home: Path, base: Snapshot, snapshot: Snapshot, least: int) -> None:
    mount = image.with_name(f"{image.name}-mount")
    mount.mkdir()
    run("mount", "-o", "loop", image, mount)
    try:
        pair = Pair(home, mount / "backup")
        assert kept(pair) >= least
        assert pair.destination.facts().shown == base.guid
        go_on(pair, base, snapshot)
    finally:
        btrfs.unmount(mount)
        mount.rmdir()
    run("btrfs", "check", image)
    image.unlink()


def test_nothing_is_left_of_a_transfer_that_is_discarded_or_forgotten(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    interrupted(pair, base, snapshot, whole[:5_000_000])
    pair.destination.discard("t")
    assert pair.destination.stagings() == [] and os.listdir(kept_of(pair)) == []
    interrupted(pair, base, snapshot, whole[:5_000_000])
    pair.destination.forget()
    assert not kept_of(pair).exists()


def test_without_mirrord_receive_a_transfer_starts_over(pair: Pair) -> None:
    """'btrfs receive' leaves nothing to resume from, and refuses what `mirrord-receive` left."""
    base, snapshot, whole = grown(pair)
    pair.receiver = "btrfs-progs"
    assert interrupted(pair, base, snapshot, whole[:8_000_000]) == 0
    pair.receiver = "native"
    assert interrupted(pair, base, snapshot, whole[:8_000_000]) > 0
    pair.receiver = "btrfs-progs"
    with pytest.raises(CheckpointUseless, match="btrfs-progs"):
        pair.destination.receive(wanted(base, snapshot))
    assert kept(pair) == 0
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole)
        receiver.finish()
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view)


def test_removing_checkpoints_can_be_interrupted_anywhere(pair: Pair) -> None:
    base, snapshot, whole = grown(pair, mib=4)

    class Interrupted(Exception):
        pass

    def removals() -> int:
        seen: list[str] = []
        steps.observe(seen.append)
        pair.destination.discard("t")
        steps.observe(None)
        return len(seen)

    interrupted(pair, base, snapshot, whole[:3_000_000])
    for number in range(removals()):
        interrupted(pair, base, snapshot, whole[:3_000_000])
        left = [number]

        def stop(_label: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted

        steps.observe(stop)
        with pytest.raises(Interrupted):
            pair.destination.discard("t")
        steps.observe(None)
        pair.destination.stagings()
        pair.destination.discard("t")
        assert os.listdir(kept_of(pair)) == []


@pytest.mark.parametrize(
    "kind",
    ["damaged", "failed", "no-space", "permission", "base", "unsupported", "checkpoint", ""],
)
def test_every_failure_has_its_error(kind: str) -> None:
    error = explain(kind, "the reason", "btrfs:/backup", "base")
    assert isinstance(error, MirrordError) and error.why == "the reason"
    assert isinstance(error, CheckpointUseless) == (kind == "checkpoint")


def test_a_program_that_is_missing_is_named(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is staged; the other receiver does without it."""
    base = pair.initialize()
    snapshot = pair.source.take_snapshot("next")
    monkeypatch.setattr(native_code, "__file__", str(tmp_path / "system" / "native.py"))
    for name in ("missing", "not executable"):
        with pytest.raises(Unsupported, match="not installed") as caught:
            pair.destination.receive(wanted(base, snapshot))
        assert caught.value.where == str(tmp_path / "_receive"), name
        assert "\n" not in str(caught.value) and "btrfs-progs" in caught.value.hint
        assert pair.destination.stagings() == []
        (tmp_path / "_receive").touch(mode=0o644)
    pair.receiver = "btrfs-progs"
    pair.update(base, "another")
    assert same(pair.home, pair.view)
