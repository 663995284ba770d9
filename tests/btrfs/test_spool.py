"""The spool of a transfer that may break off: what is kept, what is found out, what it costs."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from mirrord.core.errors import Busy, CheckpointUseless
from mirrord.core.model import ReceiveRequest, Snapshot
from mirrord.drivers.btrfs import receive, spool
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.drivers.btrfs.spool_format import HEAD_BYTES, PAYLOAD_BYTES, SLOT_BYTES
from mirrord.system import steps
from tests.btrfs.pair import MIRROR, Pair, run, same, stream_of
from tests.support import btrfs
from tests.support.service import until


def wanted(base: Snapshot | None, snapshot: Snapshot) -> ReceiveRequest:
    return ReceiveRequest("t", MIRROR, base.guid if base else None, snapshot, resumable=True)


def spool_of(pair: Pair) -> Path:
    return pair.backup / ".mirrord" / "current" / "spool" / "t"


def grown(pair: Pair, mib: int = 24) -> tuple[Snapshot, Snapshot, bytes]:
    """A base at both ends, a snapshot that is so much larger, and the stream between them."""
    base = pair.initialize()
    (pair.home / "large").write_bytes(os.urandom(mib << 20))
    snapshot = pair.source.take_snapshot("next")
    return base, snapshot, stream_of(pair.source, base, snapshot)


def interrupted(pair: Pair, base: Snapshot, snapshot: Snapshot, data: bytes) -> int:
    """Receive so much and break off; returns the bytes that are kept."""
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        for start in range(0, len(data), 1 << 20):
            receiver.write(data[start : start + (1 << 20)])
    return kept(pair)


def kept(pair: Pair) -> int:
    return sum(staging.received_bytes for staging in pair.destination.stagings())


def go_on(pair: Pair, base: Snapshot, snapshot: Snapshot) -> int:
    """Finish the transfer; returns the bytes that were sent for that."""
    [staging] = pair.destination.stagings()
    sent = 0
    with (
        pair.destination.receive(wanted(base, snapshot)) as receiver,
        pair.source.send(
            base.guid, snapshot.guid, checkpoint=dict(staging.checkpoint or {})
        ) as stream,
    ):
        while stream.skip() or receiver.catch_up():
            pass
        while chunk := stream.read():
            receiver.write(chunk)
            sent += len(chunk)
        receiver.finish()
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view)
    assert pair.destination.stagings() == []
    assert not spool_of(pair).exists()
    return sent


def test_what_was_written_is_kept_to_the_byte(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    for cut in (PAYLOAD_BYTES * 5, PAYLOAD_BYTES * 9 + 1, len(whole) - 1):
        data = whole[kept(pair) : cut]
        assert interrupted(pair, base, snapshot, data) == cut
    assert go_on(pair, base, snapshot) == 1


def test_a_whole_stream_may_be_cut_before_its_finish(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    assert interrupted(pair, base, snapshot, whole) == len(whole)
    assert go_on(pair, base, snapshot) == 0


def test_a_small_transfer_makes_no_file(pair: Pair) -> None:
    base, snapshot, whole = grown(pair, mib=3)
    seen: list[str] = []
    steps.observe(seen.append)
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole)
        receiver.finish()
    pair.destination.commit("t", show=True)
    assert not [label for label in seen if "SPOOL" in label]
    assert not spool_of(pair).parent.exists()


def test_a_local_transfer_keeps_nothing(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    request = wanted(base, snapshot)._replace(resumable=False)
    with pair.destination.receive(request) as receiver:
        receiver.write(whole[:-1])
    assert pair.destination.stagings() == [] and not spool_of(pair).parent.exists()


def test_a_finished_transfer_leaves_no_file(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole)
        assert spool_of(pair).exists()
        assert spool_of(pair).stat().st_mode & 0o077 == 0
        assert spool_of(pair).parent.stat().st_mode & 0o077 == 0
        receiver.finish()
        assert not spool_of(pair).exists()


@pytest.mark.parametrize("cut", [1, 5000, SLOT_BYTES + 1])
def test_a_torn_tail_is_cut_off_at_the_last_good_chunk(pair: Pair, cut: int) -> None:
    base, snapshot, whole = grown(pair)
    part = 10 * PAYLOAD_BYTES + 700_000
    assert interrupted(pair, base, snapshot, whole[:part]) == part
    size = spool_of(pair).stat().st_size
    os.truncate(spool_of(pair), size - cut)
    left = kept(pair)
    assert part - cut - SLOT_BYTES - 5000 <= left < part + (left == part)
    assert go_on(pair, base, snapshot) == len(whole) - left


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"slot"])
def test_a_tail_that_was_never_written_is_cut_off(pair: Pair, junk: bytes) -> None:
    """After a power cut a file may be longer than what is in it."""
    base, snapshot, whole = grown(pair)
    part = 8 * PAYLOAD_BYTES
    assert interrupted(pair, base, snapshot, whole[:part]) == part
    assert spool.LAG_BYTES <= 9 * SLOT_BYTES, "so far back is looked"
    with spool_of(pair).open("ab") as file:
        file.write((junk * SLOT_BYTES)[: 6 * SLOT_BYTES])
    assert kept(pair) == part
    assert go_on(pair, base, snapshot) == len(whole) - part


def test_a_damaged_chunk_in_the_middle_is_found_and_what_is_before_it_used(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    interrupted(pair, base, snapshot, whole[: 20 * PAYLOAD_BYTES])
    with spool_of(pair).open("r+b") as file:
        file.seek(HEAD_BYTES + 4 * SLOT_BYTES + 1000)
        file.write(b"damaged")
    assert kept(pair) == 20 * PAYLOAD_BYTES, "only the tail is looked at"
    with pytest.raises(CheckpointUseless) as caught:
        go_on(pair, base, snapshot)
    assert caught.value.data["shortened"]
    assert kept(pair) == 4 * PAYLOAD_BYTES
    assert go_on(pair, base, snapshot) == len(whole) - 4 * PAYLOAD_BYTES


@pytest.mark.parametrize("where", [0, 9, 60])
def test_a_damaged_head_holds_nothing(pair: Pair, where: int) -> None:
    base, snapshot, whole = grown(pair)
    interrupted(pair, base, snapshot, whole[: 6 * PAYLOAD_BYTES])
    with spool_of(pair).open("r+b") as file:
        file.seek(where)
        file.write(b"\xff\xff")
    [staging] = pair.destination.stagings()
    assert staging.checkpoint is None and staging.received_bytes == 0
    assert go_on(pair, base, snapshot) == len(whole)


def test_a_damaged_stream_is_not_kept(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    bad = bytearray(whole)
    bad[6 << 20] ^= 1
    with (
        pytest.raises(Exception, match="damaged"),
        pair.destination.receive(wanted(base, snapshot)) as receiver,
    ):
        receiver.write(bytes(bad))
        receiver.finish()
    assert pair.destination.stagings() == [] and not spool_of(pair).exists()


@pytest.mark.parametrize("label", ["CREATE", "WRITE", "SYNC"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_spool_that_cannot_be_written_does_not_stop_the_transfer(
    pair: Pair, label: str, number: int
) -> None:
    base, snapshot, whole = grown(pair)

    def fail(reached: str) -> None:
        if reached == f"BTRFS:SPOOL:{label}":
            raise OSError(number, "injected")

    steps.observe(fail)
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole)
        receiver.finish()
    pair.destination.commit("t", show=True)
    assert same(pair.home, pair.view) and not spool_of(pair).exists()


@pytest.mark.parametrize("fast", [False, True])
def test_a_power_cut_costs_no_more_than_it_may(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """The image is copied in mid-transfer, as a power cut would leave it."""
    monkeypatch.setattr(spool, "FAST_BYTES_S", 1 if fast else 1 << 60)
    synced: list[str] = []
    steps.observe(lambda label: synced.append(label) if label == "BTRFS:SPOOL:SYNC" else None)
    with btrfs.filesystem(size_mib=512, options="commit=300") as mount:
        cut = Pair(pair.home, mount / "backup")
        base, snapshot, whole = grown(cut, mib=40)
        copies = [tmp_path / "early", tmp_path / "late"]
        written: list[int] = []
        with cut.destination.receive(wanted(base, snapshot)) as receiver:
            for copy, end in zip(copies, (17 << 20, 38_000_001), strict=True):
                start = written[-1] if written else 0
                for at in range(start, end, 100_003):
                    receiver.write(whole[at : min(end, at + 100_003)])
                assert bool(synced) is not fast, "what comes fast does not wait for the disk"
                written.append(end)
                run("cp", "--sparse=always", mount.parent / "image", copy)
    for copy, end in zip(copies, written, strict=True):
        least = 0 if fast else end - spool.LAG_BYTES
        _go_on_in(copy, pair.home, base, snapshot, (least, end))


def _go_on_in(
    image: Path, home: Path, base: Snapshot, snapshot: Snapshot, between: tuple[int, int]
) -> None:
    mount = image.with_name(f"{image.name}-mount")
    mount.mkdir()
    run("mount", "-o", "loop", image, mount)
    try:
        pair = Pair(home, mount / "backup")
        assert between[0] <= kept(pair) <= between[1]
        assert pair.destination.facts().shown == base.guid
        go_on(pair, base, snapshot)
    finally:
        btrfs.unmount(mount)
        mount.rmdir()
    run("btrfs", "check", image)


def test_a_discarded_or_forgotten_transfer_leaves_no_file(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    interrupted(pair, base, snapshot, whole[:-1])
    assert spool_of(pair).exists()
    pair.destination.discard("t")
    assert not spool_of(pair).exists() and pair.destination.stagings() == []
    interrupted(pair, base, snapshot, whole[:-1])
    pair.destination.forget()
    assert not spool_of(pair).exists()


def test_a_receive_that_goes_on_can_be_ended_at_any_moment(pair: Pair) -> None:
    """While the spool is applied again, too: nothing hangs, and nothing is lost."""
    base, snapshot, whole = grown(pair, mib=40)
    size = interrupted(pair, base, snapshot, whole[:-1])
    for pause_s in (0.0, 0.01, 0.05, 0.2):
        receiver = pair.destination.receive(wanted(base, snapshot))
        time.sleep(pause_s)
        began = time.perf_counter()
        receiver.close()
        receiver.close()
        assert time.perf_counter() - began < 60
        assert kept(pair) == size
    assert go_on(pair, base, snapshot) == 1


def test_a_receiver_waits_for_the_program_of_one_that_was_killed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still write under the same name."""
    base, snapshot, _whole = grown(pair, mib=1)
    monkeypatch.setattr(receive, "_LOCK_WAIT_S", 0.2)
    staging = pair.backup / ".mirrord" / "current" / "staging"
    left = subprocess.Popen(["flock", staging, "sleep", "60"])
    try:
        asking: list[str | Path] = ["flock", "-n", staging, "true"]
        until(lambda: subprocess.run(asking, check=False).returncode)
        with pytest.raises(Busy):
            pair.destination.receive(wanted(base, snapshot))
        monkeypatch.setattr(receive, "_LOCK_WAIT_S", 90.0)
        subprocess.run(["pkill", "-P", str(left.pid)], check=True)
        pair.destination.receive(wanted(base, snapshot)).close()
    finally:
        left.kill()
        left.wait()


def test_a_checkpoint_that_is_older_than_the_driver_object_is_seen(pair: Pair) -> None:
    """Another process has written on meanwhile: what was read of the file before is outdated."""
    base, snapshot, whole = grown(pair)
    driver = BtrfsDriver(str(pair.backup))
    interrupted(pair, base, snapshot, whole[: 6 << 20])
    first = sum(one.received_bytes for one in driver.stagings())
    interrupted(pair, base, snapshot, whole[first : 12 << 20])
    assert sum(one.received_bytes for one in driver.stagings()) == 12 << 20
