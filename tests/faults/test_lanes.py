"""Transfers over several connections of which one fails: the transfer is resumed over new ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from mirrord.link import lane
from tests.faults.test_cuts import data_proxy
from tests.faults.test_stalls import Updating
from tests.support.proxy import Proxy
from tests.support.remote import MIB, SLOW_BYTES_S, Remote, content
from tests.support.service import until

__all__ = ["data_proxy"]

Fault = Callable[[Remote, list[Proxy]], None]


def stop_agent(site: Remote, _lanes: list[Proxy]) -> None:
    for pid in site.agents():
        os.kill(pid, signal.SIGSTOP)


FAULTS: dict[str, Fault] = {
    "a data connection stalls": lambda site, lanes: lanes[1].stall(),
    "the SSH connection stalls": lambda site, lanes: site.proxy.stall(),
    "the agent is killed": lambda site, lanes: site.kill_agents(),
    "the agent is stopped": stop_agent,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_transfer_over_three_connections(
    site: Remote, data_proxy: list[Proxy], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.set_host(data="auto", sockets=3)
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    assert len(data_proxy) == 3
    lanes = list(data_proxy)
    for one in lanes:
        one.slow_at(5 * MIB, SLOW_BYTES_S / 3)
    updating = Updating(site)
    until(lambda: sum(one.passed["up"] for one in lanes) > 17 * MIB)
    with monkeypatch.context() as impatient:
        impatient.setattr(lane, "SILENCE_S", 4.0)
        FAULTS[fault](site, lanes)
        until(lambda: site.proxy.connections >= 2, what="a new connection")
    site.proxy.go_on()
    assert updating.ended() is None
    assert len(data_proxy) == 6
    assert content(copy) == content(source)
    assert sum(one.passed["up"] for one in data_proxy) < 48 * MIB + 24 * MIB
