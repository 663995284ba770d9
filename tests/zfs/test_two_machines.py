"""A mirror from one machine with OpenZFS to another, each reached by the product's own SSH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.config.hosts import render
from mirrord.core.errors import MirrordError
from mirrord.system.paths import Paths
from tests.support.verbs import Service
from tests.zfsvm import session
from tests.zfsvm.agents import new_home, ssh_host
from tests.zfsvm.guest import Guest

NAME = "far"


class Pair(NamedTuple):
    """The service here, the two machines, and a dataset's folder name that both have."""

    service: Service
    first: Guest
    second: Guest
    name: str

    def contents(self) -> tuple[str, str]:
        """What a user sees at both ends."""
        return (
            str(self.first.user("digest", f"/here/{self.name}/home")),
            str(self.second.user("digest", f"/there/{self.name}/backup")),
        )

    def in_step(self) -> bool:
        source, destination = self.contents()
        return source == destination


@pytest.fixture
def pair(zfs_guest: Guest, tmp_path: Path) -> Iterator[Pair]:
    other = session.second()
    paths = Paths(*(tmp_path / part for part in ("etc", "state", "run")))
    paths.hosts.mkdir(parents=True)
    for guest, name in ((zfs_guest, "one"), (other, "two")):
        host = ssh_host(guest, new_home(), name=name)
        (paths.hosts / f"{name}.toml").write_text(render(host))
    with zfs_guest.datasets() as name:
        other.run("zfs", "create", f"there/{name}")
        zfs_guest.run("zfs", "create", f"here/{name}/home")
        zfs_guest.user("fill", f"/here/{name}/home", 0)
        service = Service(paths)
        service.create(NAME, f"zfs://one/here/{name}/home", f"zfs://two/there/{name}/backup")
        try:
            yield Pair(service, zfs_guest, other, name)
        finally:
            service.close()
            service.shared.links.close()
            other.user("clean", f"there/{name}")


@pytest.mark.nightly
def test_the_life_of_a_mirror_between_two_machines(pair: Pair) -> None:
    service, home, backup = pair.service, f"/here/{pair.name}/home", f"/there/{pair.name}/backup"
    service.initialize(NAME)
    assert pair.in_step()
    pair.first.user("change", home, 1)
    assert service.update(NAME).status == "done" and pair.in_step()
    service.break_off(NAME)
    pair.second.user("change", backup, 2)
    pair.first.user("change", home, 3)
    assert not pair.in_step()
    winning, _ = pair.contents()
    service.resync(NAME, yes=True)
    assert pair.contents() == (winning, winning)
    service.break_off(NAME)
    pair.second.user("change", backup, 4)
    _, winning = pair.contents()
    service.reverse(NAME, yes=True)
    assert pair.contents() == (winning, winning)
    pair.second.user("change", backup, 5)
    assert service.update(NAME).status == "done" and pair.in_step()


@pytest.mark.nightly
def test_a_machine_whose_kernel_has_no_zfs_says_so_and_goes_on_later(pair: Pair) -> None:
    service, second = pair.service, pair.second
    service.initialize(NAME)
    pair.first.user("change", f"/here/{pair.name}/home", 1)
    service.shared.links.close()
    for pool in ("here", "there"):
        second.run("zpool", "export", pool)
    second.run("modprobe", "-r", "zfs")
    second.user("write_text", "/etc/modprobe.d/none.conf", "install zfs /bin/false\n")
    try:
        with pytest.raises(MirrordError) as caught:
            service.update(NAME)
        text = f"{caught.value} {caught.value.hint}"
        assert "ZFS kernel module is not loaded" in text and "modprobe zfs" in text, text
        assert "two" in str(caught.value), "it says which host"
    finally:
        second.run("rm", "/etc/modprobe.d/none.conf")
        second.run("modprobe", "zfs")
        second.run("zpool", "import", "-aN", "-d", "/dev")
        second.run("zfs", "mount", "-a")
    assert service.update(NAME).status == "done" and pair.in_step()
