"""Break, resync and failback, and a crash at every step of each."""

from __future__ import annotations

import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import Role, SnapshotKind
from mirrord.drivers.btrfs import subvolume
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from tests.btrfs.pair import MIRROR, Pair, request, same, stream_of, update
from tests.support import btrfs
from tests.support.service import until
from tests.support.snapshots import is_empty

_FREEZE_AND_DIE = """\
import os, signal, sys
from mirrord.drivers.btrfs.driver import BtrfsDriver
BtrfsDriver(sys.argv[1]).freeze()
os.kill(os.getpid(), signal.SIGKILL)
"""


class Crash(BaseException):
    """Stands for the end of the process."""


def crash_at_every_step(
    prepare: Callable[[], None], act: Callable[[], object], check: Callable[[], None]
) -> list[str]:
    """Crash `act` at each step in turn, do it again, and check; returns the steps' labels."""
    seen: list[str] = []
    prepare()
    steps.observe(seen.append)
    act()
    steps.observe(None)
    check()
    for number in range(len(seen)):
        prepare()
        left = number

        def observer(label: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise Crash(label)

        steps.observe(observer)
        with pytest.raises(Crash):
            act()
        steps.observe(None)
        act()
        check()
    return seen


def crash_at(label: str, act: Callable[[], object]) -> None:
    """The process ends where `act` passes that step."""

    def observer(seen: str) -> None:
        if seen == label:
            raise Crash(label)

    steps.observe(observer)
    with pytest.raises(Crash):
        act()
    steps.observe(None)


def store_of(view: Path) -> Path:
    return view.parent / ".mirrord" / view.name


def test_promote_survives_a_crash_at_every_step(pair: Pair) -> None:
    base = pair.initialize()

    def prepare() -> None:
        if pair.destination.facts().role is Role.LIVE:
            pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost")

    def check() -> None:
        facts = pair.destination.facts()
        assert facts.role is Role.LIVE and facts.origin == base.guid
        assert same(pair.view, pair.home)
        assert os.listdir(store_of(pair.view) / "swap") == []
        (pair.view / "written").touch()

    seen = crash_at_every_step(prepare, lambda: pair.destination.promote(), check)
    assert len(seen) >= 3


def test_a_promote_that_crashed_does_not_come_back_with_old_content(pair: Pair) -> None:
    base = pair.initialize()

    crash_at("BTRFS:PROMOTE:EXCHANGE", lambda: pair.destination.promote())
    btrfs.change(pair.home, 1)
    pair.update(base, "next")
    pair.destination.promote()
    assert same(pair.view, pair.home)


@pytest.mark.parametrize("changed", [True, False])
def test_rollback_survives_a_crash_at_every_step(pair: Pair, *, changed: bool) -> None:
    base = pair.initialize()
    content, lost = btrfs.digest(pair.view), ""
    returned: str | None = ""

    def prepare() -> None:
        nonlocal lost
        for snapshot in pair.destination.snapshots():
            if snapshot.kind is SnapshotKind.DIVERGED:
                pair.destination.delete_snapshot(snapshot.guid)
        pair.destination.promote()
        if changed:
            btrfs.change(pair.view, 1)
            lost = btrfs.digest(pair.view)  # (to read is to change: the times of access)

    def check() -> None:
        facts = pair.destination.facts()
        assert facts.role is Role.MIRROR and facts.shown == base.guid
        assert btrfs.digest(pair.view) == content
        kept = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
        assert [s.name for s in kept] == (["diverged"] if changed else [])
        assert returned == ("diverged" if changed else None)
        for snapshot in kept:
            assert snapshot.intact and btrfs.digest(Path(snapshot.path)) == lost
        assert os.listdir(store_of(pair.view) / "swap") == []

    def act() -> None:
        nonlocal returned
        returned = pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="diverged")

    assert len(crash_at_every_step(prepare, act, check)) >= 4


def test_prepare_delete_discard_and_forget_survive_crashes(pair: Pair) -> None:
    base = pair.source.take_snapshot("base")
    stream = stream_of(pair.source, None, base)
    places = iter(range(1000))
    place = pair.backup

    def fresh() -> None:
        nonlocal place
        place = pair.backup.parent / f"place{next(places)}"

    def driver() -> BtrfsDriver:
        return BtrfsDriver(str(place))

    def prepared() -> None:
        assert driver().facts().role is Role.MIRROR and driver().snapshots() == []

    assert crash_at_every_step(fresh, lambda: driver().prepare(MIRROR), prepared)

    def staged() -> None:
        fresh()
        driver().prepare(MIRROR)
        with driver().receive(request("t", None, base)) as receiver:
            receiver.write(stream)
            receiver.finish()

    def clean() -> None:
        assert driver().stagings() == [] and driver().snapshots() == []

    assert crash_at_every_step(staged, lambda: driver().discard("t"), clean)
    assert crash_at_every_step(staged, lambda: driver().forget(), clean)

    def committed() -> None:
        staged()
        driver().commit("t", show=False)

    crash_at_every_step(committed, lambda: driver().delete_snapshot(base.guid), clean)


