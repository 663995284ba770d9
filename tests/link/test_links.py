"""One connection to each host, by the settings that it has now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Endpoint, RemoteHost
from mirrord.link.connect import Link
from mirrord.link.driver import RemoteDriver
from mirrord.link.links import Links
from mirrord.link.session import Session
from mirrord.system.waiting import Waiting, deadline
from tests.agent.test_listen import listening
from tests.support.service import until


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


class SlowLinks(Links):
    """Connections are made once that is allowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.allowed, self.begun = threading.Event(), threading.Event()
        self.made: list[Session] = []
        connect = Link.connect

        def slow(link: Link) -> Session:
            self.begun.set()
            assert self.allowed.wait(30)
            self.made.append(connect(link))
            return self.made[-1]

        monkeypatch.setattr(Link, "connect", slow)


def test_a_connection_for_which_nobody_waits_is_closed_when_the_settings_have_changed(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = SlowLinks(monkeypatch)
    with pytest.raises(MirrordError):
        links.to("box", host).session(deadline(0.1))
    links.to("box", host._replace(compress="off"))
    links.allowed.set()
    until(lambda: links.made and not links.made[0].alive)


def test_a_connection_for_which_a_caller_waits_is_used_with_the_former_settings(
    tmp_path: Path, host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = SlowLinks(monkeypatch)
    former = links.to("box", host)
    driver = RemoteDriver.of(Endpoint("block", str(tmp_path / "v"), "box"), former)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(driver.facts)
        assert links.begun.wait(30)
        links.to("box", host._replace(compress="off"))
        links.allowed.set()
        asked.result(30)
    assert links.made[0].alive
    driver.detach()
    assert not links.made[0].alive
