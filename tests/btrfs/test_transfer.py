"""Streams: what is carried, what is found out, and what is left behind when it goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import (
    Damaged,
    Diverged,
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    TransferFailed,
)
from mirrord.drivers.btrfs import receive as receiving
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from tests.btrfs.pair import MIRROR, Pair, request, run, same, stream_of, transfer
from tests.support import btrfs
from tests.support.service import until
from tests.transport.echo import lives


@pytest.fixture(autouse=True, params=["native", "btrfs-progs"])
def each_receiver(pair: Pair, request: pytest.FixtureRequest) -> None:
    pair.receiver = request.param


def staged(pair: Pair) -> list[Path]:
    return list((pair.backup / ".mirrord" / "current" / "staging").iterdir())


@pytest.mark.parametrize("version", [1, 2])
def test_a_transfer_preserves_every_kind_of_file(pair: Pair, version: int) -> None:
    source = BtrfsDriver(str(pair.home), stream_version=version)
    pair.destination.prepare(MIRROR)
    base = source.take_snapshot("base")
    transfer(source, pair.destination, None, base)
    assert same(pair.home, pair.view)
    for seed in range(5):
        btrfs.change(pair.home, seed)
        snapshot = source.take_snapshot(f"s{seed}")
        transfer(source, pair.destination, base, snapshot)
        assert same(pair.home, pair.view)
        base = snapshot
    assert os.stat(pair.view / "sparse").st_blocks * 512 < 1 << 20
    assert os.stat(pair.view / "big").st_nlink == 2


def test_compressed_data_travel_compressed(pair: Pair) -> None:
    run("btrfs", "property", "set", pair.home, "compression", "zstd")
    (pair.home / "text").write_bytes(b"all work and no play " * 400_000)
    snapshot = pair.source.take_snapshot("one")
    pair.destination.prepare(MIRROR)
    one = BtrfsDriver(str(pair.home), stream_version=1)
    two = BtrfsDriver(str(pair.home), stream_version=2)
    saved = len(stream_of(one, None, snapshot)) - len(stream_of(two, None, snapshot))
    assert saved > 7_000_000
    estimate = two.delta(None, snapshot.guid).send_bytes
    assert one.delta(None, snapshot.guid).send_bytes - estimate > 7_000_000
    transfer(two, pair.destination, None, snapshot)
    assert (pair.view / "text").read_bytes() == (pair.home / "text").read_bytes()


def test_the_view_is_whole_at_every_moment(pair: Pair) -> None:
    """A reader sees two files of one generation, always: the old or the new one."""
    for name in ("one", "two"):
        (pair.home / name).write_text("0")
    base = pair.initialize()
    stop = threading.Event()
    seen: set[str] = set()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            try:
                folder = os.open(pair.view, os.O_RDONLY)
                texts = []
                for name in ("one", "two"):
                    file = os.open(name, os.O_RDONLY, dir_fd=folder)
                    texts.append(os.read(file, 100).decode())
                    os.close(file)
                os.close(folder)
            except OSError as error:
                wrong.append(error)
                return
            seen.add(texts[0])
            if texts[0] != texts[1]:
                wrong.append(texts)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 20):
            for name in ("one", "two"):
                (pair.home / name).write_text(str(number))
            base = pair.update(base, f"s{number}")
    finally:
        stop.set()
        reader.join()
    assert not wrong and len(seen) > 5


def test_the_view_cannot_be_written_to(pair: Pair) -> None:
    pair.initialize()
    with pytest.raises(OSError, match="Read-only"):
        (pair.view / "file").write_text("x")


# What goes wrong


def test_users_reach_the_view_whatever_the_umask(pair: Pair) -> None:
    before = os.umask(0o077)  # that of the service
    try:
        pair.destination.prepare(MIRROR)
        snapshot = pair.source.take_snapshot("one")
        transfer(pair.source, pair.destination, None, snapshot)
    finally:
        os.umask(before)
    on_the_way = [pair.backup, *Path(os.path.realpath(pair.view)).parents]
    for folder in on_the_way[: on_the_way.index(pair.backup, 1) + 1]:
        assert folder.stat().st_mode & 0o005 == 0o005, folder
    assert Path(snapshot.path).parent.stat().st_mode & 0o005 == 0o005


def test_a_full_destination_stays_as_it_was(pair: Pair) -> None:
    with btrfs.filesystem(size_mib=700) as small:
        pair = Pair(pair.home, small / "backup", receiver=pair.receiver)
        base = pair.initialize()
        before = btrfs.digest(pair.view)
        with (pair.home / "huge").open("wb") as file:
            for _ in range(800):
                file.write(os.urandom(1 << 20))
        snapshot = pair.source.take_snapshot("huge")
        with pytest.raises(NoSpace):
            transfer(pair.source, pair.destination, base, snapshot)
        assert staged(pair) == [] and btrfs.digest(pair.view) == before
        assert pair.destination.facts().shown == base.guid
        (pair.home / "huge").unlink()
        for _ in range(100):  # the space comes back when the kernel has cleaned up
            if pair.destination.facts().free_bytes > 200 << 20:
                break
            run("sync", "-f", small)
            time.sleep(0.1)
        pair.update(base, "small")
        assert same(pair.home, pair.view)


def test_a_killed_child_leaves_nothing(pair: Pair) -> None:
    base = pair.initialize()
    before = btrfs.digest(pair.view)
    (pair.home / "more").write_bytes(os.urandom(8 << 20))
    snapshot = pair.source.take_snapshot("next")
    whole = stream_of(pair.source, base, snapshot)
    with (
        pytest.raises(TransferFailed, match="signal 9"),
        pair.destination.receive(request("t", base, snapshot)) as receiver,
    ):
        receiver.write(whole[: 1 << 20])
        assert receiver._child is not None
        receiver._child.kill()
        receiver.write(whole[1 << 20 :])
    assert staged(pair) == [] and btrfs.digest(pair.view) == before


def test_a_stream_cut_between_two_commands_is_not_taken_for_whole(pair: Pair) -> None:
    """`btrfs receive` takes that for success, and calls the subvolume received."""
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    snapshot = pair.source.take_snapshot("next")
    whole = stream_of(pair.source, base, snapshot)
    cut = 17
    for _ in range(5):
        cut += 10 + int.from_bytes(whole[cut : cut + 4], "little")
    for kept in (cut, len(whole) - 10):
        with (
            pytest.raises(Damaged, match="it is truncated"),
            pair.destination.receive(request("t", base, snapshot)) as receiver,
        ):
            receiver.write(whole[:kept])
            receiver.finish()
        assert staged(pair) == []
    transfer(pair.source, pair.destination, base, snapshot)


def test_every_damaged_byte_is_found(pair: Pair) -> None:
    base = pair.initialize()
    (pair.home / "file").write_bytes(b"data" * 50)
    snapshot = pair.source.take_snapshot("next")
    whole = stream_of(pair.source, base, snapshot)
    for position in [*range(0, 60, 7), *range(60, len(whole), len(whole) // 20 + 1)]:
        bad = bytearray(whole)
        bad[position] ^= 0x10
        with (
            pytest.raises(MirrordError),
            pair.destination.receive(request("t", base, snapshot)) as receiver,
        ):
            receiver.write(bytes(bad))
            receiver.finish()
    assert staged(pair) == [] and pair.destination.facts().shown == base.guid


SENDER = """
import sys
from mirrord.drivers.btrfs.driver import BtrfsDriver
try:
    with BtrfsDriver(sys.argv[1]).send(None, sys.argv[2]) as stream:
        print("started", bytes(stream.read())[:12], flush=True)
        sys.stdin.readline()
        while stream.read():
            pass
    print("whole")
