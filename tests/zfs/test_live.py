"""A live mirror between two zvols, whose ends are services of a real systemd: inside the virtual
machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zfsvm.guest import ROOT, TREE, Guest

SIZE = 2 << 20
SOCKET = "/run/mirrord/zdb.nbd"


@pytest.fixture
def guest(zfs_guest: Guest) -> Guest:
    """The machine, with the unit installed as docs/live-modes.md says."""
    unit = (ROOT / "packaging/mirrord-live@.service").read_text(encoding="utf-8")
    zfs_guest.user("write_text", "/etc/systemd/system/mirrord-live@.service", unit)
    zfs_guest.run("ln", "-sfn", f"{TREE}/mirrord/_live", "/usr/local/bin/mirrord-live")
    zfs_guest.run("systemctl", "daemon-reload")
    return zfs_guest


@pytest.fixture
def devices(guest: Guest) -> Iterator[list[str]]:
    with guest.datasets() as name:
        volumes = [f"{pool}/{name}/disk" for pool in ("here", "there")]
        for volume in volumes:
            guest.run("zfs", "create", "-V", str(SIZE), volume)
        guest.run("udevadm", "settle")
        yield [f"/dev/zvol/{volume}" for volume in volumes]


def _mirrord(guest: Guest, *words: str) -> str:
    status, said = guest.user("mirrord", words)
    assert status == 0, said
    return str(said)


def test_zvols_are_mirrored_and_broken_off(guest: Guest, devices: list[str]) -> None:
    _mirrord(guest, "create", "zdb", *(f"image:{device}" for device in devices), "--policy", "sync")
    try:
        assert "both ends are in sync" in _mirrord(guest, "initialize", "zdb")
        units = [f"mirrord-live@zdb-{site}-*.service" for site in ("primary", "secondary")]
        guest.run("systemctl", "is-active", *units)
        _mirrord(guest, "serve", "zdb")
        assert guest.user("nbd_stamps", SOCKET, 1, 0, 100) == [0]
        assert "is fenced" in _mirrord(guest, "break", "zdb")
        guest.run("cmp", *devices)
        assert guest.user("stamps", devices[1]) == [1] * 100 + [0] * (SIZE // 4096 - 100)
    finally:
        said = _mirrord(guest, "delete", "zdb", "--yes")
    assert "was not cleaned up" not in said
    for unit in units:
        guest.fails("systemctl", "is-active", unit)
