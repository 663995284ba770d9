"""A mirror to an agent that listens with TLS: the connection, the agent or its host fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.admin.pki import Authority
from mirrord.config.hosts import render
from mirrord.config.peers import Peers
from mirrord.core.errors import Untrusted
from mirrord.core.model import RemoteHost
from mirrord.drivers.block.volume import Volume
from mirrord.link import lane
from mirrord.system.paths import Paths
from tests.faults.test_stalls import Updating
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.remote import MIB, SLOW_BYTES_S, content
from tests.support.service import PATIENCE_S, until
from tests.support.verbs import Service


class Site:
    """Host "dr", whose agent listens on a port and is reached through `proxy`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._there, self._port = folder, folder / "there", free_port()
        authority, peers = Authority(self._there / "etc/pki"), Peers(self._there / "etc/peers.d")
        authority.init()
        authority.issue("here", [f"receive={folder}/backup"], folder / "bundle", peers)
        (folder / "backup").mkdir()
        self.agent = self.start_agent()
        self.proxy = Proxy(("127.0.0.1", self._port))
        home = folder / "here"
        self.paths = Paths(home / "etc", home / "state", home / "run")
        host = RemoteHost(
            "dr", "127.0.0.1", self.proxy.port, transport="tls", key=str(folder / "bundle")
        )
        self.paths.hosts.mkdir(parents=True)
        (self.paths.hosts / "dr.toml").write_text(render(host))
        self.service = Service(self.paths)

    def start_agent(self) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-m", "mirrord", "agent", "--listen", f"127.0.0.1:{self._port}"],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "MIRRORD_HOME": str(self._there)},
        )  # fmt: skip
        assert made.stdout is not None
        assert made.stdout.readline().startswith("listening")
        made.stdout.close()
        return made

    def restart_agent(self) -> None:
        self.agent.kill()
        self.agent.wait()
        self.agent = self.start_agent()

    def close(self) -> None:
        self.service.close()
        self.service.shared.links.close()
        self.proxy.close()
        self.agent.send_signal(signal.SIGCONT)
        self.agent.terminate()
        self.agent.wait(PATIENCE_S)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def stop_for_a_while(site: Site) -> None:
    site.agent.send_signal(signal.SIGSTOP)
    until(lambda: site.proxy.connections >= 2)
    site.agent.send_signal(signal.SIGCONT)


FAULTS: dict[str, Callable[[Site], None]] = {
    "the connection is cut": lambda site: site.proxy.cut(),
    "the connection stalls": lambda site: site.proxy.stall(),
    "the agent is killed": Site.restart_agent,
    "the agent is stopped": stop_for_a_while,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_transfer_is_resumed(site: Site, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copy = site.folder / "v", site.folder / "backup/v"
    with Volume.create(source, 64 * MIB) as volume:
        for at in range(0, 48 * MIB, MIB):
            volume.write(at, os.urandom(MIB))
    site.service.create("home", f"block:{source}", f"block://dr{copy}")
    site.proxy.slow_at(20 * MIB, SLOW_BYTES_S)
    updating = Updating(site)
    until(lambda: site.proxy.passed["up"] > 20 * MIB)
    with monkeypatch.context() as impatient:
        impatient.setattr(lane, "SILENCE_S", 4.0)
        FAULTS[fault](site)
        until(lambda: site.proxy.connections >= 2, what="a new connection")
    site.proxy.go_on()
    assert updating.ended() is None
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < 48 * MIB + 24 * MIB


def test_access_that_is_withdrawn_in_a_transfer(site: Site) -> None:
    source, copy = site.folder / "v", site.folder / "backup/v"
    with Volume.create(source, 64 * MIB) as volume:
        for at in range(0, 48 * MIB, MIB):
            volume.write(at, os.urandom(MIB))
    site.service.create("home", f"block:{source}", f"block://dr{copy}")
    site.proxy.slow_at(20 * MIB, SLOW_BYTES_S)
    updating = Updating(site)
    until(lambda: site.proxy.passed["up"] > 20 * MIB)
    (site.folder / "there/etc/peers.d/here.toml").unlink()
    assert isinstance(updating.ended(), Untrusted)