except Exception as error:
    print(type(error).__name__, error)
"""


def states(number: int) -> set[str]:
    """Those of the threads of a process."""
    texts = [(one / "stat").read_text() for one in Path(f"/proc/{number}/task").iterdir()]
    return {text.rpartition(")")[2].split()[0] for text in texts}


def test_a_sender_that_was_stopped_and_continued_notices_it(pair: Pair) -> None:
    (pair.home / "large").write_bytes(os.urandom(30 << 20))
    snapshot = pair.source.take_snapshot("one")
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, pair.home, snapshot.guid],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        assert "btrfs-stream" in sender.stdout.readline()
        time.sleep(1.5)  # the kernel fills the pipe, and waits
        until(lambda: states(sender.pid) == {"S"})
        sender.send_signal(signal.SIGSTOP)
        until(lambda: states(sender.pid) == {"T"})
        sender.send_signal(signal.SIGCONT)
        print(file=sender.stdin, flush=True)
        said = sender.stdout.read()
    assert said.startswith("TransferFailed") and "begins again" in said, said


def test_signals_do_not_disturb_a_stream(pair: Pair) -> None:
    (pair.home / "large").write_bytes(os.urandom(20 << 20))
    snapshot = pair.source.take_snapshot("one")
    quiet = stream_of(pair.source, None, snapshot)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        assert stream_of(pair.source, None, snapshot) == quiet
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_closing_a_stream_early_ends_its_thread_at_once(pair: Pair) -> None:
    (pair.home / "large").write_bytes(os.urandom(30 << 20))
    snapshot = pair.source.take_snapshot("one")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        stream = pair.source.send(None, snapshot.guid)
        stream.read()
        began = time.perf_counter()
        stream.close()
        stream.close()
        assert time.perf_counter() - began < 10
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not [t for t in threading.enumerate() if t.name == "btrfs-send"]


RECEIVER = """
import os, sys
from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.btrfs.driver import BtrfsDriver
guid, name, data = sys.argv[2:5]
snapshot = Snapshot(guid, name, SnapshotKind.REFERENCE, 1, 1)
driver = BtrfsDriver(sys.argv[1], receiver=lambda: sys.argv[5])
receiver = driver.receive(ReceiveRequest("t", "m1", None, snapshot))
receiver.write(open(data, "rb").read())
print(receiver._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("part", [0.5, 1])
def test_a_killed_receiver_leaves_no_orphan_and_nothing_visible(
    pair: Pair, tmp_path: Path, part: float
) -> None:
    snapshot = pair.source.take_snapshot("one")
    whole = stream_of(pair.source, None, snapshot)
    data = tmp_path / "stream"
    data.write_bytes(whole[: int(len(whole) * part)])
    pair.destination.prepare(MIRROR)
    done = subprocess.run(
        [sys.executable, "-c", RECEIVER, pair.backup, snapshot.guid, "one", data, pair.receiver],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    child = done.stdout
    until(lambda: not lives(int(child)), what="for the child to end")
    [left] = pair.destination.stagings()
    assert not left.complete and left.snapshot.guid == snapshot.guid
    assert pair.destination.snapshots() == []
    pair.destination.discard("t")
    assert pair.destination.stagings() == [] and staged(pair) == []


def test_a_base_that_was_deleted_is_called_so_at_both_ends(pair: Pair) -> None:
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    snapshot = pair.update(base, "next")
    pair.source.delete_snapshot(base.guid)
    with pytest.raises(Diverged):
        pair.source.send(base.guid, snapshot.guid)
    pair.destination.delete_snapshot(base.guid)
    with pytest.raises(Diverged):
        pair.destination.receive(request("t", base, snapshot))


def test_a_destination_mounted_at_its_subvolume_finds_its_base(pair: Pair) -> None:
    """The base lies inside of what is mounted: it can be reached, though not by the whole path."""
    holder = btrfs.make_subvolume(pair.backup.parent / "holder")
    device = run("findmnt", "-n", "-o", "SOURCE", "--target", str(holder)).split("[")[0].strip()
    root = f"{holder.parent.name}/holder"
    mount = pair.home.parent / "elsewhere"
    mount.mkdir()
    run("mount", "-o", f"subvol={root}", device, mount)
    try:
        mounted = Pair(pair.home, mount / "backup", receiver=pair.receiver)
        base = mounted.initialize()
        btrfs.change(pair.home, 1)
        mounted.update(base, "next")
        assert same(pair.home, mounted.view)
    finally:
        run("umount", mount)


def test_what_the_program_says_becomes_one_clear_error() -> None:
    cases = {
        "ERROR: cannot find parent subvolume": Diverged,
        "parent subvol is not reachable from inside the root subvol": Diverged,
        "write to x failed: No space left on device": NoSpace,
        "crc32 mismatch in command": Damaged,
        "something else": TransferFailed,
    }
    for said, kind in cases.items():
        assert isinstance(receiving.explain(said, "btrfs:/x", "g"), kind), said


def test_a_damaged_own_file_is_named(pair: Pair) -> None:
    base = pair.initialize()
    next_one = pair.source.take_snapshot("next")
    marker = pair.backup / ".mirrord" / "current" / "mirror.json"
    for text in ("", "{}", '{"format": 1}', '{"format": 1, "mirror_id": "m1", "more": 1}'):
        marker.write_text(text)
        facts = pair.destination.facts()  # `break` works all the same
        assert facts.mirror_id == "" and any("mirror.json" in note for note in facts.notes)
        with pytest.raises(Damaged, match=r"mirror\.json"):
            pair.destination.receive(request("t2", base, next_one))
    marker.unlink()
    assert any("lost its record" in note for note in pair.destination.facts().notes)
    with pytest.raises(Refused, match="its record was lost") as caught:
        pair.destination.receive(request("t2", base, next_one))
    assert "mirrord break" in caught.value.hint


def test_two_snapshots_with_one_name_have_each_their_place(pair: Pair) -> None:
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    pair.source.delete_snapshot(base.guid)
    again = pair.source.take_snapshot("base")
    assert again.guid != base.guid
    with (
        pair.destination.receive(request("t2", None, again)) as receiver,
        pair.source.send(None, again.guid) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
        receiver.finish()
    pair.destination.commit("t2", show=True)
    assert [s.name for s in pair.destination.snapshots()] == ["base", "base"]
    assert same(pair.home, pair.view)


def test_a_late_repeated_commit_does_not_turn_the_view_back(pair: Pair) -> None:
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    newer = pair.update(base, "next")
    assert pair.destination.commit("t-base", show=True).guid == base.guid
    assert pair.destination.facts().shown == newer.guid


def _property(path: Path, value: str) -> None:
    run("btrfs", "property", "set", "-f", "-ts", path, "ro", value)


def _made_writable(path: Path) -> None:
    _property(path, "false")


def _written_to(path: Path) -> None:
    _property(path, "false")
    (path / "forged").write_text("forged")
    _property(path, "true")


def _replaced(path: Path) -> None:
    """By another received snapshot."""
    run("btrfs", "-q", "subvolume", "delete", path)
    other = path.parents[3] / "snapshots" / "base" / "base"
    run("btrfs", "-q", "subvolume", "snapshot", "-r", other, path)


def _deleted(path: Path) -> None:
    run("btrfs", "-q", "subvolume", "delete", path)


def _beside(path: Path) -> None:
    path.parents[1].joinpath("other").mkdir()


@pytest.mark.parametrize("change", [_made_writable, _written_to, _replaced, _deleted, _beside])
def test_a_complete_staging_that_was_changed_is_not_committed(
    pair: Pair, change: Callable[[Path], None]
) -> None:
    """Between the end of its transfer and its commit, for example after a kill. It is received
    again.
    """
    base = pair.initialize()
    btrfs.change(pair.home, 1)
    snapshot, before = pair.source.take_snapshot("next"), btrfs.digest(pair.view)
    with pair.destination.receive(request("t", base, snapshot)) as receiver:
        receiver.write(stream_of(pair.source, base, snapshot))
        receiver.finish()
    assert [one.complete for one in pair.destination.stagings()] == [True]
    [folder] = staged(pair)
    change(folder / "next" / "next")
    assert [one.complete for one in pair.destination.stagings()] == [False]
    with pytest.raises(NotFound):
        pair.destination.commit("t", show=True)
    assert pair.destination.facts().shown == base.guid and btrfs.digest(pair.view) == before
    pair.destination.discard("t")
    transfer(pair.source, pair.destination, base, snapshot)
    assert same(pair.home, pair.view) and staged(pair) == []


def test_names_cannot_lead_out_of_the_store(pair: Pair) -> None:
    pair.destination.prepare(MIRROR)
    for name in ("..", "a/b", "", "x" * 300):
        with pytest.raises(MirrordError):
            pair.source.take_snapshot(name)
        with pytest.raises(MirrordError):
            pair.destination.discard(name)


def test_steps_have_labels(pair: Pair) -> None:
    seen: list[str] = []
    steps.observe(seen.append)
    pair.initialize()
    steps.observe(None)
    assert all(label.startswith("BTRFS:") for label in seen) and len(set(seen)) > 10
