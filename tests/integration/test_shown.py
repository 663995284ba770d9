"""Lag and health are those of what the destination shows, and every failure is seen afterwards:
without a daemon, on real btrfs and on block volumes.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.catalogue.arguments import Arguments
from mirrord.catalogue.store import Catalogue
from mirrord.core.errors import Diverged, MirrordError, NoSpace, Refused
from mirrord.core.states import Verb
from mirrord.drivers.block.volume import Volume
from mirrord.engine import failures
from mirrord.system import steps
from tests.contract.lab import Lab
from tests.contract.lab_block import SIZE_BYTES
from tests.contract.lab_btrfs import BtrfsLab
from tests.failover.volumes import replace
from tests.support import btrfs
from tests.support.labs import open_lab
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME, World


class Disk(NamedTuple):
    """Where the destination is: what keeps a copy of it, puts that copy there, takes it away."""

    world: World
    keep: Callable[[], None]
    put_back: Callable[[], None]
    take_away: Callable[[], None]


@contextmanager
def _btrfs(folder: Path) -> Iterator[Disk]:
    with btrfs.filesystem() as here, btrfs.filesystem() as there:
        image, old = there.parent / "image", there.parent / "old"

        def keep() -> None:
            subprocess.run(["umount", there], check=True)
            subprocess.run(["cp", "--sparse=always", image, old], check=True)
            subprocess.run(["mount", "-o", "loop", image, there], check=True)

        def put_back() -> None:
            subprocess.run(["umount", there], check=True)
            subprocess.run(["mount", "-o", "loop", old, there], check=True)

        def take_away() -> None:
            subprocess.run(["umount", there], check=True)

        world = World(BtrfsLab(here, there), folder / "home")
        yield Disk(world, keep, put_back, take_away)
        world.clean_up()
        if not os.path.ismount(there):
            subprocess.run(["mount", "-o", "loop", image, there], check=True)


@contextmanager
def _block(folder: Path) -> Iterator[Disk]:
    with open_lab("lab_block", folder) as lab:
        world = World(lab, folder / "home")
        place, old = Path(lab.destination().location), folder / "old"

        def put_back() -> None:
            shutil.rmtree(place)
            old.rename(place)

        def keep() -> None:
            shutil.copytree(place, old, symlinks=True)

        yield Disk(world, keep, put_back, lambda: shutil.rmtree(place))
        world.clean_up()


@pytest.fixture(params=[_btrfs, _block], ids=["btrfs", "block"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with request.param(tmp_path) as made:
        yield made


def problems(world: World) -> str:
    return "\n".join(world.status()["problems"])


def test_an_older_disk_at_the_destination_shows_its_own_age(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    first = world.status()
    disk.keep()
    time.sleep(2)
    world.lab.change(world.lab.source(), 1)
    began_s = time.monotonic()
    world.service.update(NAME)
    second = world.status()
    assert second["healthy"] and second["lag_s"] < time.monotonic() - began_s + 0.1
    disk.put_back()
    found = world.status()
    assert found["shown"] == first["shown"] and not found["healthy"]
    assert found["confirmed_ns"] == first["confirmed_ns"] and found["lag_s"] >= 2
    text = problems(world)
    assert first["shown"] in text and f"{second['shown']} was committed last" in text
    assert "an older disk or image is mounted there" in text
    checked = world.cli("monitor")
    assert checked.returncode == 2 and "was committed last" in checked.stdout
    assert "was committed last" in world.service.explain(NAME).text
    # The way on, where the source still has what the old disk shows.
    world.service.update(NAME)
    assert world.in_step() and world.status()["healthy"]
    assert world.cli("monitor").returncode == 0


def test_a_source_that_did_not_change_is_as_fresh_as_the_last_look_at_it(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    time.sleep(1)
    began_s = time.monotonic()
    assert world.service.update(NAME).status == "unchanged"
    assert world.status()["lag_s"] < time.monotonic() - began_s + 0.1


def test_a_destination_that_is_not_there_has_no_lag_but_a_problem(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    disk.take_away()
    found = world.status()
    assert found["lag_s"] is None
    assert problems(world).startswith("the destination ") and world.end("destination") in problems(
        world
    )
    assert world.cli("monitor").returncode == 2
    with pytest.raises(MirrordError):
        world.service.update(NAME)
    assert [each["verb"] for each in world.status()["failures"]] == ["update"]


@pytest.mark.parametrize("verb", ["update", "break", "resync", "reverse", "quiesced"])
def test_another_live_volume_in_the_place_of_the_destination_is_not_the_copy(
    disk: Disk, verb: str
) -> None:
    """It used to be recorded as a mirror that was never initialized, without any problem."""
    world = disk.world
    world.initialized()
    place = Path(world.lab.destination().location)
    place.rename(place.with_name("away"))
    if world.lab.kind == "btrfs":
        btrfs.make_subvolume(place)
    else:
        Volume.create(place, SIZE_BYTES).close()
    if verb == "quiesced":
        assert world.cli("quiesce", NAME).returncode == 0
        verb = "update"
    for _attempt in range(2):
        found = world.cli(verb, NAME, *(("--yes",) if verb in ("resync", "reverse") else ()))
        assert found.returncode == 1
        assert f"{world.end('destination')}: another volume has taken the place" in found.stderr
        assert "Move that volume away and the copy back" in found.stderr
        assert world.status()["state"] == "mirrored"
        assert "another volume has taken the place of the destination" in problems(world)
        assert world.cli("monitor").returncode == 2
    place.rename(place.with_name("strange"))
    place.with_name("away").rename(place)
    world.cli("resume", NAME)
    world.service.update(NAME)
    assert world.in_step()


@pytest.mark.parametrize("verb", ["update", "break", "resync"])
def test_a_live_volume_beside_the_snapshots_of_a_former_source_is_not_the_copy(
    tmp_path: Path, verb: str
) -> None:
    """Only on btrfs are snapshots beside the volume, which another one can take the place of."""
    with _btrfs(tmp_path) as disk:
        _refuse_a_strange_destination(disk.world, verb)


def _refuse_a_strange_destination(world: World, verb: str) -> None:
    world.initialized()
    assert world.cli("reverse", NAME, "--yes").returncode == 0
    place = Path(world.lab.source().location)
    away = place.with_name("away")
    place.rename(away)
    btrfs.make_subvolume(place)
    found = world.cli(verb, NAME, *(("--yes",) if verb == "resync" else ()))
    assert found.returncode == 1, found.stdout
    assert "another volume has taken the place of the destination" in found.stderr
    assert "another volume has taken the place of the destination" in problems(world)
    place.rename(place.with_name("strange"))
    away.rename(place)
    assert world.cli("update", NAME).returncode == 0


def test_monitor_tells_that_nothing_can_be_recorded(disk: Disk) -> None:
    """Without a daemon: a command that fails for that cannot record its failure either."""
    world = disk.world
    world.initialized()
    state = world.paths.state
    state.rename(state.with_name("kept"))
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", state], check=True)
    try:
        shutil.copytree(state.with_name("kept"), state, dirs_exist_ok=True)
        assert world.cli("monitor").returncode == 0
        with suppress(OSError), (state / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        world.lab.change(world.lab.source(), 1)
        assert world.cli("update", NAME).returncode == 1
        checked = world.cli("monitor")
        assert checked.returncode == 2 and f"no space is left in {state}" in checked.stdout
        (state / "fill").unlink()
        assert world.cli("update", NAME).returncode == 0
        assert world.cli("monitor").returncode == 0
    finally:
        subprocess.run(["umount", "-l", state], check=True)


def test_a_record_of_an_older_version_claims_no_more_than_what_is_shown(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    taken_ns = world.status()["confirmed_ns"]
    world.service.update(NAME)
    later_ns = world.status()["confirmed_ns"]
    assert later_ns > taken_ns
    mirror_id = world.status()["id"]
    world.service.catalogue._db.execute("UPDATE mirror SET confirmed_guid = ''")
    found = world.status()
    assert found["confirmed_ns"] == taken_ns and found["healthy"]
    world.service.update(NAME)
    row = world.service.catalogue.mirror(mirror_id)
    assert row is not None and row.confirmed_guid == world.lab.destination().facts().shown


def test_a_file_system_that_became_read_only_is_a_problem_of_the_destination(
    tmp_path: Path,
) -> None:
    with _btrfs(tmp_path) as disk:
        world = disk.world
        world.initialized()
        there = Path(world.lab.destination().location).parent
        subprocess.run(["mount", "-o", "remount,ro", there], check=True)
        assert f"destination {world.end('destination')} is read-only" in problems(world)
        assert world.cli("monitor").returncode == 2
        subprocess.run(["mount", "-o", "remount,rw", there], check=True)
        assert world.status()["healthy"]


def test_a_full_destination_is_a_problem_though_no_verb_met_it(tmp_path: Path) -> None:
    with btrfs.filesystem() as here, btrfs.filesystem(size_mib=128) as there:
        world = World(BtrfsLab(here, there), tmp_path / "home")
        world.initialized()
        with (there / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 20))
        subprocess.run(["sync", "-f", there], check=True)
        assert "no space is left at the destination" in problems(world)
        assert world.cli("monitor").returncode == 2
        (there / "ballast").unlink()
        subprocess.run(["sync", "-f", there], check=True)
        assert "no space" not in problems(world)
        world.clean_up()


def test_a_source_that_is_gone_is_named_and_not_its_snapshots(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    place = Path(world.lab.source().location)
    if world.lab.kind == "btrfs":
        subprocess.run(["btrfs", "-q", "subvolume", "delete", place], check=True)
    else:
        shutil.rmtree(place)
    text = problems(world)
    assert f"the source {world.end('source')} is missing" in text
    with pytest.raises(MirrordError) as caught:
        world.service.update(NAME)
    assert caught.value.where == world.end("source")
    [failure] = world.status()["failures"]
    assert failure["verb"] == "update" and world.end("source") in failure["error"]


def test_a_destination_without_its_view_is_not_filled_with_another_volume(disk: Disk) -> None:
    """The source was replaced, with its snapshots, and the view was removed: no full transfer."""
    world = disk.world
    world.initialized(keep_destination=2)
    source = world.lab.source()
    for one in source.snapshots():
        delete_by_force(source, one.guid)
    replace(world.lab, source)
    destination = world.lab.destination()
    if world.lab.kind == "btrfs":
        Path(destination.facts().view).unlink()
    before = [one.guid for one in destination.snapshots()]
    for _ in range(3):
        with pytest.raises(Diverged) as caught:
            world.service.update(NAME)
        assert "a full transfer is required" in caught.value.hint
    assert [one.guid for one in world.lab.destination().snapshots()] == before
    assert world.service.break_off(NAME).status == "done", "the way on, as the hint says"


def test_a_verb_that_fails_before_it_holds_anything_is_seen_until_one_succeeds(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    # The lock of the mirror itself cannot be opened.
    lock = world.paths.run / f"{NAME}.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(MirrordError):
        world.service.prune(NAME, dry_run=False, accept=False)
    lock.rmdir()
    [failure] = world.status()["failures"]
    assert failure["verb"] == "prune"
    assert "the last prune failed" in problems(world)
    assert "the last prune failed" in world.service.explain(NAME).text
    checked = world.cli("monitor")
    assert checked.returncode == 2 and "prune" in checked.stdout
    # A new process knows it too; another kind of verb does not cross it out.
    world.lab.change(world.lab.source(), 1)
    world.again().update(NAME)
    assert "the last prune failed" in problems(world)
    world.service.prune(NAME, dry_run=True, accept=False)
    assert "the last prune failed" in problems(world)
    world.service.prune(NAME, dry_run=False, accept=False)
    assert world.status()["healthy"] and world.status()["failures"] == []


def test_what_a_person_misdirected_is_no_failure_and_an_abort_ends_one(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    with pytest.raises(Refused):
        world.service.initialize(NAME)
    with pytest.raises(MirrordError):
        world.service.restore_all(NAME, snapshot="nothing-of-that-name", yes=True)
    assert world.status()["healthy"]
    mirror_id = world.status()["id"]
    failures.failed(world.service.catalogue, mirror_id, Verb.BREAK, NoSpace("no space is left"))
    said = f"the last break failed: no space is left ('mirrord abort {NAME}' clears this message)"
    assert said in problems(world)
    world.service.abort(NAME, hard=False)
    assert world.status()["healthy"]


def test_a_failure_that_cannot_be_recorded_is_said_with_the_failure(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = disk.world
    world.initialized()
    disk.take_away()

    def full(*_: object) -> None:
        raise NoSpace("the catalogue cannot be written: no space is left")

    monkeypatch.setattr(Catalogue, "add_failure", full)
    with pytest.raises(MirrordError) as caught:
        world.service.update(NAME)
    assert "catalogue" not in str(caught.value)
    assert any("could not be recorded" in note for note in caught.value.__notes__)


def test_an_operation_that_is_left_waits_for_a_decision(disk: Disk) -> None:
    world = disk.world
    world.initialized()
    mirror_id = world.status()["id"]
    book = world.service.catalogue
    book.begin(mirror_id, "resync", Arguments(guid="x", taken_ns=1, name="n"))
    text = problems(world)
    assert "an interrupted resync waits for a decision" in text
    assert f"mirrord resume-operation {NAME}" in text and f"mirrord abort {NAME} --hard" in text
    checked = world.cli("monitor")
    assert checked.returncode == 2 and "waits for a decision" in checked.stdout
    assert "waits for a decision" in world.service.explain(NAME).text
    book.end(mirror_id)
    assert world.status()["healthy"]


@pytest.mark.in_process
def test_a_transfer_that_failed_is_no_problem_once_the_mirror_was_reversed(
    world: World, lab: Lab
) -> None:
    """The next transfer may be a long time away: the new source need not change."""
    world.initialized()
    lab.change(lab.source(), 1)

    def full(label: str) -> None:
        if "RECEIVE" in label:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps.observe(full)
    with pytest.raises(NoSpace):
        world.service.update(NAME)
    steps.observe(None)
    assert "last transfer failed" in world.service.status(NAME)[0].problems[0]
    world.service.break_off(NAME)
    world.service.reverse(NAME, yes=True)
    [status] = world.service.status(NAME)
    assert status.healthy, status.problems
