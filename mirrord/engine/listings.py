"""The history and the snapshots of a mirror. Changes nothing."""

from __future__ import annotations

from mirrord.catalogue.store import Catalogue
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition, Snapshot
from mirrord.core.reports import History, SnapshotCopy, SnapshotEntry, SnapshotTable
from mirrord.drivers.contract import Driver
from mirrord.engine import plan
from mirrord.engine.mirror import Mirror, one_line
from mirrord.engine.report import facts_of


def history(book: Catalogue, definition: Definition, *, limit: int) -> History:
    """The last transfers and events, newest first."""
    return History(
        definition.name,
        tuple(book.transfers(definition.id, limit=limit)),
        tuple(book.attempts(definition.id, limit=limit)),
        tuple(book.events(definition.id, limit=limit)),
    )


def snapshots(mirror: Mirror) -> SnapshotTable:
    """The snapshots of both ends, oldest first, with which end has each."""
    mine = mirror.catalogue.snapshots(mirror.id)
    trouble: dict[str, str] = {}
    here = _listed("source", mirror.source, trouble)
    there = _listed("destination", mirror.destination, trouble)
    facts, _ = facts_of(mirror.destination)
    base = plan.newest_complete_set(here, there)
    either = {one.guid: one for one in (*there, *here)}
    at_source, at_destination = ({one.guid: one for one in end} for end in (here, there))
    entries = tuple(
        SnapshotEntry(
            name=either[guid].name,
            guid=guid,
            kind=either[guid].kind,
            taken_ns=either[guid].taken_at_ns,
            mine=guid in mine,
            shown=bool(facts and facts.shown == guid),
            base=base is not None and guid == base.guid,
            source=_copy(at_source.get(guid)),
            destination=_copy(at_destination.get(guid)),
        )
        for guid in _merged(here, there)
    )
    return SnapshotTable(mirror.name, entries, trouble)


def _listed(end: str, driver: Driver, trouble: dict[str, str]) -> list[Snapshot]:
    try:
        return driver.snapshots()
    except (MirrordError, OSError) as error:
        trouble[end] = one_line(error)
        return []


def _copy(snapshot: Snapshot | None) -> SnapshotCopy | None:
    return SnapshotCopy(snapshot.path, snapshot.intact) if snapshot else None


def _merged(source: list[Snapshot], destination: list[Snapshot]) -> list[str]:
    """The guids of both ends in one order that agrees with the order of each end."""
    merged = [snapshot.guid for snapshot in destination]
    at = 0
    for snapshot in source:
        if snapshot.guid in merged:
            at = merged.index(snapshot.guid) + 1
        else:
            merged.insert(at, snapshot.guid)
            at += 1
    return merged
