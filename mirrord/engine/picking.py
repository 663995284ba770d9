"""Find the destination's snapshot that a user has named."""

from __future__ import annotations

from mirrord.core.errors import NotFound
from mirrord.core.model import Snapshot
from mirrord.engine.mirror import Mirror
from mirrord.engine.plan import usable


def pick_snapshot(mirror: Mirror, wanted: str | None) -> Snapshot:
    """The destination's snapshot of that name or guid; None: the one it shows or began as, or
    the newest intact one when that is gone.
    """
    listed = mirror.destination.snapshots()
    if wanted is None:
        facts = mirror.destination.facts()
        chosen = facts.shown or facts.origin
        for snapshot in listed:
            if snapshot.guid == chosen:
                return snapshot
        left = [snapshot for snapshot in listed if usable(snapshot)]
        if left:
            return left[-1]
        raise NotFound("the destination has no snapshot to restore from", where=mirror.name)
    found = [s for s in listed if wanted in (s.name, s.guid)]
    if not found:
        found = [s for s in listed if wanted in s.name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(s.name for s in listed[-5:]) or "none"
    raise NotFound(
        f"'{wanted}' matches {'no snapshot' if not found else 'several snapshots'}",
        where=str(mirror.destination),
        hint=f"'mirrord snapshots {mirror.name}' lists them; the newest: {known}.",
    )
