"""The commands of the operator guide's ZFS chapter are run, in order, in the virtual machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.zfsvm.agents import new_home
from tests.zfsvm.guest import PYTHON, TREE, Guest

GUIDE = Path(__file__).parents[2] / "docs/operator-guide.md"
_POOLS = """
for pool in tank vault; do
    truncate -s 256M /var/tmp/$pool.guide
    zpool create -f $pool /var/tmp/$pool.guide
done
zfs create tank/home
"""


@pytest.fixture
def pools(zfs_guest: Guest) -> Iterator[Guest]:
    zfs_guest.run("bash", "-ec", _POOLS)
    try:
        yield zfs_guest
    finally:
        for pool in ("tank", "vault"):
            zfs_guest.run("zpool", "destroy", "-f", pool)
            zfs_guest.run("rm", f"/var/tmp/{pool}.guide")


@pytest.mark.nightly
def test_the_chapters_commands_do_what_it_says(pools: Guest) -> None:
    chapter = GUIDE.read_text(encoding="utf-8").partition("\n## ZFS\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh zfs\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    script = (
        f"export MIRRORD_HOME={new_home()} PYTHONPATH={TREE}\n"
        f'mirrord() {{ {PYTHON} -m mirrord "$@"; }}\n'
    )
    said = pools.run("bash", "-euc", script + "\n".join(blocks))
    assert "'home' now shows mirrord." in said
    assert "\nfirst note\n" in said
    assert re.search(r"added .*  notes.txt", said)
    assert "'home' is broken off" in said and "'home' is mirrored again" in said
    assert "\na letter\n" in said and "projects-test is a writable copy" in said
    assert pools.run("cat", "/vault/copies/projects/web/index.html") == "a page\n"
    kept = pools.run("zfs", "list", "-H", "-t", "snapshot", "-o", "name", "-r", "vault")
    assert "@diverged." in kept
    assert pools.run("ls", "/vault/copies/home").split() == ["notes.txt"]
