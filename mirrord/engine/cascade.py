"""Cascades: a destination is the source of a further mirror, A -> B -> C.

C receives what B shows: no snapshot is taken, and the mirror to C deletes none of B's. Snapshots
keep their identity along the cascade, so C has the same snapshots as A, and can be updated from A
when B is lost (ONTAP: resync of a cascade whose middle volume is gone).
"""

from __future__ import annotations

from mirrord.core.errors import Diverged, Refused
from mirrord.core.model import Definition, Endpoint, Role, Snapshot, VolumeFacts
from mirrord.core.relationship import Intent
from mirrord.core.results import Result
from mirrord.core.states import Verb
from mirrord.drivers.contract import Driver
from mirrord.drivers.refusals import same_volume
from mirrord.engine import pinning, plan, recovery, relation
from mirrord.engine.members import Members
from mirrord.engine.mirror import Mirror, check_source
from mirrord.engine.parts import Ends
from mirrord.system.waiting import LOOK_S


def passed_on(mirror: Mirror) -> Snapshot | None:
    """What the source shows when it is itself the destination of a mirror; None when it is not."""
    facts = mirror.source.facts()
    if facts.role is not Role.MIRROR or facts.mirror_id == mirror.id:
        return None
    check_source(facts, str(mirror.source), mirror.id)
    for snapshot in mirror.source.snapshots():
        if snapshot.guid == facts.shown and snapshot.intact:
            return snapshot
    raise Diverged(
        "the snapshot that the source shows cannot be replicated",
        where=str(mirror.source),
        why="it was deleted or made writable",
        hint="First update the mirror that has this source as its destination.",
    )


def rolled_back_error(mirror: Mirror, snapshot: Snapshot) -> Refused:
    """The source shows something older than the destination does."""
    return Refused(
        "the source was rolled back to an older snapshot",
        where=str(mirror.source),
        why=f"it shows {snapshot.name}, which the destination already has",
        hint="Update the mirror that has this source as its destination. Or roll this mirror's "
        f"destination back to that snapshot as well: 'mirrord resync {mirror.name}'.",
    )


def refuse_members(definition: Definition) -> None:
    """`Refused` where the source is not one volume."""
    if definition.members:
        raise Refused(
            "a mirror with [[member]] tables has more than one source volume",
            where=f"mirror '{definition.name}'",
            hint="Create a separate mirror for each volume.",
        )


def refuse_middle(mirror: Mirror) -> None:
    """`Refused` while the read-only destination is the source of another mirror of this host: when
    it belongs to no mirror any more, it shows nothing that could be replicated, and the source is
    about to lose the other mirror's base.
    """
    if Role.MIRROR not in mirror.destination.roles():
        return
    ends = set(map(str, mirror.destination.drivers))
    pinned = pinning.of_others(mirror, mirror.destination.snapshots())
    ids = {mirror_id for by in pinned.values() for mirror_id in by}
    others = [
        one.name
        for one in mirror.relation.definitions.all()
        if one.id in ids or not ends.isdisjoint(str(pair.source) for pair in one.pairs)
    ]
    if others:
        raise Refused(
            "the destination is the source of another mirror",
            where=str(mirror.destination),
            why=f"{', '.join(others)} replicates what it shows, and could not continue",
            hint=f"Run 'mirrord break {mirror.name}' first: {others[0]} then continues from the "
            f"writable destination. Or let it continue from {mirror.source}: 'mirrord "
            f"change-source {others[0]} {mirror.source}'.",
        )


