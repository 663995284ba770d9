"""What the sessions of one agent's process share."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mirrord.agent.run import Serving
from mirrord.core.model import Endpoint, RemoteHost
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.link.driver import RemoteDriver
from mirrord.link.links import Links
from mirrord.system.paths import Paths
from tests.agent.test_listen import listening
from tests.link.test_session import pair
from tests.support import btrfs
from tests.support.service import until


def test_a_former_session_of_a_client_does_not_take_the_place_of_its_new_one(
    tmp_path: Path,
) -> None:
    serving, name = Serving(Paths(tmp_path, tmp_path, tmp_path)), ("home", "token")
    with (
        pair(lambda _exchange, _method, _words: None) as (former, _one),
        pair(lambda _exchange, _method, _words: None) as (later, _other),
    ):
        leaving = serving.having(name, former)
        leaving.__enter__()
        with serving.having(name, later):
            leaving.__exit__(None, None, None)
            assert later.alive
            serving.end(name)
            assert not later.alive and former.alive


def test_a_volume_that_cannot_be_thawed_leaves_the_others_thawed(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with (
        btrfs.filesystem() as one,
        btrfs.filesystem() as two,
        listening(tmp_path / "there", "--listen", str(path)),
    ):
        places = [btrfs.make_subvolume(place) for place in (one / "a", two / "b", one / "c")]
        links = Links()
        link = links.to("box", RemoteHost("box", str(path), transport="unix"))
        for place in places:
            RemoteDriver.of(Endpoint("btrfs", str(place), "box"), link).freeze()
        left = [BtrfsDriver(str(place)) for place in (places[0], places[2])]
        assert all(driver.facts().frozen for driver in left)
        subprocess.run(["mount", "-o", "remount,ro", two], check=True)
        links.close()
        until(lambda: not any(driver.facts().frozen for driver in left), 20)
        for driver in left:
            with driver.lock("anybody"):
                pass
