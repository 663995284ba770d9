"""The place of an error at another host: that host, and what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.admin import hosts
from mirrord.config.hosts import render
from mirrord.core.errors import Busy, ConfigError, MirrordError, Untrusted
from mirrord.core.model import Endpoint, RemoteHost
from mirrord.link.driver import RemoteDriver
from mirrord.link.links import Links
from mirrord.link.placing import place
from mirrord.system.paths import Paths
from tests.agent.test_listen import listening


@pytest.mark.parametrize(
    ("where", "connected", "placed"),
    [
        ("", True, "me@dr:22"),
        ("dr", True, "me@dr:22"),
        ("me@dr:22", True, "me@dr:22"),
        ("/backup/dr", True, "me@dr:22: /backup/dr"),
        ("me@dr:22: /backup", True, "me@dr:22: /backup"),
        ("dr: /backup", False, "me@dr:22: /backup"),
        ("btrfs://me@dr:22/backup", True, "btrfs://me@dr:22/backup"),
        ("btrfs:/backup", True, "me@dr:22: btrfs:/backup"),
        ("/etc/mirrord/dr.pem", False, "/etc/mirrord/dr.pem"),
        ("gate", False, "me@dr:22: gate"),
    ],
)
def test_the_host_is_named(where: str, placed: str, *, connected: bool) -> None:
    error = Busy("it is held", where=where)
    place(error, "me@dr:22", connected=connected)
    assert error.where == placed


def failure(paths: Paths, host: RemoteHost) -> tuple[MirrordError, MirrordError]:
    """Of `host check`, and of a driver."""
    paths.hosts.mkdir(parents=True, exist_ok=True)
    (paths.hosts / f"{host.name}.toml").write_text(render(host))
    with pytest.raises(MirrordError) as checked:
        hosts.check(paths, host.name)
    links = Links()
    driver = RemoteDriver.of(Endpoint("block", "/v", host.name), links.to(host.name, host))
    with pytest.raises(MirrordError) as called:
        driver.facts()
    links.close()
    return checked.value, called.value


def test_a_file_of_this_host_is_not_placed_at_the_other(tmp_path: Path) -> None:
    home, bundle = tmp_path / "here", tmp_path / "none.pem"
    paths = Paths(home / "etc", home / "state", home / "run")
    host = RemoteHost("dr", "127.0.0.1", 9, transport="tls", key=str(bundle))
    for error in failure(paths, host):
        assert isinstance(error, ConfigError) and error.where == str(bundle)


def test_a_path_of_the_other_host_is(tmp_path: Path) -> None:
    home, there = tmp_path / "here", tmp_path / "there"
    paths = Paths(home / "etc", home / "state", home / "run")
    with listening(there, "--listen", f"{tmp_path}/s", "--allow", f"receive={tmp_path}"):
        (there / "run/agents").write_text("in the way")
        host = RemoteHost("box", f"{tmp_path}/s", transport="unix")
        for error in failure(paths, host):
            assert error.where == f"box: {there}/run/agents", error
        (there / "run/agents").unlink()
        links = Links()
        driver = RemoteDriver.of(Endpoint("block", "/v", "box"), links.to("box", host))
        with pytest.raises(Untrusted) as refused:
            driver.facts()
        assert refused.value.where == "box: /v"
        links.close()
