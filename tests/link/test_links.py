"""One connection to each host, by the settings that it has now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.model import Endpoint, RemoteHost
from mirrord.link.driver import RemoteDriver
from mirrord.link.links import Links
from mirrord.system.waiting import Waiting
from tests.agent.test_listen import listening


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    path = tmp_path / "agent.sock"
    with listening(tmp_path / "there", "--listen", str(path), "--allow", f"receive={tmp_path}"):
        yield RemoteHost("box", str(path), transport="unix")


def test_changed_settings_end_the_session_when_nobody_uses_it(
    tmp_path: Path, host: RemoteHost
) -> None:
    links = Links()
    changed = host._replace(compress="off")
    driver = RemoteDriver.of(Endpoint("block", str(tmp_path / "v"), "box"), links.to("box", host))
    driver.facts()
    driver.detach()
    idle = links.to("box", host).session(Waiting())
    assert idle.alive, "it is kept for the next command"
    driver.facts()
    links.to("me@box", host)
    links.to("me@box", changed)
    assert idle.alive, "another name of the host has these settings still"
    later = links.to("box", changed).session(Waiting())
    assert idle.alive, "a volume is open"
    driver.facts()
    driver.detach()
    assert not idle.alive and later.alive
    again = links.to("box", host).session(Waiting())
    assert later.alive, "by the other name"
    links.to("me@box", host)
    assert not later.alive and again.alive
    links.close()
    assert not again.alive
