"""What this OpenZFS supports: by its version, and by the features of the pool.

Both are read once in a process. (A pool that is upgraded meanwhile is noticed by the next process.)
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple, Self

from mirrord.core.errors import Unsupported
from mirrord.drivers.zfs.commands import command

_VERSION = re.compile(r"zfs(?P<kernel>-kmod)?-(\d+)\.(\d+)(?:\.(\d+))?")


class Version(NamedTuple):
    """The version of OpenZFS, as `zfs version` prints it."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """From a line like `zfs-kmod-2.3.9-0+deb13u1`."""
        found = _VERSION.match(line.strip())
        return cls(int(found[2]), int(found[3]), int(found[4] or 0)) if found else None


#: Raw and compressed sends, bookmarks of encrypted datasets, holds in their final form.
OLDEST = Version(0, 8, 0)


class Features(NamedTuple):
    """What this OpenZFS supports. userland: version of the programs; kernel: of the module."""

    userland: Version
    kernel: Version


def parse(output: str, where: str) -> Features:
    """From what `zfs version` prints; `Unsupported` for an OpenZFS that is too old."""
    userland = kernel = None
    for line in output.splitlines():
        if line.startswith("zfs-kmod"):
            kernel = Version.parse(line)
        elif line.startswith("zfs-"):
            userland = Version.parse(line)
    if userland is None:
        raise Unsupported(
            "the version of OpenZFS cannot be determined",
            where=where,
            why=f"'zfs version' printed {' / '.join(output.split())!r}",
            hint=f"OpenZFS {OLDEST} or newer is required.",
        )
    found = Features(userland, kernel or userland)
    if min(found) < OLDEST:
        raise Unsupported(
            f"OpenZFS {min(found)} is too old",
            where=where,
            why=f"programs {found.userland}, module {found.kernel}",
            hint=f"Upgrade programs and module to {OLDEST} or newer.",
        )
    return found


@functools.cache
def detect(where: str = "zfs") -> Features:
    """The OpenZFS that is installed and loaded here; raises `Unsupported` when there is none."""
    return parse(command.run(["zfs", "version"], where), where)


@functools.cache
def pool_features(pool: str, where: str) -> frozenset[str]:
    """The enabled features of a pool, by their OpenZFS names."""
    asked = ["zpool", "get", "-Hp", "-o", "property,value", "all", pool]
    found = set()
    for line in command.run(asked, where).splitlines():
        name, _, value = line.partition("\t")
        if name.startswith("feature@") and value in ("enabled", "active"):
            found.add(name.removeprefix("feature@"))
    return frozenset(found)


#: Required by a mirror: to resume an interrupted receive, and to send from the bookmark of a
#: deleted base.
_NEEDED = ("extensible_dataset", "bookmarks", "hole_birth")


def require(pool: str, where: str) -> None:
    """Refuse a pool or an OpenZFS that cannot be mirrored from or to. Raises `Unsupported`."""
    detect(where)
    lacking = [name for name in _NEEDED if name not in pool_features(pool, where)]
    if lacking:
        pool_features.cache_clear()  # the next try may come after 'zpool upgrade'
        raise Unsupported(
            f"the pool '{pool}' lacks the feature {' and '.join(lacking)}",
            where=where,
            why="it was created by an older OpenZFS, or without features",
            hint=f"'zpool upgrade {pool}' enables all features. An older OpenZFS can then no "
            "longer import the pool.",
        )
