"""Schedules at work in a real daemon: intervals, lag targets, downtime, limits, retries."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path

from mirrord.drivers.block.volume import Volume
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.world import NAME


def runs(served: Served) -> float:
    """How many scheduled runs ended well, by the daemon's own metrics."""
    import http.client
    import socket

    connection = http.client.HTTPConnection("x")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(served.paths.read_socket))
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("mirrord_runs_total{")
        and 'cause="asked"' not in line
        and ('result="done"' in line or 'result="unchanged"' in line)
    )


def usual_s(served: Served) -> float:
    """What an update takes here and now: what is promised of times is to be had in such units."""
    served.initialized()
    took_s = []
    for seed in range(3):
        served.lab.change(served.lab.source(), seed)
        began_s = time.monotonic()
        served.service.update(NAME)
        took_s.append(time.monotonic() - began_s)
    return max(took_s)


def test_an_interval_is_held(served: Served) -> None:
    every_s = max(1, math.ceil(4 * usual_s(served)))
    served.define(f"schedule = 'every {every_s}s'")
    until(lambda: runs(served) >= 1)
    before, started = runs(served), time.monotonic()
    for seed in range(4):
        served.lab.change(served.lab.source(), seed)
        time.sleep(every_s)
    passed, count = time.monotonic() - started, runs(served) - before
    assert abs(count - passed / every_s) <= 1.5
    until(served.in_step)


def test_a_lag_target_runs_by_itself_and_keeps_the_lag_below_it(served: Served) -> None:
    usually_s = usual_s(served)
    target_s = max(4, math.ceil(10 * usually_s))
    served.define(f"schedule = 'lag {target_s}s'")
    worst = 0.0
    started = time.monotonic()
    while time.monotonic() - started < 2.5 * target_s:
        served.lab.change(served.lab.source(), int(time.monotonic() * 1000))
        worst = max(worst, float(str(served.row()["lag_s"])))
        time.sleep(0.2)
    assert 0.5 < worst <= target_s + max(0.2, usually_s / 2)
    found = served.service.schedule_next(NAME, count=3)
    assert len(found.times) == 3 and all(each.why for each in found.times)


def test_the_next_run_for_a_lag_target_is_the_one_that_the_daemon_has_planned(
    served: Served,
) -> None:
    served.initialized()
    served.define("schedule = 'lag 1h'")
    until(lambda: served.row()["next_ns"] is not None)
    planned_ns = served.row()["next_ns"]
    time.sleep(0.3)
    [first, second] = served.service.schedule_next(NAME, count=2).times
    assert first.at_ns == planned_ns
    assert second.at_ns > first.at_ns and second.why != first.why


def test_a_time_missed_while_nothing_ran_is_made_up_for_once(served: Served) -> None:
    served.initialized(schedule="every 2s")
    served.daemon.stop()
    served.lab.change(served.lab.source(), 1)
    time.sleep(5)
    served.daemon.start()
    until(lambda: "update (missed) done" in served.daemon.text())
    until(served.in_step)
    assert served.daemon.text().count("(missed)") == 1


def test_a_quiesced_mirror_waits_and_goes_on(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.service.quiesce(NAME)
    served.lab.change(served.lab.source(), 1)
    time.sleep(2.5)
    assert not served.in_step() and served.row()["activity"] == "quiesced"
    served.service.resume(NAME)
    until(served.in_step)


def test_a_broken_off_mirror_is_left_alone(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.service.break_off(NAME)
    served.lab.change(served.lab.destination(), 5)
    content = served.view_content()
    time.sleep(2.5)
    assert served.view_content() == content
    assert served.alarms() == {}


def _more(served: Served, count: int, tmp_path: Path) -> list[str]:
    """Further mirrors of copies of the source, all into one file system."""
    names = []
    for number in range(count):
        source = tmp_path / f"source{number}"
        with Volume.create(source, 4 << 20) as volume:
            volume.write(0, bytes([number]) * 300_000)
        name = f"m{number}"
        served.service.create(name, f"block:{source}", f"block:{tmp_path}/copy{number}")
        served.service.throttle(name, "150KiB/s")
        names.append(name)
    return names


def test_no_more_run_at_once_than_one_file_system_may_take(served: Served, tmp_path: Path) -> None:
    served.settings("[limits]\ntransfers = 8\nper_filesystem = 2\n")
    names = _more(served, 5, tmp_path)
    threads = [
        threading.Thread(target=lambda name=name: served.daemon.client().initialize(name))
        for name in names
    ]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        rows = served.service.status()
        running = [row for row in rows if row.activity.value == "transferring"]
        most = max(most, len(running))
        time.sleep(0.05)
    assert most == 2
    assert all(row.state == "mirrored" for row in served.service.status())


def test_times_that_pass_during_a_transfer_make_one_run_not_a_pile(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.service.throttle(NAME, "80KiB/s")
    served.lab.change(served.lab.source(), 9)  # about twenty seconds
    until(lambda: served.row()["activity"] == "transferring")
    until(lambda: bool(served.row()["waiting"]))
    before = runs(served)
    time.sleep(6)
    assert not served.in_step()
    ended_s = time.monotonic()  # or later
    served.service.throttle(NAME, "unlimited")
    until(served.in_step)
    time.sleep(0.7)
    count = runs(served) - before
    # It, the one that waited, and those whose time has come since then.
    assert count <= 2 + time.monotonic() - ended_s + 1


def test_scheduled_failures_are_retried_with_pauses(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.lab.change(served.lab.source(), 1)
    with Volume.open(served.lab.source().location, writable=True):
        until(lambda: len(served.service.history(NAME, limit=9).attempts) >= 1)
        until(lambda: served.alarms().get("failure") == "warning")
    attempt = served.service.history(NAME, limit=9).attempts[-1]
    assert attempt.code == "busy" and attempt.number == 1 and attempt.error
    until(served.in_step)
    until(lambda: "failure" not in served.alarms())


def test_what_may_not_be_retried_waits_for_the_next_time(served: Served, tmp_path: Path) -> None:
    served.initialized(schedule="every 2s")
    source = Path(served.lab.source().location)
    shutil.move(source, tmp_path / "away")
    until(lambda: served.alarms().get("failure") == "error")
    shutil.move(tmp_path / "away", source)
    served.lab.change(served.lab.source(), 1)
    until(served.in_step)
    until(lambda: "failure" not in served.alarms())
