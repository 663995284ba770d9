"""Snapshots that somebody deletes without asking mirrord, and what a rollback would lose."""

from __future__ import annotations

from mirrord.core.model import Divergence
from mirrord.drivers.contract import Driver


def delete_by_force(driver: Driver, guid: str) -> None:
    """Delete a snapshot, pinned or not, and what mirrors have pinned with it."""
    for mirror_id in driver.pins().get(guid, ()):
        driver.pin(mirror_id, [])
    driver.delete_snapshot(guid)


def is_empty(lost: Divergence) -> bool:
    """Nothing would be lost."""
    return lost.changed_bytes == 0 and lost.total_changes == 0 and not lost.newer_snapshots
