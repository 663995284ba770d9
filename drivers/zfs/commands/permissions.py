"""Delegated permissions (`zfs allow`): those that a mirror or a command needs, and those granted.

tests/zfs/test_delegation.py runs all operations of a mirror as a user with only these permissions.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

#: At the source, set on the volume itself: `destroy` is for pruning reference snapshots (ZFS
#: requires `mount` with it), `diff` for `mirrord delta --files`.
SOURCE = (
    "snapshot", "send", "hold", "release", "bookmark", "destroy", "mount", "userprop", "diff",
)  # fmt: skip
#: At the destination, set on its parent: the first transfer creates the destination.
DESTINATION = (
    "receive", "create", "mount", "destroy", "hold", "release", "userprop", "readonly",
    "canmount", "overlay",
)  # fmt: skip
#: For failover and failback, at both ends, set on the parents, in addition to those of both roles.
FAILOVER = ("clone", "promote", "rename", "rollback", "mountpoint")

#: By subcommand. ZFS requires `mount` where it is listed, although on Linux only root can mount:
#: without it these commands are refused.
_NEEDED = {
    "bookmark": ("bookmark",),
    "clone": ("clone", "create", "mount"),
    "create": ("create", "mount"),
    "destroy": ("destroy", "mount"),
    "diff": ("diff",),
    "hold": ("hold",),
    "load-key": ("load-key",),
    "promote": ("promote", "mount"),
    "receive": ("receive", "create", "mount"),
    "recv": ("receive", "create", "mount"),
    "release": ("release",),
    "rename": ("rename", "create", "mount"),
    "rollback": ("rollback", "mount"),
    "send": ("send",),
    "snapshot": ("snapshot",),
    "allow": ("allow",),
}


def needed_by(arguments: Sequence[str]) -> tuple[str, ...]:
    """The permissions that a command line needs; () when none can be delegated on Linux."""
    if len(arguments) < 2 or not arguments[0].endswith("zfs"):
        return ()
    verb = arguments[1]
    if verb in ("set", "inherit"):
        return _properties(arguments[2:-1])
    needed = _NEEDED.get(verb, ())
    if verb in ("receive", "recv", "create", "clone", "snapshot"):
        needed += _properties(
            [value for option, value in itertools.pairwise(arguments) if option in ("-o", "-x")]
        )
    return tuple(dict.fromkeys(needed))


def _properties(settings: Sequence[str]) -> tuple[str, ...]:
    """Setting a property needs the permission of its name; a user property needs `userprop`."""
    names = [setting.partition("=")[0] for setting in settings if not setting.startswith("-")]
    return tuple(dict.fromkeys("userprop" if ":" in name else name for name in names))


_SECTION = "---- Permissions on "
#: The headings of `zfs allow` that apply to the dataset itself, and those for its descendants.
_HERE = frozenset({"Local permissions", "Local+Descendent permissions"})
_BELOW = frozenset({"Descendent permissions", "Local+Descendent permissions"})


def granted(output: str, dataset: str, user: str, groups: Collection[str] = ()) -> frozenset[str]:
    """A user's permissions on a dataset from `zfs allow DATASET`, which also prints its parents."""
    sets: dict[str, set[str]] = {}
    found: set[str] = set()
    section = heading = ""
    for line in output.splitlines():
        if line.startswith(_SECTION):
            section = line.removeprefix(_SECTION).split(" ")[0]
        elif line and not line[0].isspace():
            heading = line.rstrip().removesuffix(":")
        else:
            words = line.split()
            if heading == "Permission sets" and len(words) == 2:
                sets.setdefault(words[0], set()).update(words[1].split(","))
            elif heading in (_HERE if section == dataset else _BELOW):
                found |= _given(words, user, groups)
    while expanded := {each for each in found if each.startswith("@")}:
        found -= expanded
        for name in expanded:
            found |= sets.pop(name, set())
    return frozenset(found)


def _given(words: Sequence[str], user: str, groups: Collection[str]) -> set[str]:
    match words:
        case ["user", name, given] if name == user:
            return set(given.split(","))
        case ["group", name, given] if name in groups:
            return set(given.split(","))
        case ["everyone", given]:
            return set(given.split(","))
    return set()
