"""What the daemon finds at the two ends and in its records is shown, told and not repeated."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.catalogue.arguments import Arguments
from mirrord.catalogue.store import Catalogue
from mirrord.control import api
from mirrord.daemon.daemon import Daemon
from tests.contract.lab_btrfs import BtrfsLab
from tests.failover.test_interrupted import stopped_at
from tests.service.conftest import Served
from tests.service.test_shown import metrics
from tests.support import btrfs
from tests.support.labs import open_lab
from tests.support.service import until
from tests.support.world import NAME, World


def mounted(*words: str | Path) -> None:
    """Mount or unmount; the daemon may look at that very moment."""

    def done() -> bool:
        return subprocess.run([*words], check=False, capture_output=True).returncode == 0

    until(done, 20)


@pytest.fixture
def on_disks(tmp_path: Path) -> Iterator[Served]:
    """Both ends on file systems of their own, which can be unmounted."""
    with btrfs.filesystem() as here, btrfs.filesystem() as there:
        made = Served(BtrfsLab(here, there), tmp_path / "home")
        yield made
        if made.daemon.process is not None:
            made.clean_up()


def test_an_older_disk_is_found_when_it_is_mounted_and_the_right_one_too(on_disks: Served) -> None:
    served = on_disks
    served.initialized(rpo="1h")
    there = Path(served.lab.destination().location).parent
    image, old = there.parent / "image", there.parent / "old"
    first_ns = served.row()["confirmed_ns"]
    mounted("umount", there)
    subprocess.run(["cp", "--sparse=always", image, old], check=True)
    mounted("mount", "-o", "loop", image, there)
    until(lambda: served.alarms() == {})
    time.sleep(2)
    served.lab.change(served.lab.source(), 1)
    served.service.update(NAME)
    assert served.row()["lag_s"] < 2
    mounted("umount", there)
    until(lambda: served.alarms().get("destination") == "error")
    assert served.row()["lag_s"] is None
    assert "mirrord_lag_seconds{" not in metrics_of(served)
    mounted("mount", "-o", "loop", old, there)
    until(lambda: "was committed last" in "\n".join(served.row()["problems"]))
    row = served.row()
    assert row["confirmed_ns"] == first_ns and row["lag_s"] >= 2
    assert served.alarms() == {"destination": "error"}
    checked = served.cli("monitor")
    assert checked.returncode == 2 and "an older disk or image" in checked.stdout
    assert 'mirrord_alarm{kind="destination",level="error"' in metrics_of(served)
    mounted("umount", there)
    mounted("mount", "-o", "loop", image, there)
    until(lambda: served.alarms() == {})
    assert served.row()["lag_s"] is not None and served.cli("monitor").returncode == 0


def metrics_of(served: Served) -> str:
    return metrics(served)  # type: ignore[arg-type]  # needs a home only


def test_the_status_of_one_mirror_corrects_what_all_see(served: Served) -> None:
    served.initialized()
    place = Path(served.lab.destination().location)
    aside = place.with_name("aside")
    place.rename(aside)
    [row] = served.service.status(NAME)
    assert row.lag_s is None and not row.healthy
    assert served.row()["lag_s"] is None
    assert served.alarms() == {"destination": "error"}
    aside.rename(place)
    [row] = served.service.status(NAME)
    assert row.healthy and served.row()["lag_s"] is not None and served.alarms() == {}


def test_a_command_that_fails_is_an_alarm_until_one_of_its_kind_succeeds(served: Served) -> None:
    served.initialized()
    lock = served.paths.run / f"{NAME}.lock"
    lock.unlink()
    lock.mkdir()  # it cannot be opened
    assert served.cli("prune", NAME).returncode == 1
    until(lambda: "home.lock" in "\n".join(served.row()["problems"]))  # nor by the daemon's look
    lock.rmdir()
    until(lambda: served.alarms() == {"verb": "error"})
    assert "the last prune failed" in served.row()["alarms"][0]["text"]
    shown = metrics_of(served)
    assert f'mirrord_last_failed{{mirror="{NAME}",verb="prune"}} 1.0' in shown
    assert "mirrord_failed_commands_total{" in shown
    served.again()
    assert served.alarms() == {"verb": "error"}, "it survives a restart"
    assert served.cli("prune", NAME).returncode == 0
    until(lambda: served.alarms() == {})
    assert "mirrord_last_failed{" not in metrics_of(served)


def attempts(served: Served) -> int:
    return len(served.service.history(NAME, limit=1000).attempts)


def with_book(served: Served, work: Callable[[Catalogue], object]) -> None:
    book = Catalogue(served.paths.catalogue)
    work(book)
    book.close()


def test_an_operation_that_waits_for_a_decision_is_not_tried_each_second(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.service.quiesce(NAME)
    mirror_id = served.row()["id"]
    left = Arguments(guid="nowhere", taken_ns=1, name="n")
    with_book(served, lambda book: book.begin(mirror_id, "resync", left))
    served.again()
    until(lambda: served.alarms().get("interrupted") == "error")
    assert served.daemon.text().count("the interrupted resync was not recovered") == 1
    served.service.resume(NAME)
    before = attempts(served)
    time.sleep(4)
    assert attempts(served) == before
    assert served.daemon.text().count("the interrupted resync was not recovered") == 1
    assert "waits for a decision" in "\n".join(served.row()["problems"])
    checked = served.cli("monitor")
    assert checked.returncode == 2 and "waits for a decision" in checked.stdout
    assert "failure" not in served.alarms()
    # Decided: the schedule goes on.
    with_book(served, lambda book: book.end(mirror_id))
    served.service.status(NAME)
    before_ns = served.row()["confirmed_ns"]
    until(lambda: served.row()["confirmed_ns"] > before_ns)
    assert served.alarms() == {}


@pytest.mark.parametrize("held", [False, True])
def test_an_operation_that_a_person_has_just_ended_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """`abort` of a running restore: the daemon went on with it."""
    recovered, taken_up = list[str](), threading.Event()

    async def check() -> None:
        daemon = Daemon(world.paths)
        await daemon.begin()
        stopped_at(
            "ENGINE:SWITCH:CONFIRMED",
            lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
        )
        world.again()
        if held:
            daemon.scheduler.hold(NAME)
        await daemon.refresh(NAME)
        await asyncio.to_thread(taken_up.wait, 1 if held else 60)
        await daemon.end(patience_s=9)

    def recover(_service: api.Service, name: str) -> str:
        taken_up.set()
        recovered.append(name)
        return "restore"

    monkeypatch.setattr(api.Service, "recover", recover)
    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home")
        world.initialized()
        asyncio.run(check())
        world.close()
    assert recovered == ([] if held else [NAME])


@pytest.mark.parametrize("replaced", [False, True])
def test_a_catalogue_that_is_removed_or_replaced_under_the_daemon_is_opened_again(
    served: Served, replaced: bool
) -> None:
    """What it records is not in a file that no other process finds."""
    served.initialized()
    catalogue = served.paths.catalogue
    for file in catalogue.parent.glob(f"{catalogue.name}*"):
        file.unlink()
    if replaced:
        Catalogue(catalogue).close()
    served.lab.change(served.lab.source(), 1)
    served.service.update(NAME)
    served.service.quiesce(NAME)
    served.again()
    assert served.row()["quiesced"] and served.in_step()
    [update] = served.service.history(NAME, limit=9).transfers
    assert update.result == "done"
