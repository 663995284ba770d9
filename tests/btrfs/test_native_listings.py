"""Listings of what is left behind, beside receives that begin, run, end or are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrord.drivers.btrfs import alone
from mirrord.drivers.btrfs.driver import BtrfsDriver
from tests.btrfs.pair import Pair
from tests.btrfs.test_native_receive import KILLED, grown, interrupted, kept, wanted


@pytest.fixture(autouse=True)
def native(pair: Pair) -> None:
    pair.receiver = "native"


#: A driver is killed while one of its children is between fork and exec, and so holds its locks.
_KILLED_AND_FORKED = KILLED.replace(
    "os.kill(os.getpid(), 9)",
    """
if os.fork() == 0:
    os.close(receiver._writing)
    os.close(receiver._receive_lock)
    os.closerange(0, 3)
    import time
    time.sleep(60)
    os._exit(0)
os.kill(receiver._child.pid, 19)
print(receiver._child.pid, flush=True)
os.kill(os.getpid(), 9)
""",
)


def test_a_child_of_a_killed_driver_does_not_hide_its_last_checkpoint(
    pair: Pair, tmp_path: Path
) -> None:
    base, snapshot, whole = grown(pair)
    (tmp_path / "stream").write_bytes(whole[:5_000_001])
    words = [str(pair.backup), base.guid, snapshot.guid, "next", str(tmp_path / "stream")]
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED_AND_FORKED, *words],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            program = int(driver.stdout.readline())
            assert driver.wait() == -signal.SIGKILL
            threading.Timer(1.0, os.kill, (program, signal.SIGCONT)).start()
            assert kept(pair) >= 5_000_001 - (144 << 10)
            assert pair.destination.stagings()[0].checkpoint
        finally:
            os.killpg(driver.pid, signal.SIGKILL)


def test_listings_beside_receives_that_begin_and_end(pair: Pair) -> None:
    """Neither meets an error because of the other, nor does a listing wait for a receive."""
    base, snapshot, whole = grown(pair, 3)
    interrupted(pair, base, snapshot, whole[:2_000_000])
    over = threading.Event()
    times_s = [0.0]

    def listing() -> None:
        driver = BtrfsDriver(str(pair.backup))
        while not over.is_set():
            began_s = time.monotonic()
            assert len(driver.stagings()) == 1
            times_s.append(time.monotonic() - began_s)

    with ThreadPoolExecutor(2) as pool:
        listings = [pool.submit(listing) for _ in range(2)]
        try:
            for _ in range(40):
                pair.destination.receive(wanted(base, snapshot)).close()
        finally:
            over.set()
        for one in listings:
            one.result(60)
    assert max(times_s) < alone._WAIT_S / 2


def test_a_running_receive_does_not_delay_a_listing(pair: Pair) -> None:
    base, snapshot, whole = grown(pair)
    with pair.destination.receive(wanted(base, snapshot)) as receiver:
        receiver.write(whole[:5_000_000])
        began_s = time.monotonic()
        pair.destination.stagings()
        assert time.monotonic() - began_s < alone._WAIT_S / 2
