"""Which OpenZFS will do, by what it says of itself; and on the real one."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Unsupported
from mirrord.core.model import Changes
from mirrord.drivers.zfs.commands.features import Version, parse
from mirrord.drivers.zfs.stream.survey import Survey, changes
from tests.zfsvm.guest import PYTHON, TREE, Guest


def test_programs_and_module_have_their_own_versions() -> None:
    found = parse("zfs-2.4.0-1\nzfs-kmod-2.1.11-1\n", "zfs:X")
    assert (found.userland, found.kernel) == (Version(2, 4, 0), Version(2, 1, 11))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("zfs-0.7.13-1\nzfs-kmod-0.7.13-1\n", "0.7.13 is too old"),
        ("zfs-2.3.0\nzfs-kmod-0.7.9\n", "0.7.9 is too old"),
        ("", "cannot be determined"),
        ("something else\n", "cannot be determined"),
    ],
)
def test_an_old_or_unknown_one_is_refused(said: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        parse(said, "zfs:X")


@pytest.mark.nightly
def test_an_old_pool_is_refused_with_the_way_out(zfs_guest: Guest) -> None:
    zfs_guest.run("truncate", "-s", "100M", "/var/tmp/features.image")
    zfs_guest.run("zpool", "create", "-f", "-d", "oldpool", "/var/tmp/features.image")
    script = (
        "from mirrord.drivers.zfs.commands import features; features.require('here', 'zfs:here/x');"
        "print(features.detect()); features.require('oldpool', 'zfs:oldpool/x')"
    )
    try:
        said = zfs_guest.fails("env", f"PYTHONPATH={TREE}", PYTHON, "-c", script)
    finally:
        zfs_guest.run("zpool", "destroy", "-f", "oldpool")
        zfs_guest.run("rm", "/var/tmp/features.image")
    assert "the pool 'oldpool' lacks the feature extensible_dataset and bookmarks" in said


def test_a_volume_without_change_has_no_ranges() -> None:
    assert changes(Survey(936, {}, (), volume=True)) == Changes(b"", b"")
