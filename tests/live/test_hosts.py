"""Live mirrors between two hosts: the other end through an agent, by a real sshd."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.config.hosts import render
from mirrord.core.errors import Unreachable, Untrusted
from mirrord.core.live import LiveSetup
from mirrord.core.model import Endpoint
from mirrord.drivers.image.driver import ImageDriver
from mirrord.link.driver import RemoteDriver
from tests.live.command import Home, Image, Mirror, qemu_io
from tests.live.lab import ROOT, Writer, wait_until
from tests.live.test_commands import Served
from tests.support.agents import agents
from tests.support.service import takes_clients
from tests.support.sshd import Sshd


class Remote(Mirror):
    """The destination is on the host `dr`, whose agent has these rights."""

    def __init__(self, folder: Path, *allow: str) -> None:
        super().__init__(folder, host="dr")
        self.there = Home(folder / "there")
        self.sshd = Sshd(folder / "sshd").start()
        words = ["env", f"MIRRORD_HOME={self.there.folder}", f"PYTHONPATH={ROOT}"]
        words += [sys.executable, "-m", "mirrord", "agent", *allow]
        host = self.sshd.host(name="dr", port=self.sshd.port, command=tuple(words), data="ssh")
        hosts = self.home.folder / "etc/hosts.d"
        hosts.mkdir(parents=True)
        (hosts / "dr.toml").write_text(render(host))

    def close(self) -> None:
        super().close()
        self.sshd.stop()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    made = Remote(tmp_path, "--allow", f"receive={tmp_path}/b")
    try:
        yield made
    finally:
        made.close()


def test_a_mirror_to_another_host(remote: Remote) -> None:
    home = remote.home
    home.start_daemon()
    remote.initialize()
    # The agent has ended with its session, the process has not.
    assert remote.destination.pid is not None
    for end in (remote.source, remote.destination):
        assert "tls-peer peer.pem" in (end.store / "config").read_text()
        assert (end.store / "key.pem").stat().st_mode & 0o777 == 0o600
    home.run("serve", "db")
    writer = Writer(Served(remote), blocks=500)
    writer.start()
    wait_until(lambda: writer.answered > 200, "writes")
    # The other host cannot be managed, but the mirror goes on.
    port, remote.sshd.port = remote.sshd.port, 0
    remote.sshd.stop()
    before = writer.answered
    wait_until(lambda: writer.answered > before + 200, "writes without management")
    found = home.status()
    assert found["live"]["destination"] is None
    assert any("cannot be reached" in each for each in found["problems"])
    remote.sshd.port = port
    remote.sshd.start()
    wait_until(lambda: home.status()["live"]["destination"] is not None, "the other host", 60)
    remote.destination.kill()
    wait_until(lambda: remote.destination.pid is not None, "the process again", 60)
    wait_until(home.is_in_sync, "sync", 60)
    writer.finish()
    assert not writer.errors
    remote.assert_equal()
    writer.check(remote.destination.path.read_bytes())


def test_clients_are_disconnected_while_the_other_host_cannot_be_reached(remote: Remote) -> None:
    remote.initialize()
    remote.home.run("serve", "db")
    remote.sshd.stop()
    assert "dr: " in remote.home.refused("unserve", "db")
    assert not takes_clients(remote.home.folder / "run/db.nbd")


def test_failover_with_an_older_catalogue_that_does_not_know_of_a_reverse(remote: Remote) -> None:
    """The host of the primary is lost: the source, as the catalogue has it, takes over."""
    home = remote.home
    remote.initialize()
    shutil.copytree(home.folder / "state", home.folder / "older")
    home.run("reverse", "db", "--yes")
    home.run("serve", "db", "--socket", str(remote.destination.path.parent / "s"))
    qemu_io(f"nbd+unix:///?socket={remote.destination.path.parent}/s", "write -P 1 0 64k")
    shutil.rmtree(home.folder / "state")
    (home.folder / "older").rename(home.folder / "state")
    remote.destination.kill()
    remote.sshd.stop()
    said = home.refused("break", "db")
    assert f"the roles were changed: {remote.ends[0]} is the secondary" in said
    assert f"'db' is broken off: {remote.ends[0]} is a primary" in home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 64k")


@pytest.mark.parametrize("role", ["fenced", "primary"])
def test_a_source_is_free_without_the_other_host(remote: Remote, role: str) -> None:
    """Also one that does not know of the break."""
    remote.initialize()
    if role == "primary":
        remote.source.kill()
    assert ("is fenced" in remote.home.run("break", "db")) == (role == "fenced")
    remote.destination.kill()
    remote.sshd.stop()
    said = remote.home.run("serve", "db", status=1)
    assert f"{remote.ends[0]}: {role}" in said and f"{remote.ends[1]}: it does not answer" in said
    assert "Without the destination: 'mirrord delete db --yes' (both images are kept)" in said
    said = remote.home.run("delete", "db", "--yes")
    assert f"{remote.ends[1]} was not cleaned up" in said
    assert not remote.source.store.exists()
    remote.home.run("create", "next", remote.ends[0], f"image:{remote.home.folder}/next.img")


def test_a_process_that_hangs_at_the_other_host_is_asked_once(tmp_path: Path) -> None:
    image = tmp_path / "db.img"
    image.write_bytes(bytes(1 << 20))
    end = ImageDriver.at(str(image))
    end.live_create(LiveSetup("m1", "db", "primary", "0" * 31 + "1", True, 1 << 20))
    end.live_start("127.0.0.1", "")
    pid = Image(image).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with agents(tmp_path / "there") as made:
            driver = RemoteDriver.of(Endpoint("image", str(image), "dr"), made)
            began_s = time.monotonic()
            with pytest.raises(Unreachable, match="no answer"):
                driver.live_await_full(0.0)
            assert time.monotonic() - began_s < 12  # three times would be 17 s
            driver.detach()
            assert made._current is not None
            made._current.close()
    finally:
        os.kill(pid, signal.SIGCONT)
        end.live_remove()


def test_failover_to_another_host_and_back(remote: Remote) -> None:
    home = remote.home
    remote.initialize()
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 1M")
    remote.source.kill()
    assert "does not answer" in home.run("break", "db")
    said = home.run("serve", "db", "--socket", str(remote.destination.path.parent / "s"))
    assert "image://dr" in said
    uri = f"nbd+unix:///?socket={remote.destination.path.parent}/s"
    qemu_io(uri, "read -P 1 0 1M", "write -P 2 0 512k")
    # The former primary is started, and fenced by the other end, which it can reach.
    home.run("reverse", "db", "--yes")
    qemu_io(uri, "write -P 3 0 4k", "flush")
    assert remote.source.path.read_bytes() == remote.destination.path.read_bytes()
    home.run("reverse", "db", "--yes")
    assert home.status()["source"] == remote.ends[0]
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 3 0 4k", "read -P 2 4k 508k")
    home.run("delete", "db", "--yes")
    assert remote.destination.pid is None


def test_what_a_peer_may_not_do(tmp_path: Path) -> None:
    remote = Remote(tmp_path, "--allow", f"receive={tmp_path}/b", "--append-only")
    try:
        remote.initialize()
        assert "may only append" in remote.home.refused("break", "db")
        remote.home.refused("create", "x", remote.ends[0], f"image://dr{tmp_path}/c/x.img")
        remote.home.run("serve", "db")
        refusal = remote.home.refused("reverse", "db", "--yes")
        assert "the destination cannot become the source" in refusal
        assert "append-only access" in refusal
        qemu_io(remote.home.uri(), "write -P 1 0 4k", "flush")  # its clients are still served
    finally:
        remote.home.run("delete", "db", "--yes")
        assert remote.destination.pid is not None
        os.kill(remote.destination.pid, 9)
        remote.close()


def test_who_may_only_send_changes_nothing_of_a_replica(tmp_path: Path) -> None:
    """That is the standby of a mirror of somebody else."""
    image = tmp_path / "db.img"
    image.write_bytes(b"")
    os.truncate(image, 1 << 20)
    end, volume = ImageDriver.at(str(image)), "0" * 31 + "1"
    end.live_create(LiveSetup("m1", "db", "secondary", volume, False, 1 << 20))
    end.live_start("127.0.0.1", "")
    mine = LiveSetup("m1", "db", "primary", "0" * 31 + "2", True, 1 << 20, replaces=volume)
    try:
        with agents(tmp_path / "there", "--allow", f"send={tmp_path}") as made:
            driver = RemoteDriver.of(Endpoint("image", str(image), "dr"), made)
            for attempt in (
                lambda: driver.live_create(mine),
                lambda: driver.live_start("", "127.0.0.1:9"),
                driver.live_unserve,
                lambda: driver.live_window("1"),
                driver.live_remove,
            ):
                with pytest.raises(Untrusted, match="change a replica"):
                    attempt()
            assert driver.live_status().role == "secondary"
            driver.detach()
            assert made._current is not None
            made._current.close()
    finally:
        end.live_remove()


def test_a_reverse_needs_the_right_to_receive_at_the_source(tmp_path: Path) -> None:
    """That host permits to send only: nothing is changed, and clients stay connected."""
    remote = Remote(tmp_path, "--allow", f"send={tmp_path}/b")
    remote.ends.reverse()
    remote.source.path.rename(remote.destination.path)
    socket = f"{tmp_path}/b/s"
    try:
        remote.initialize()
        remote.home.run("serve", "db", "--socket", socket)
        refusal = remote.home.refused("reverse", "db", "--yes")
        assert "the source cannot become the destination" in refusal
        assert "may not receive into it" in refusal
        qemu_io(f"nbd+unix:///?socket={socket}", "write -P 1 0 4k", "flush")
    finally:
        remote.close()


def test_a_scheduled_policy_over_the_agent(remote: Remote) -> None:
    """In its hours semi-sync, at whichever host the primary is."""
    home = remote.home
    remote.initialize("--window", "1MiB")
    file = home.folder / "etc/mirrors.d/db.toml"
    text = file.read_text().replace('policy = "sync"', 'policy = "scheduled"')
    keys = '[scheduled]\nhours = "Mon-Sun"\ninside = "semi-sync"\noutside = "sync"\n'
    file.write_text(f"{text}\n{keys}")
    home.start_daemon()

    def is_semi(site: str) -> bool:
        found = home.status()["live"][site]
        return bool(found and found["state"] == "semi-sync" and found["window_bytes"] == 1 << 20)

    wait_until(lambda: is_semi("source"), "semi-sync", 60)
    assert home.status()["problems"] == []
    home.run("reverse", "db", "--yes")
    wait_until(lambda: is_semi("source"), "semi-sync from the other host", 60)
    assert "semi-window 1048576" in (remote.destination.store / "config").read_text()


def test_a_host_whose_address_only_ssh_knows_needs_link_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ssh reaches it by a ProxyCommand, which says nothing of its address."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host 127.0.0.1\n  ProxyCommand gate %h %p\n")
    remote = Remote(tmp_path, "--allow", f"receive={tmp_path}/b")
    try:
        home = remote.home
        host = home.folder / "etc/hosts.d/dr.toml"
        host.write_text(host.read_text() + 'transport = "openssh"\n')
        remote.create()
        said = home.run("initialize", "db", status=2)
        assert "error: dr: the address for the replica link is not known: " in said
        assert "ProxyCommand" in said and "hint: Set 'link_address' of both sites" in said
        file = home.folder / "etc/mirrors.d/db.toml"
        text = file.read_text()
        for site in ("primary", "secondary"):
            text = text.replace(f"[site.{site}]", f'[site.{site}]\nlink_address = "127.0.0.1"')
        file.write_text(text)
        home.run("initialize", "db")
        home.run("serve", "db")
        qemu_io(home.uri(), "write -P 1 0 1M")
        remote.assert_equal()
    finally:
        remote.close()
