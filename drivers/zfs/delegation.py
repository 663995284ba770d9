"""What a user who is not root lacks to mirror a dataset (permissions.py says what is needed).

On Linux nobody but root mounts and unmounts, whatever is delegated: a destination that belongs to
another user is received and committed, but its files are to be seen only once root has mounted it.
"""

from __future__ import annotations

import grp
import os
import pwd

from mirrord.core.errors import PermissionMissing, UsageError
from mirrord.drivers.zfs import command, names
from mirrord.drivers.zfs.permissions import DESTINATION, FAILOVER, SOURCE, granted

_NEEDED = {"source": SOURCE, "destination": DESTINATION}


def missing(dataset: str, role: str, *, user: str = "", failover: bool = False) -> list[str]:
    """The permissions that a user lacks; [] for root, who needs none.

    dataset: the volume at the source; at the destination the place of the mirror, which may not
    be there yet. role: "source" or "destination". user: "" for whoever runs this. failover: with
    what break, resync and reverse need. Raises `NotFound` when there is no such dataset.
    """
    if role not in _NEEDED:
        raise UsageError(f"'{role}' is neither 'source' nor 'destination'")
    name, identity = _user(user)
    if identity == 0:
        return []
    asked = _place(dataset, role, failover=failover)
    has = granted(
        command.run(["zfs", "allow", asked], f"zfs:{dataset}"), asked, name, _groups(name)
    )
    needed = (*_NEEDED[role], *(FAILOVER if failover else ()))
    return [each for each in needed if each not in has]


def require(dataset: str, role: str, where: str, *, failover: bool = False) -> None:
    """Refuse when whoever runs this lacks a permission: `PermissionMissing` names each."""
    lacking = missing(dataset, role, failover=failover)
    if not lacking:
        return
    name, _ = _user("")
    place = _place(dataset, role, failover=False)
    raise PermissionMissing(
        f"the user {name} lacks {' and '.join(repr(each) for each in lacking)} on '{place}'",
        where=where,
        why="ZFS would refuse it in the middle, or leave the copy writable",
        hint=f"As root: {allow_command(dataset, role, name, failover=failover)}",
    )


def allow_command(dataset: str, role: str, user: str, *, failover: bool = False) -> str:
    """What root types so that a user may mirror: one line."""
    needed = (*_NEEDED[role], *(FAILOVER if failover else ()))
    place = _place(dataset, role, failover=failover)
    return f"zfs allow -u {user} {','.join(needed)} {place}"


def _place(dataset: str, role: str, *, failover: bool) -> str:
    """Where permissions are set: at a destination above it, as it is not there at first."""
    if role == "source" and not failover:
        return dataset
    return names.parent_of(dataset) or dataset


def _user(name: str) -> tuple[str, int]:
    try:
        found = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        if not name:
            return str(os.geteuid()), os.geteuid()
        raise UsageError(f"there is no user '{name}'") from None
    return found.pw_name, found.pw_uid


def _groups(name: str) -> list[str]:
    try:
        gids = os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        return [grp.getgrgid(gid).gr_name for gid in gids]
    except KeyError:
        return []
