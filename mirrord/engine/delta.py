"""What an update would send; takes a temporary snapshot of the source for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mirrord.core import names
from mirrord.core.errors import NotFound
from mirrord.core.model import Delta, Snapshot
from mirrord.core.reports import DeltaReport
from mirrord.core.states import Activity, State, Verb
from mirrord.engine import recovery
from mirrord.engine.mirror import Mirror, check_source, check_there
from mirrord.engine.update import check_descent
from mirrord.system import clock


def delta(
    mirror: Mirror, *, base: str | None, incremental: str | None, states: bool, files: bool
) -> DeltaReport:
    """What the next update would send, or the difference between two snapshots of the source.

    base, incremental: names or guids of source snapshots; None: the base of the next update, and
    the source as it is now (a temporary snapshot).
    """
    with mirror.hold(Verb.UPDATE, activity=Activity.SNAPSHOTTING):
        pending = recovery.recover(mirror).pending
        if mirror.catalogue.mirror(mirror.id) is None:  # it was lost: rebuild it from the ends
            check_there(mirror.destination.facts(), mirror)
            mirror.row()
        initialized = mirror.row().state is not State.UNINITIALIZED
        facts = mirror.source.facts()
        check_source(facts, str(mirror.source), mirror.id, initialized=initialized)
        here = mirror.source.snapshots()
        if incremental is None:
            check_descent(mirror, here, {one.guid for one in mirror.destination.snapshots()})
        first = _named(mirror, here, base) if base else _next_base(mirror, here)
        before = first.guid if first else None
        compare = partial(mirror.source.delta, before, states=states, files=files)
        if incremental:
            found = compare(_named(mirror, here, incremental).guid)
        elif pending is not None:
            found = compare(pending.snapshot.guid)
        else:
            found = _delta_to_now(mirror, compare)
    return DeltaReport(
        name=mirror.name,
        base=first.name if first else None,
        block_size=found.block_size,
        states=found.states,
        added_bytes=found.added_bytes,
        send_bytes=found.send_bytes,
        exact=found.exact,
        rate_bytes_s=_usual_rate(mirror),
        changes=found.changes,
    )


def _named(mirror: Mirror, listed: list[Snapshot], wanted: str) -> Snapshot:
    for snapshot in listed:
        if wanted in (snapshot.name, snapshot.guid):
            return snapshot
    raise NotFound(
        f"the source has no snapshot '{wanted}'",
        where=str(mirror.source),
        hint=f"'mirrord snapshots {mirror.name}' lists them.",
    )


def _next_base(mirror: Mirror, here: list[Snapshot]) -> Snapshot | None:
    facts = mirror.destination.facts()
    for snapshot in here:
        if snapshot.guid == facts.shown:
            return snapshot
    return None


def _delta_to_now(mirror: Mirror, compare: Callable[[str], Delta]) -> Delta:
    name = partial(names.snapshot_name, mirror.id, clock.now_ns())
    arguments = mirror.catalogue.begin(mirror.id, "delta", name=name)
    try:
        return compare(mirror.take_snapshot(arguments.name, alone=True).guid)
    finally:
        recovery.recover(mirror, RuntimeError("delta is done"))


def _usual_rate(mirror: Mirror) -> float | None:
    """Bytes per second of this mirror's last transfers, without very short ones."""
    done = [
        (row.stream_bytes, row.duration_ms)
        for row in mirror.catalogue.transfers(mirror.id, limit=20)
        if row.result == "done" and row.duration_ms >= 5 and row.stream_bytes > 0
    ]
    total_ms = sum(duration for _, duration in done)
    return sum(size for size, _ in done) / (total_ms / 1000) if total_ms else None
