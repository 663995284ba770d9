"""Pools of a test's own in the machine: small ones, and one whose disk can be made to fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from tests.zfsvm.guest import Guest

_NUMBERS = itertools.count(1)
_SECTORS_A_MIB = 2048


@contextmanager
def small_pool(guest: Guest, size_mib: int, *options: str) -> Iterator[str]:
    """A pool on a file; options: more words of `zpool create`."""
    name = f"small{next(_NUMBERS)}"
    file = f"/var/tmp/{name}"
    guest.run("truncate", "-s", f"{size_mib}M", file)
    guest.run("zpool", "create", "-o", "cachefile=none", *options, name, file)
    try:
        yield name
    finally:
        guest.run("zpool", "destroy", "-f", name)
        guest.run("rm", file)


class Sick:
    """A pool on a disk that can fail, and come back."""

    def __init__(self, guest: Guest, name: str, disk: str, size_mib: int) -> None:
        self.name = name
        self._guest, self._disk, self._sectors = guest, disk, size_mib * _SECTORS_A_MIB

    def table(self, target: str) -> str:
        """What the disk is made of, as dmsetup is told."""
        return f"0 {self._sectors} {target}"

    def _becomes(self, target: str) -> None:
        for words in (["suspend"], ["load", "--table", self.table(target)], ["resume"]):
            self._guest.run("dmsetup", words[0], self.name, *words[1:])

    def fail(self) -> None:
        """Each access fails from now on; the pool is suspended as soon as it writes."""
        self._becomes("error")
        self._guest.user("suspended", self.name)

    def heal(self) -> None:
        """The disk is back, and the pool goes on."""
        self._becomes(f"linear {self._disk} 0")
        self._guest.run("zpool", "clear", self.name)


@contextmanager
def sick_pool(guest: Guest, size_mib: int = 256) -> Iterator[Sick]:
    """A pool on a device-mapper disk."""
    name = f"sick{next(_NUMBERS)}"
    file = f"/var/tmp/{name}"
    guest.run("modprobe", "-a", "dm_mod", "loop")
    guest.run("truncate", "-s", f"{size_mib}M", file)
    disk = guest.run("losetup", "-f", "--show", file).strip()
    made = Sick(guest, name, disk, size_mib)
    guest.run("dmsetup", "create", name, "--table", made.table(f"linear {disk} 0"))
    # A write to a pool that is suspended is to fail at once, not to wait for its disk.
    options = ["-o", "cachefile=none", "-o", "failmode=continue"]
    guest.run("zpool", "create", *options, name, f"/dev/mapper/{name}")
    try:
        yield made
    finally:
        made.heal()
        guest.run("zpool", "destroy", "-f", name)
        guest.run("dmsetup", "remove", "--retry", name)
        guest.run("losetup", "-d", disk)
        guest.run("rm", file)
