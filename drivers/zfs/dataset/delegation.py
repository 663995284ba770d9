"""The permissions that a user other than root lacks to mirror a dataset (commands/permissions.py).

On Linux only root can mount and unmount, even with delegated permissions: a destination of another
user is received and committed, but its files are accessible only after root has mounted it.
"""

from __future__ import annotations

import grp
import os
import pwd

from mirrord.core.errors import PermissionMissing, UsageError
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.commands.permissions import DESTINATION, FAILOVER, SOURCE, granted
from mirrord.drivers.zfs.dataset import names

_NEEDED = {"source": SOURCE, "destination": DESTINATION}


def missing(dataset: str, role: str, *, user: str = "", failover: bool = False) -> list[str]:
    """The permissions that a user lacks; [] for root.

    dataset: the volume at the source; at the destination the place of the mirror, which need not
    exist yet. role: "source" or "destination". user: "" for the user of this process. failover:
    include the permissions for break, resync and reverse. Raises `NotFound` when there is no such
    dataset.
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
    """Raise `PermissionMissing`, which lists them, when the user of this process lacks any."""
    lacking = missing(dataset, role, failover=failover)
    if not lacking:
        return
    name, _ = _user("")
    place = _place(dataset, role, failover=False)
    raise PermissionMissing(
        f"the user {name} lacks {' and '.join(repr(each) for each in lacking)} on '{place}'",
        where=where,
        why="ZFS would fail during the transfer, or leave the copy writable",
        hint=f"As root: {allow_command(dataset, role, name, failover=failover)}",
    )


def allow_command(dataset: str, role: str, user: str, *, failover: bool = False) -> str:
    """The command with which root lets a user mirror: one line."""
    needed = (*_NEEDED[role], *(FAILOVER if failover else ()))
    place = _place(dataset, role, failover=failover)
    return f"zfs allow -u {user} {','.join(needed)} {place}"


def _place(dataset: str, role: str, *, failover: bool) -> str:
    """Where permissions are set: for a destination on its parent, as it does not exist at first."""
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
