"""A slow link is not dead: who asks during a transfer is answered, and the transfer goes on."""

from __future__ import annotations

import threading
import time

import pytest

from tests.faults.test_stalls import Updating
from tests.support.remote import MIB, Remote, content
from tests.support.service import until

#: 1 Mbit/s.
SLOW_BYTES_S = 125_000


@pytest.mark.parametrize("way", ["up", "down"])
def test_status_during_a_slow_transfer_does_not_end_it(site: Remote, way: str) -> None:
    source, copy = site.volume(data_bytes=3 * MIB), site.folder / "copy"
    if way == "up":
        site.create(f"block:{source}", f"block://dr{copy}")
    else:
        site.create(f"block://dr{source}", f"block:{copy}")
    site.service.status()  # the connection is made, by the first look
    site.proxy.limit(SLOW_BYTES_S)
    updating = Updating(site)
    wanted = site.proxy.passed[way] + (256 << 10)
    until(lambda: site.proxy.passed[way] >= wanted)
    asked, late = 0, []
    while updating.is_alive():
        began_s = time.monotonic()
        problems = site.service.status()[0].problems
        took_s = time.monotonic() - began_s
        if updating.is_alive():
            asked += 1
            late += [(took_s, one) for one in problems if "answer" in one or "lost" in one]
        time.sleep(0.2)
    assert updating.ended() is None
    assert content(copy) == content(source)
    assert site.proxy.connections == 1, "the connection was given up"
    assert site.proxy.passed[way] < 4 * MIB, "the transfer began again"
    assert asked >= 2
    assert len(late) <= max(1, asked / 4), late


def test_a_look_during_a_stall_does_not_end_it_either(site: Remote) -> None:
    """The network is away for some seconds, less than a silence may last."""
    source, copy = site.volume(data_bytes=12 * MIB), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    updating = Updating(site)
    site.await_passed(2 * MIB)
    site.proxy.stall()
    looks = [threading.Thread(target=site.service.status)]
    looks[0].start()
    time.sleep(2.0)
    site.proxy.go_on()
    looks[0].join()
    assert updating.ended() is None
    assert content(copy) == content(source)
    assert site.proxy.connections == 1
