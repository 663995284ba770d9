"""The wall clock of a real daemon is stepped forward and back while it works."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.model import SnapshotKind
from mirrord.drivers.contract import Driver
from tests.service.conftest import Served
from tests.support import preload
from tests.support.labs import open_lab
from tests.support.service import ServiceProcess, until
from tests.support.world import NAME

SHIM = Path(__file__).with_name("steppedclock.c")


class Stepped(Served):
    """Its daemon has a wall clock of its own."""

    offset: Path

    def step(self, seconds: float) -> None:
        """Set the clock off by so many seconds."""
        with self.offset.open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))

    def host_alarms(self) -> set[str]:
        return {a.kind for a in self.service.alarms(up=True) if a.mirror_id is None}


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Stepped]:
    library = preload.build(SHIM.read_text(), tmp_path / "steppedclock.so")
    offset = tmp_path / "offset"
    offset.write_bytes(struct.pack("=q", 0))
    with open_lab("lab_block", tmp_path) as lab:
        made = Stepped(lab, tmp_path / "home")
        made.offset = offset
        made.daemon.stop()
        made.daemon = ServiceProcess(
            made.home,
            environment={"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(offset)},
        ).start()
        yield made
        made.clean_up()


def test_a_clock_that_goes_back_stops_no_schedule_and_hides_no_lag(stepped: Stepped) -> None:
    stepped.initialized(schedule="every 1s")
    until(stepped.in_step)
    stepped.step(-7200)
    until(lambda: stepped.host_alarms() == {"clock"})
    for seed in range(3):
        stepped.lab.change(stepped.lab.source(), seed)
        until(stepped.in_step)
    assert 0 <= stepped.row()["lag_s"] < 120
    stepped.service.quiesce(NAME)
    time.sleep(3)
    assert stepped.row()["lag_s"] > 2  # it grows with real time, whatever the clock says
    # Back where it was: the alarm is over by itself.
    stepped.step(0)
    until(lambda: stepped.host_alarms() == set())
    stepped.service.resume(NAME)
    stepped.lab.change(stepped.lab.source(), 9)
    until(stepped.in_step)


def test_a_lag_is_right_once_a_clock_that_was_ahead_at_the_start_is_accepted(
    stepped: Stepped,
) -> None:
    stepped.initialized()
    time.sleep(3)  # it notes what the clock shows
    stepped.daemon.stop()
    stepped.step(86400)
    stepped.daemon.start()
    until(lambda: (stepped.row()["lag_s"] or 0) > 86000)
    stepped.step(0)
    until(lambda: stepped.host_alarms() == {"clock"})
    assert stepped.row()["lag_s"] > 86000  # nobody has said yet which of the times is right
    assert stepped.cli("alarms", "--accept-clock").returncode == 0
    until(lambda: 3 < stepped.row()["lag_s"] < 600)
    # It is no shorter where the time of the last update was recorded while the clock was ahead.
    stepped.step(86400)
    stepped.lab.change(stepped.lab.source(), 1)
    stepped.service.update(NAME)
    time.sleep(3)
    stepped.daemon.stop()
    stepped.daemon.start()
    began_s = time.monotonic()
    stepped.step(0)
    until(lambda: stepped.host_alarms() == {"clock"})
    assert stepped.cli("alarms", "--accept-clock").returncode == 0
    time.sleep(2)
    assert time.monotonic() - began_s < stepped.row()["lag_s"] < 600


def test_a_glitch_does_not_accept_an_older_doubt(stepped: Stepped) -> None:
    time.sleep(2)  # it notes what the clock shows
    stepped.daemon.stop()
    stepped.step(-7200)
    stepped.daemon.start()
    until(lambda: stepped.host_alarms() == {"clock"})
    for number, seconds in enumerate((-3600, -7200), start=1):
        stepped.step(seconds)
        until(lambda number=number: stepped.daemon.text().count("jumped: it moved") >= number)
    for _ in range(2):
        time.sleep(2.5)
        [alarm] = stepped.service.alarms(up=True)
        assert alarm.kind == "clock" and "while the daemon was not running" in alarm.text
        stepped.daemon.stop()
        stepped.daemon.start()
    assert stepped.cli("alarms", "--accept-clock").returncode == 0
    until(lambda: stepped.host_alarms() == set())


def test_a_clock_that_leaps_ahead_prunes_nothing_by_calendar_and_runs_once(
    stepped: Stepped,
) -> None:
    stepped.initialized(schedule="every 1s", keep_source="newest 2, 3 hourly")
    for seed in range(3):
        stepped.lab.change(stepped.lab.source(), seed)
        until(stepped.in_step)
    before, stepped_s = stepped.daemon.text().count("update (schedule) done"), time.monotonic()
    stepped.step(400 * 86400)
    until(lambda: stepped.host_alarms() == {"clock"})
    stepped.lab.change(stepped.lab.source(), 7)
    until(stepped.in_step)
    # Those whose time has come by the clock on the wall, and one at the leap.
    most = 2 + time.monotonic() - stepped_s
    assert stepped.daemon.text().count("update (schedule) done") - before <= most
    assert stepped.row()["lag_s"] < 120
    assert "ALARM clock" in stepped.daemon.text()
    assert stepped.cli("alarms", "--accept-clock").returncode == 0
    until(lambda: stepped.host_alarms() == set())
    stepped.lab.change(stepped.lab.source(), 8)
    until(stepped.in_step)


def test_a_small_step_is_no_alarm_but_timers_follow_it(stepped: Stepped) -> None:
    stepped.initialized(schedule="every 2s")
    stepped.step(-50)
    time.sleep(1.5)
    stepped.lab.change(stepped.lab.source(), 1)
    until(stepped.in_step, 35)  # not only when the clock shows again what it showed
    assert stepped.host_alarms() == set()


def test_a_transfer_that_runs_while_the_clock_is_stepped_keeps_its_rate(stepped: Stepped) -> None:
    stepped.initialized(throttle="200KiB/s")
    stepped.lab.change(stepped.lab.source(), 1)
    process = subprocess.Popen(stepped.command("update", NAME), env=stepped.environment())
    until(lambda: stepped.row()["activity"] == "transferring")
    stepped.step(-3600)
    time.sleep(0.5)
    stepped.step(3600)
    assert process.wait(timeout=120) == 0
    transfer = stepped.service.history(NAME, limit=1).transfers[0]
    assert 5000 < transfer.duration_ms < 90_000
    assert stepped.in_step()


def test_verbs_that_switch_volumes_go_by_no_clock(stepped: Stepped) -> None:
    """What is newest is so by the volumes' own order, and what is kept has a name of its own."""
    stepped.initialized(keep_source=5, keep_destination=5)
    lab, service = stepped.lab, stepped.service
    source, destination = lab.source(), lab.destination()

    def kept(driver: Driver) -> list[str]:
        found = [one for one in driver.snapshots() if one.kind is SnapshotKind.DIVERGED]
        return [lab.snapshot_content(driver, one.guid) for one in found]

    for seed, seconds in enumerate((-7200, 400 * 86400, -400 * 86400, 0)):
        stepped.step(seconds)
        lab.change(source, seed)
        service.update(NAME)
        shown = lab.content(destination)
        lab.change(source, 100 + seed)
        losing = lab.content(source)
        service.restore_all(NAME, snapshot=None, yes=True)
        assert lab.content(source) == shown and losing in kept(source), seconds
        service.break_off(NAME)
        lab.change(destination, 200 + seed)
        lab.change(source, 300 + seed)
        winning, losing = lab.content(source), lab.content(destination)
        service.resync(NAME, yes=True)
        assert lab.content(source) == winning == lab.content(destination), seconds
        assert losing in kept(destination), seconds
        for driver in (source, destination):
            lab.change(driver, 400 + seed)
            winning = lab.content(driver)
            service.reverse(NAME, yes=True)
            assert lab.content(source) == winning == lab.content(destination), seconds
    assert len(kept(source)) == len(kept(destination)) == 4
