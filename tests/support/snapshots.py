"""Snapshots that somebody deletes without asking mirrord."""

from __future__ import annotations

from mirrord.drivers.contract import Driver


def delete_by_force(driver: Driver, guid: str) -> None:
    """Delete a snapshot, pinned or not, and what mirrors have pinned with it."""
    for mirror_id in driver.pins().get(guid, ()):
        driver.pin(mirror_id, [])
    driver.delete_snapshot(guid)
