"""Cascades: a destination is the source of a further mirror, A -> B -> C.

What goes on to C is what B shows: no snapshot is taken, and none of B's is deleted by the mirror to
C. Snapshots keep their identity on the way, so C has the very snapshots of A, and can go
on from A when B is lost (ONTAP: resync of a cascade whose middle is gone).
"""

from __future__ import annotations

from dataclasses import replace

from mirrord.core.errors import Diverged, Refused
from mirrord.core.model import Definition, Endpoint, Role, Snapshot
from mirrord.core.relationship import Intent
from mirrord.core.results import Result
from mirrord.core.states import Verb
from mirrord.drivers.contract import Driver
from mirrord.engine import pinning, plan, recovery, relation
from mirrord.engine.members import Members
from mirrord.engine.mirror import Ends, Mirror, check_source
from mirrord.system.waiting import LOOK_S


def passed_on(mirror: Mirror) -> Snapshot | None:
    """What the source shows, when it is itself the destination of a mirror; None: it is not."""
    facts = mirror.source.facts()
    if facts.role is not Role.MIRROR or facts.mirror_id == mirror.id:
        return None
    check_source(facts, str(mirror.source), mirror.id)
    for snapshot in mirror.source.snapshots():
        if snapshot.guid == facts.shown and snapshot.intact:
            return snapshot
    raise Diverged(
        "the snapshot that the source shows cannot be passed on",
        where=str(mirror.source),
        why="it was deleted or made writable",
        hint="Update the mirror that it belongs to first.",
    )


def went_back(mirror: Mirror, snapshot: Snapshot) -> Refused:
    """The source shows something older than the destination does."""
    return Refused(
        "the source has gone back to an older snapshot",
        where=str(mirror.source),
        why=f"it shows {snapshot.name}, which the destination has already",
        hint="Update the mirror that it belongs to; or break this one and resync it.",
    )


def refuse_members(definition: Definition) -> None:
    """`Refused` where the source is not one volume."""
    if definition.members:
        raise Refused(
            "the source of a mirror with [[member]] tables is not one volume",
            where=f"mirror '{definition.name}'",
            hint="Make a mirror of each volume for that.",
        )


def change_source(mirror: Mirror, endpoint: Endpoint, driver: Driver) -> Result:
    """Let the mirror go on from another source that has its base: the next update is incremental.

    `Refused` when that one has not; nothing was changed then.
    """
    source = Members([driver])
    with mirror.hold(Verb.CHANGE_SOURCE):
        pending = recovery.recover(mirror).pending
        mirror.permit(Verb.CHANGE_SOURCE)
        check_source(source.facts(), str(source), mirror.id)
        facts = mirror.destination.facts()
        here, there = source.snapshots(), mirror.destination.snapshots()
        base = plan.find_base(mirror.name, here, there, facts.shown or facts.origin or "")
        if isinstance(base, plan.Conflict):
            raise Refused(
                "the mirror cannot go on from there",
                where=str(source),
                why=base.why,
                hint=_instead(here, there, base.hint),
            )
        if pending is not None:
            recovery.drop(mirror, pending)
        with source.lock(f"mirrord {Verb.CHANGE_SOURCE.value} {mirror.name}"):
            source.pin(mirror.id, [base.guid])
        before = mirror.definition.source
        definition = mirror.definition._replace(source=endpoint)
        agreed = replace(mirror.relation, definition=definition)
        moved = Mirror(agreed, Ends(source, mirror.destination), mirror.context)
        relation.begin_epoch(moved, relation.next_epoch(mirror), Intent.MIRRORED)
        site = mirror.definition.source_site
        mirror.relation.definitions.set_endpoint(mirror.name, site, endpoint)
        mirror.catalogue.add_event(
            mirror.id, "info", f"the source is {endpoint} now; before: {before}"
        )
        # The one before is often lost: nobody waits for it long.
        with mirror.waiting.hurried(LOOK_S):
            trouble = _let_go(mirror, mirror.source) if before != endpoint else []
        return Result(
            "done",
            "\n".join(
                [
                    f"'{mirror.name}' goes on from {endpoint}: the base {base.name} is there.",
                    *trouble,
                    f"Next: 'mirrord update {mirror.name}'.",
                ]
            ),
            {"source": str(endpoint), "before": str(before), "base": base.name},
        )


def _let_go(mirror: Mirror, source: Members) -> list[str]:
    said = pinning.give_up(mirror, source), relation.give_up(mirror, source)
    return [text for text in said if text]


def _instead(here: list[Snapshot], there: list[Snapshot], hint: str) -> str:
    common = plan.newest_complete_set(here, there)
    if common is None:
        return hint
    return (
        f"Both have {common.name}: bring the destination back to it there, or keep more snapshots "
        "at the source (`keep` of its site) so that the base is among them."
    )