def test_without_cap_sys_ptrace_a_rollback_keeps_the_volume(pair: Pair) -> None:
    """Without CAP_SYS_PTRACE the files of other processes cannot be seen."""
    base = pair.initialize()
    pair.destination.promote()
    script = (
        "import sys; from mirrord.drivers.btrfs.driver import BtrfsDriver;"
        "kept = BtrfsDriver(sys.argv[1]).rollback(sys.argv[2], mirror_id='m1', keep_as='mine');"
        "assert kept == 'mine', kept"
    )
    confined = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"]
    subprocess.run([*confined, sys.executable, "-c", script, pair.backup, base.guid], check=True)


def test_two_losing_sides_of_one_name_are_both_kept(pair: Pair) -> None:
    base = pair.initialize()
    contents = []
    for seed in (1, 2):
        pair.destination.promote()
        btrfs.change(pair.view, seed)
        contents.append(btrfs.digest(pair.view))
        pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost")
    kept = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert [s.name for s in kept] == ["lost", "lost~2"]
    assert [btrfs.digest(Path(s.path)) for s in kept] == contents


def test_what_an_abandoned_rollback_set_aside_is_kept_by_the_next(pair: Pair) -> None:
    base = pair.initialize()
    pair.destination.promote()
    btrfs.change(pair.view, 1)
    losing = btrfs.digest(pair.view)

    crash_at(
        "BTRFS:ROLLBACK:KEEP",
        lambda: pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost"),
    )
    pair.destination.promote()
    assert pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="later") is None
    [kept] = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert btrfs.digest(Path(kept.path)) == losing