def refuse_turn(mirror: Mirror, facts: VolumeFacts) -> None:
    """`Refused` while other mirrors have the source, which is to become this one's destination."""
    where, ends = str(mirror.source), {pair.source for pair in mirror.definition.pairs}
    every = [one for one in mirror.relation.definitions.all() if one.id != mirror.id]
    pairs = [(one.name, pair) for one in every for pair in one.pairs]
    name = next((name for name, pair in pairs if pair.destination in ends), "")
    if name or facts.role is Role.MIRROR:
        hint = "Run 'mirrord break' for that mirror first, on the host that controls it."
        if name:
            first = f"'mirrord break {name}', then " if facts.role is Role.MIRROR else ""
            hint = (
                f"It must not have that destination any more: {first}'mirrord delete {name}' (no "
                "volume is removed). Or resync instead."
            )
        other = f"'{name}'" if name else "another mirror"
        raise Refused(
            "the source cannot become a destination of this mirror",
            where=where,
            why=f"it is the destination of {other}",
            hint=hint,
        )
    names = dict.fromkeys(name for name, pair in pairs if pair.source in ends)
    if names:
        raise Refused(
            "the source has other mirrors",
            where=where,
            why=f"{', '.join(names)} would have no source",
            hint="Delete them first (their destinations are not changed), or resync instead.",
        )


def _refuse_ring(mirror: Mirror, endpoint: Endpoint) -> None:
    """`Refused` when the new source gets its content from this mirror's destination: no update
    would ever change any of them.
    """
    every = [one for one in mirror.relation.definitions.all() if one.id != mirror.id]
    upstream = {pair.destination: pair.source for one in every for pair in one.pairs}
    at = endpoint
    while at in upstream:
        at = upstream.pop(at)
        if at == mirror.definition.destination:
            raise Refused(
                "the new source gets its content from the destination of this mirror",
                where=str(endpoint),
                hint=f"Break the mirror that has {endpoint} as its destination first: it is then "
                "writable, and independent.",
            )


def change_source(mirror: Mirror, endpoint: Endpoint, driver: Driver) -> Result:
    """Switch the mirror to another source that has its base: the next update is incremental.

    `Refused` when it does not have the base; nothing was changed then.
    """
    source = Members([driver])
    with mirror.hold(Verb.CHANGE_SOURCE):
        pending = recovery.recover(mirror).pending
        mirror.permit(Verb.CHANGE_SOURCE)
        new, facts = source.facts(), mirror.destination.facts()
        check_source(new, str(source), mirror.id)
        if new.role is Role.MIRROR:
            _refuse_ring(mirror, endpoint)
        if new.identity and new.identity == facts.identity:  # under another name
            raise same_volume(str(source))
        here, there = source.snapshots(), mirror.destination.snapshots()
        base = plan.find_base(mirror.name, here, there, facts.shown or facts.origin or "")
        if isinstance(base, plan.Conflict):
            raise Refused(
                "the mirror cannot continue from that source",
                where=str(source),
                why=base.why,
                hint=_conflict_hint(here, there, base.hint),
            )
        recovery.drop(mirror, pending)
        with source.lock(f"mirrord {Verb.CHANGE_SOURCE.value} {mirror.name}"):
            source.pin(mirror.id, [base.guid])
        before = mirror.definition.source
        definition = mirror.definition._replace(source=endpoint)
        agreed = mirror.relation.defined(definition)
        moved = Mirror(agreed, Ends(source, mirror.destination), mirror.context)
        relation.begin_epoch(moved, relation.next_epoch(mirror), Intent.MIRRORED)
        site = mirror.definition.source_site
        mirror.relation.definitions.set_endpoint(mirror.name, site, endpoint)
        mirror.catalogue.add_event(mirror.id, "info", f"source changed from {before} to {endpoint}")
        # The previous source is often lost: do not wait for it long.
        trouble: list[str] = []
        with mirror.waiting.hurried(LOOK_S):
            if before != endpoint:
                removals = pinning.give_up, relation.give_up
                trouble = [give_up(mirror, mirror.source) for give_up in removals]
        return Result(
            "done",
            "\n".join(
                [
                    f"The source of '{mirror.name}' is now {endpoint}; it has the base "
                    f"{base.name}.",
                    *filter(None, trouble),
                    f"Next: 'mirrord update {mirror.name}'.",
                ]
            ),
            {"source": str(endpoint), "before": str(before), "base": base.name},
        )


def _conflict_hint(here: list[Snapshot], there: list[Snapshot], hint: str) -> str:
    common = plan.newest_complete_set(here, there)
    if common is None:
        return hint
    return (
        f"Both have {common.name}: roll the destination back to it, or keep more snapshots at the "
        "source (`keep` of its site) so that the base is among them."
    )
