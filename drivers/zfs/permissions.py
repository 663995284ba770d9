"""Which delegated permissions (`zfs allow`) which command needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

#: By subcommand. Where `mount` is among them ZFS demands it, although on Linux nobody but root can
#: mount: without it these commands are refused.
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
    "snapshot": ("snapshot", "mount"),
    "allow": ("allow",),
}


def needed_by(arguments: Sequence[str]) -> tuple[str, ...]:
    """The permissions that a command line needs; () when none that can be delegated on Linux."""
    if len(arguments) < 2 or not arguments[0].endswith("zfs"):
        return ()
    verb = arguments[1]
    if verb in ("set", "inherit"):
        return _properties(arguments[2:-1])
    needed = _NEEDED.get(verb, ())
    if verb in ("receive", "recv", "create", "clone"):
        needed += _properties(
            [value for option, value in itertools.pairwise(arguments) if option in ("-o", "-x")]
        )
    return tuple(dict.fromkeys(needed))


def _properties(settings: Sequence[str]) -> tuple[str, ...]:
    """Setting a property needs a permission of its name; a user's own, `userprop`."""
    names = [setting.partition("=")[0] for setting in settings if not setting.startswith("-")]
    return tuple(dict.fromkeys("userprop" if ":" in name else name for name in names))