@pytest.mark.parametrize("label", ["BTRFS:ROLLBACK:FOLDER", "BTRFS:ROLLBACK:KEEP"])
def test_what_was_set_aside_is_listed_even_when_nobody_ends_the_rollback(
    pair: Pair, label: str
) -> None:
    """The record of the verb was lost; the mirror goes on."""
    base = pair.initialize()
    pair.destination.promote()
    btrfs.change(pair.view, 1)
    losing = btrfs.digest(pair.view)

    crash_at(label, lambda: pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost"))
    btrfs.change(pair.home, 2)
    pair.update(base, "next")
    [kept] = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert btrfs.digest(Path(kept.path)) == losing
    assert os.listdir(store_of(pair.view) / "swap") == []


def test_what_cannot_be_kept_now_is_no_failure_of_the_update(pair: Pair) -> None:
    """It stays where it is, and the next update keeps it."""
    base = pair.initialize()
    pair.destination.promote()
    btrfs.change(pair.view, 1)
    losing = btrfs.digest(pair.view)
    rollback = functools.partial(pair.destination.rollback, base.guid, mirror_id=MIRROR)
    crash_at("BTRFS:ROLLBACK:KEEP", lambda: rollback(keep_as="lost"))

    def full(seen: str) -> None:
        if seen == "BTRFS:ROLLBACK:KEEP":
            raise OSError(errno.ENOSPC, "injected", seen)

    btrfs.change(pair.home, 2)
    steps.observe(full)
    following = pair.update(base, "next")
    steps.observe(None)
    assert same(pair.view, pair.home)
    assert os.listdir(store_of(pair.view) / "swap") == ["lost"]
    btrfs.change(pair.home, 3)
    pair.update(following, "last")
    [kept] = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert btrfs.digest(Path(kept.path)) == losing


@pytest.mark.parametrize("label", ["BTRFS:PROMOTE:EXCHANGE", "BTRFS:PROMOTE:LINK"])
def test_a_promotion_that_nobody_ends_leaves_nothing(pair: Pair, label: str) -> None:
    base = pair.initialize()

    crash_at(label, lambda: pair.destination.promote())
    assert os.listdir(store_of(pair.view) / "swap") == ["promoting"]
    if label == "BTRFS:PROMOTE:LINK":
        assert pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost") is None
    else:
        btrfs.change(pair.home, 2)
        pair.update(base, "next")
    swap = store_of(pair.view) / "swap"
    assert not swap.exists() or os.listdir(swap) == []


@pytest.mark.parametrize("label", ["BTRFS:ROLLBACK:READY:RENAME", "BTRFS:ROLLBACK:EXCHANGE"])
def test_a_rollback_that_nobody_ends_leaves_no_link(pair: Pair, label: str) -> None:
    base, before = pair.initialize(), os.listdir(pair.home.parent)
    crash_at(label, lambda: pair.source.rollback(base.guid, mirror_id=MIRROR, keep_as="lost"))
    assert os.listdir(pair.home.parent) != before
    pair.source.take_snapshot("later")
    assert os.listdir(pair.home.parent) == before


def test_the_view_exists_at_every_moment_of_a_break(pair: Pair) -> None:
    base = pair.initialize()
    stop, missing = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            try:
                os.stat(pair.view / "big")
            except OSError as error:
                missing.append(error)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(10):
            pair.destination.promote()
            pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost")
    finally:
        stop.set()
        watcher.join()
    assert not missing


def test_after_break_and_resync_in_both_directions_only_changes_are_sent(pair: Pair) -> None:
    """Break; the source is resynced from the destination; then the first direction again."""
    (pair.home / "ballast").write_bytes(os.urandom(20 << 20))
    base = pair.initialize()
    pair.destination.promote()
    btrfs.change(pair.view, 5)
    btrfs.change(pair.home, 6)
    pair.source.rollback(base.guid, mirror_id=MIRROR, keep_as="lost")
    assert pair.home.is_symlink() and pair.source.facts().role is Role.MIRROR
    there = pair.destination.take_snapshot("back")
    assert len(stream_of(pair.destination, base, there)) < 10 << 20
    back = update(pair.destination, pair.source, base, "back")
    assert same(pair.home, pair.view)
    pair.source.promote()
    btrfs.change(pair.home, 7)
    pair.destination.rollback(back.guid, mirror_id=MIRROR, keep_as="lost")
    forth = pair.source.take_snapshot("forth")
    assert len(stream_of(pair.source, back, forth)) < 10 << 20
    update(pair.source, pair.destination, back, "forth")
    assert same(pair.home, pair.view)
    for seed in range(8, 12):
        btrfs.change(pair.home, seed)
        forth = pair.update(forth, f"more{seed}")
        assert same(pair.home, pair.view)


def test_a_received_snapshot_passes_on_the_identity_it_came_with(pair: Pair) -> None:
    """A cascade: the third place has the same snapshots as the first."""
    base = pair.initialize()
    third = BtrfsDriver(str(pair.home.parent / "third"))
    third.prepare(MIRROR)
    for number in range(2):
        [*_, last] = pair.destination.snapshots()
        before = base if number else None
        with (
            third.receive(request(f"t{number}", before, last)) as receiver,
            pair.destination.send(before.guid if before else None, last.guid) as stream,
        ):
            while chunk := stream.read():
                receiver.write(chunk)
            receiver.finish()
        third.commit(f"t{number}", show=True)
        assert third.facts().shown == last.guid
        assert same(Path(third.facts().view), pair.view)
        if not number:
            btrfs.change(pair.home, 1)
            pair.update(base, "next")


def test_divergence_names_the_files_and_leaves_no_trace(pair: Pair) -> None:
    base = pair.initialize()
    pair.destination.promote()
    assert is_empty(pair.destination.divergence(base.guid))
    for number in range(20):
        (pair.view / f"extra{number:02}").write_bytes(b"x" * 5000)
    (pair.view / "big").unlink()
    lost = pair.destination.divergence(base.guid, limit=5)
    assert lost.changes is not None and len(lost.changes) == 5
    assert lost.total_changes >= 21 and lost.changed_bytes >= 100_000
    assert os.listdir(store_of(pair.view) / "swap") == []
    assert [s.guid for s in pair.destination.snapshots()] == [base.guid]


def test_a_rollback_does_not_delete_nested_subvolumes(pair: Pair) -> None:
    base = pair.initialize()
    pair.destination.promote()
    nested = btrfs.make_subvolume(pair.view / "nested")
    (nested / "file").write_text("only here")
    # Nothing of the volume itself was changed, but what is in it is in no snapshot.
    pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="kept")
    [kept] = [s for s in pair.destination.snapshots() if s.kind is SnapshotKind.DIVERGED]
    assert (Path(kept.path) / "nested" / "file").read_text() == "only here"
    with pytest.raises(Refused, match="nested"):
        pair.destination.delete_snapshot(kept.guid)


