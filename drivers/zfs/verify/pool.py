"""What a pool says of itself: its health, its last scrub, its known errors."""

from __future__ import annotations

import re
import time

from mirrord.core.verification import PoolState
from mirrord.drivers.zfs.commands import command

_FIELD = re.compile(r"^ *(state|scan|errors): (.*)$", re.MULTILINE)
_SCRUBBED = re.compile(r"scrub repaired \S+ in .* with (\d+) errors on (.*)")
_ERRORS = re.compile(r"(\d+) data errors|(No known data errors)")


def state(pool: str, where: str) -> PoolState:
    """Ask `zpool status`. What it does not tell this user is None."""
    return parse(pool, command.run(["zpool", "status", pool], where))


def parse(pool: str, said: str) -> PoolState:
    """The output of `zpool status` for one pool, in the C locale."""
    fields = dict(_FIELD.findall(said))
    scan = fields.get("scan", "").strip()
    found = PoolState(pool, fields.get("state", "").strip(), scan)
    scrubbed = _SCRUBBED.fullmatch(scan)
    if scrubbed is not None:
        found = found._replace(scrubbed_at_s=_seconds(scrubbed[2]), scrub_errors=int(scrubbed[1]))
    errors = _ERRORS.match(fields.get("errors", ""))
    return found._replace(data_errors=int(errors[1] or 0)) if errors is not None else found


def _seconds(date: str) -> int | None:
    """A date of ctime(3), in this host's time zone."""
    try:
        return int(time.mktime(time.strptime(date.strip(), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None
