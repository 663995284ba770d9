"""Rates: exact, shared, by the time of day, changed while a transfer runs.

These watch real transfers; how exact they are over five seconds is measured in benchmarks/.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import ConfigError, MirrordError, UsageError
from mirrord.drivers.block.volume import Volume
from mirrord.engine.throttle import Backoff, Bucket, Throttle
from mirrord.system import clock
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.world import NAME
from tests.unit.ticking import Hand


@pytest.fixture
def fake() -> Hand:
    made = Hand()
    clock.use(made)
    return made


def move(throttle: Throttle, size: int) -> None:
    while size > 0:
        piece = min(size, throttle.piece_bytes())
        throttle.moved(piece)
        size -= piece


@pytest.mark.parametrize("rate", [1500.0, 5 << 20, 300 << 20])
def test_a_rate_is_exact_over_five_seconds(fake: Hand, rate: float) -> None:
    throttle = Throttle([Bucket("mirror", lambda: rate)])
    started = fake.passed_s
    move(throttle, round(5 * rate))
    assert fake.passed_s - started == pytest.approx(5, rel=0.03)


def test_the_tightest_of_several_holds_and_is_what_was_waited_for(fake: Hand) -> None:
    buckets = [
        Bucket("host", lambda: 8e6),
        Bucket("link wan", lambda: 1e6),
        Bucket("mirror", lambda: 4e6),
    ]
    throttle = Throttle(buckets)
    started = fake.passed_s
    move(throttle, 5_000_000)
    assert fake.passed_s - started == pytest.approx(5, rel=0.03)
    assert max(throttle.waited_s, key=throttle.waited_s.__getitem__) == "link wan"


def test_a_pause_is_not_made_up_for(fake: Hand) -> None:
    throttle = Throttle([Bucket("mirror", lambda: 1e6)])
    move(throttle, 1_000_000)
    fake.passed_s += 60
    started = fake.passed_s
    move(throttle, 5_000_000)
    assert fake.passed_s - started > 4.8


def test_a_rate_that_changes_holds_within_a_second_also_for_who_waits(fake: Hand) -> None:
    rate = [1000.0]
    throttle = Throttle([Bucket("mirror", lambda: rate[0])])
    checks = 0

    def change() -> None:
        nonlocal checks
        checks += 1
        rate[0] = 1e9

    throttle.check = change
    started = fake.passed_s
    throttle.moved(100_000)  # 100 seconds at the first rate
    assert checks and fake.passed_s - started < 1


def test_a_wait_ends_when_the_transfer_is_to_end(fake: Hand) -> None:
    def ended() -> None:
        raise MirrordError("aborted")

    throttle = Throttle([Bucket("mirror", lambda: 1000.0)], check=ended)
    with pytest.raises(MirrordError):
        throttle.moved(100_000)
    assert fake.passed_s < 1


def test_busy_disks_slow_a_transfer_down_and_it_recovers(fake: Hand) -> None:
    pressure = [0.0]
    backoff = Backoff(40, lambda: pressure[0])

    def rate_after(seconds: int) -> float | None:
        for _ in range(seconds * 10):
            backoff.moved(min(1e7, (backoff.rate() or 1e8) / 10).__int__())
            fake.passed_s += 0.1
        return backoff.rate()

    assert rate_after(5) is None
    pressure[0] = 80.0
    slow = rate_after(30)
    assert slow is not None and slow <= 2 << 20
    pressure[0] = 5.0
    recovered = rate_after(60)
    assert recovered is None or recovered > 10 * slow


def test_no_pressure_information_means_no_step_back(fake: Hand) -> None:
    backoff = Backoff(40, lambda: None)
    for _ in range(50):
        backoff.moved(1 << 20)
        fake.passed_s += 0.1
    assert backoff.rate() is None


# Real transfers


def moved_bytes(served: Served, name: str = NAME) -> int:
    running = served.row(name)["running"]
    return int(running["done_bytes"]) if running and "done_bytes" in running else 0


def holds(read: Callable[[], int], seconds: float, rate: float) -> None:
    """What moves in that time moves at that rate: hardly faster, and not at half of it.

    (What a machine does not get round to in time is not made up for, so it may be slower.)
    """
    before_s = time.monotonic()
    first = read()
    after_s = time.monotonic()
    time.sleep(seconds)
    again_s = time.monotonic()
    moved = read() - first
    end_s = time.monotonic()
    # Reading takes its time, and it may be as of the beginning of that or of its end.
    assert moved / (end_s - before_s) < 1.15 * rate
    assert moved / (again_s - after_s) > 0.5 * rate


def transferring(served: Served, rate: str, size: int = 12 << 20) -> threading.Thread:
    served.initialized(throttle=rate)
    with Volume.open(served.lab.source().location, writable=True) as volume:
        volume.write(0, os.urandom(size))

    def update() -> None:
        try:
            served.daemon.client().update(NAME)
        except MirrordError:
            return

    thread = threading.Thread(target=update)
    thread.start()
    until(lambda: moved_bytes(served) > 0)
    return thread


def test_a_running_transfer_takes_a_new_rate_within_a_second(served: Served) -> None:
    thread = transferring(served, "200KiB/s")
    holds(lambda: moved_bytes(served), 2, 200 << 10)
    assert served.cli("throttle", NAME, "1MiB/s").returncode == 0
    time.sleep(1)
    holds(lambda: moved_bytes(served), 2, 1 << 20)
    served.service.throttle(NAME, "unlimited")
    thread.join(timeout=90)
    assert not thread.is_alive() and served.in_step()
    history = served.service.history(NAME, limit=1).transfers[0]
    assert history.throttled_ms > 3000


def test_an_edited_definition_takes_hold_of_a_running_transfer_too(served: Served) -> None:
    thread = transferring(served, "40KiB/s")  # it would take five minutes
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text().replace('"40KiB/s"', '"20MiB/s"'))
    thread.join(timeout=90)
    assert not thread.is_alive()


def test_what_all_transfers_share_is_shared(served: Served, tmp_path: Path) -> None:
    served.settings('[throttle]\nhost = "400KiB/s"\n')
    names = ["one", "two"]
    for name in names:
        with Volume.create(tmp_path / name, 16 << 20) as volume:
            volume.write(0, os.urandom(4 << 20))
        served.service.create(name, f"block:{tmp_path / name}", f"block:{tmp_path}/copy-{name}")
    threads = [
        threading.Thread(target=lambda name=name: served.daemon.client().initialize(name))
        for name in names
    ]
    for thread in threads:
        thread.start()
    until(lambda: all(moved_bytes(served, name) for name in names))
    holds(lambda: sum(moved_bytes(served, name) for name in names), 2.5, 400 << 10)
    served.settings('[throttle]\nhost = "unlimited"\n')
    for thread in threads:
        thread.join(timeout=90)
    assert all(row.state == "mirrored" for row in served.service.status())


def test_a_link_is_shared_by_the_mirrors_that_name_it(served: Served, tmp_path: Path) -> None:
    served.settings('[limits]\nper_filesystem = 4\n[links]\nwan = "200KiB/s"\n')
    names = ["one", "two", "aside"]
    for name in names:
        with Volume.create(tmp_path / name, 16 << 20) as volume:
            volume.write(0, os.urandom(3 << 20))
        served.service.create(name, f"block:{tmp_path / name}", f"block:{tmp_path}/copy-{name}")
    for name in names[:2]:
        served.define("link = 'wan'", name=name)
    threads = [
        threading.Thread(target=lambda name=name: served.daemon.client().initialize(name))
        for name in names
    ]
    for thread in threads:
        thread.start()
    until(lambda: all(moved_bytes(served, name) for name in names[:2]))
    holds(lambda: sum(moved_bytes(served, name) for name in names[:2]), 2.5, 200 << 10)
    until(lambda: served.row("aside")["state"] == "mirrored")
    assert all(thread.is_alive() for thread in threads[:2])
    served.settings('[limits]\nper_filesystem = 4\n[links]\nwan = "unlimited"\n')
    for thread in threads:
        thread.join(timeout=90)
    assert all(row.state == "mirrored" for row in served.service.status())


def test_a_link_that_has_no_rate_is_refused(served: Served) -> None:
    served.initialized()
    served.settings('[links]\nwan = "1MiB/s"\n')
    with pytest.raises(ConfigError) as caught:
        served.define("link = 'wam'")
    assert "no link is called 'wam'" in str(caught.value) and "'wan'" in caught.value.hint


def test_a_mirror_whose_rpo_is_at_risk_borrows_bandwidth(served: Served) -> None:
    served.initialized(throttle="200KiB/s")
    served.define("rpo = '6s'", "borrow = 3")
    with Volume.open(served.lab.source().location, writable=True) as volume:
        volume.write(0, os.urandom(6 << 20))
    thread = threading.Thread(target=lambda: served.daemon.client().update(NAME))
    thread.start()
    until(lambda: moved_bytes(served) > 0)
    foretold = re.compile("at this rate the RPO will be exceeded in|the RPO has been exceeded")
    until(lambda: foretold.search(served.row()["forecast"]))
    time.sleep(1)
    holds(lambda: moved_bytes(served), 2, 600 << 10)
    served.service.throttle(NAME, "unlimited")
    thread.join()


@pytest.mark.parametrize(
    ("rate", "says"),
    [("0", "quiesce"), ("fast", "fast"), ("10MiB/s 25:00-26:00", "25:00"), ("-5MiB/s", "-5")],
)
def test_a_wrong_rate_changes_nothing(served: Served, rate: str, says: str) -> None:
    served.initialized(throttle="1MiB/s")
    before = (served.paths.mirrors / f"{NAME}.toml").read_text()
    with pytest.raises(UsageError) as caught:
        served.service.throttle(NAME, rate)
    assert says in f"{caught.value} {caught.value.hint}"
    assert (served.paths.mirrors / f"{NAME}.toml").read_text() == before


def test_other_lines_and_comments_of_a_definition_stay(served: Served) -> None:
    served.initialized(throttle="1MiB/s")
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text() + "# mine\n[site.primary.hooks]\ntimeout = '5s'\n")
    served.service.throttle(NAME, "2MiB/s 08:00-18:00, else 9MiB/s")
    text = file.read_text()
    assert "# mine" in text and text.count("throttle =") == 1 and "[site.primary.hooks]" in text
    served.service.throttle(NAME, "unlimited")
    assert "throttle =" not in file.read_text() and "# mine" in file.read_text()