def test_a_mirror_rolls_back_to_an_older_snapshot_and_goes_on(pair: Pair) -> None:
    base = pair.initialize()
    old = btrfs.digest(pair.view)
    btrfs.change(pair.home, 1)
    newer = pair.update(base, "newer")
    assert pair.destination.rollback(base.guid, mirror_id=MIRROR, keep_as="lost") is None
    assert btrfs.digest(pair.view) == old
    assert [s.guid for s in pair.destination.snapshots()] == [base.guid, newer.guid]
    btrfs.change(pair.home, 2)
    pair.update(base, "again")
    assert same(pair.home, pair.view)


def test_forgetting_a_source_leaves_nothing_but_snapshots(pair: Pair) -> None:
    snapshot = pair.source.take_snapshot("one")
    with pair.source.lock("x"):
        pass
    pair.source.forget()
    assert [s.guid for s in pair.source.snapshots()] == [snapshot.guid]
    pair.source.delete_snapshot(snapshot.guid)
    pair.source.forget()
    assert not (pair.home.parent / ".mirrord").exists()
    assert pair.source.facts().role is Role.LIVE


def test_a_volume_that_its_owner_made_read_only_is_not_frozen_and_thawed(pair: Pair) -> None:
    pair.initialize()
    words = ["btrfs", "property", "set", "-ts", str(pair.home), "ro", "true"]
    subprocess.run(words, check=True)
    source = pair.source
    with pytest.raises(Refused, match="read-only"):
        source.freeze()
    source.thaw()
    assert subvolume.info(pair.home).read_only


@pytest.mark.parametrize("recovered", [True, False])
def test_the_record_of_a_freeze_that_ended_by_itself_thaws_nothing_later(
    pair: Pair, recovered: bool
) -> None:
    pair.initialize()
    ended = subprocess.run([sys.executable, "-c", _FREEZE_AND_DIE, str(pair.home)])
    assert ended.returncode == -signal.SIGKILL
    record = pair.home.parent / ".mirrord/home/frozen.json"
    until(lambda: not record.read_bytes())
    assert not subvolume.info(pair.home).read_only
    if recovered:
        pair.source.thaw()
    subprocess.run(["btrfs", "property", "set", "-ts", str(pair.home), "ro", "true"], check=True)
    assert not pair.source.facts().frozen
    pair.source.thaw()
    assert subvolume.info(pair.home).read_only and not record.exists()


class Stopped:
    """The process that thaws for a killed one has not begun, as on a busy host: it is stopped."""

    def __init__(self, volume: Path) -> None:
        words = [sys.executable, "-c", _FREEZE_AND_DIE.replace("SIGKILL", "SIGSTOP"), str(volume)]
        with subprocess.Popen(words) as process:
            until(lambda: b"T (stopped)" in Path(f"/proc/{process.pid}/status").read_bytes())
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            [self.pid] = map(int, children.split())
            os.kill(self.pid, signal.SIGSTOP)
            process.kill()

    def go_on(self) -> None:
        """It does its work."""
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture
def waiting() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_new_freeze_is_not_ended_by_what_thaws_for_a_killed_process(
    pair: Pair, waiting: ThreadPoolExecutor
) -> None:
    pair.initialize()
    stopped, source = Stopped(pair.home), pair.source
    freezing = waiting.submit(source.freeze)
    time.sleep(0.3)
    stopped.go_on()
    freezing.result()
    until(lambda: not Path(f"/proc/{stopped.pid}").exists())
    assert subvolume.info(pair.home).read_only
    source.thaw()
    assert not subvolume.info(pair.home).read_only


def test_what_is_set_aside_is_not_made_writable_by_what_thaws_for_a_killed_process(
    pair: Pair, waiting: ThreadPoolExecutor
) -> None:
    base = pair.initialize()
    (pair.home / "later").write_text("kept")
    stopped = Stopped(pair.home)
    turn = functools.partial(pair.source.rollback, base.guid, mirror_id=MIRROR, keep_as="mine")
    rolling = waiting.submit(turn)
    time.sleep(0.3)
    stopped.go_on()
    assert rolling.result() == "mine"
    until(lambda: not Path(f"/proc/{stopped.pid}").exists())
    [mine] = [one for one in pair.source.snapshots() if one.kind is SnapshotKind.DIVERGED]
    assert mine.intact and subvolume.info(mine.path).read_only
