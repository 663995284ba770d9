"""Which reference snapshots are deleted, at both ends, and why the others are kept.

Never the base, never another mirror's, never because of a clock: order is the volume's own
sequence. A prune that would delete more than the definition's share, or that may be caused by a
clock that jumped, is refused until it is confirmed (`mirrord prune NAME --accept`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from mirrord.core.errors import Busy, MirrordError, Refused, Unsupported, Untrusted
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.core.names import sequence_of
from mirrord.core.results import Document, Result
from mirrord.core.states import Verb
from mirrord.core.units import counted, format_size
from mirrord.drivers.contract import Driver
from mirrord.engine import pinning, plan, recovery
from mirrord.engine.joint import deletions
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system import clock

#: A prune of at most this many is not checked against the share.
_FEW = 3
#: An event that is among so many of the last ones is not repeated.
_TOLD = 20
_ROOM_WAIT_S = 30.0
_POLL_S = 0.5


class End(NamedTuple):
    """One end with what is deleted and what is kept there.

    why: guid -> reasons, for people. doubts: why nothing is deleted although it should be. every:
    gone and kept together, oldest first.
    """

    name: str
    driver: Driver
    gone: list[Snapshot]
    why: Mapping[str, tuple[str, ...]]
    doubts: list[str]
    every: list[Snapshot]

    @property
    def kept(self) -> list[Snapshot]:
        """What is not deleted."""
        return [one for one in self.every if one not in self.gone]


def prune(mirror: Mirror, here: list[Snapshot], there: list[Snapshot], *, shown: str) -> str:
    """Pin at both ends what the next update needs (pinning.py); then delete reference snapshots
    beyond what the definition keeps, never the base.

    here, there: what source and destination have, oldest first. Returns why it was refused, or
    "". A failure here is an event, not an error: the update is committed and the next one prunes.
    """
    base = {shown: "it is the base of the next update"}
    others = _bases_of_others(mirror)
    doubts: list[str] = []
    with mirror.failure_noted("pruning failed"):
        ends = _look_at_both(mirror, here, there, others | base)
        for end in reversed(ends):
            doubts += [f"at the {end.name}: {doubt}" for doubt in end.doubts]
        certain = [end for end in ends if not end.doubts and not end.driver.append_only]
        in_use = _delete(mirror, certain, here, there)
        in_use |= _delete_left_over(mirror, here, there)
        if in_use:
            told = {event.text for event in mirror.catalogue.events(mirror.id, limit=_TOLD)}
            for text in set(in_use.values()) - told:
                mirror.catalogue.add_event(mirror.id, "warning", text)
        left = in_use.keys() | {
            s.guid for end in ends for s in (end.every if end.doubts else end.kept)
        }
        left |= {s.guid for s in (*here, *there) if s.kind is not SnapshotKind.REFERENCE}
        mirror.catalogue.keep_snapshots(mirror.id, left)
    return "; ".join(doubts)


def _look_at_both(
    mirror: Mirror,
    here: Sequence[Snapshot],
    there: Sequence[Snapshot],
    protected: Mapping[str, str],
    names: Mapping[str, str] | None = None,
) -> list[End]:
    """Source and destination. protected: what is kept at both. names: as of `pinning.reasons`."""
    for_source = pinning.reasons(mirror, here, there, names) | origin(mirror, here)
    for_destination = pinning.reasons(mirror, there, here, names)
    return [
        look(mirror, "source", here, protected={**for_source, **protected}),
        look(mirror, "destination", there, protected={**for_destination, **protected}),
    ]


def look(
    mirror: Mirror, name: str, snapshots: Sequence[Snapshot], *, protected: Mapping[str, str]
) -> End:
    """What would be deleted at one end, changing nothing."""
    definition, driver = mirror.definition, mirror.destination
    keep = definition.keep_destination
    if name == "source":
        driver, keep = mirror.source, definition.keep_source
    mine = mirror.catalogue.snapshots(mirror.id, at=str(driver) if name == "source" else "")
    if isinstance(keep, int):
        gone = plan.plan_prune(snapshots, keep=keep, mine=mine, protected=protected.keys())
        why: dict[str, tuple[str, ...]] = {}
        for snapshot in snapshots:
            reasons = (protected[snapshot.guid],) if snapshot.guid in protected else ()
            why[snapshot.guid] = (*reasons, f"one of the newest {keep}")
        why |= {snapshot.guid: (f"older than the newest {keep}",) for snapshot in gone}
        doubts: list[str] = []
    else:
        gone, why, doubts = _by_rules(mirror, snapshots, keep, mine, protected)
    candidates = [s for s in snapshots if s.kind is SnapshotKind.REFERENCE and s.guid in mine]
    if len(gone) > _FEW and len(gone) > definition.prune_share * len(candidates):
        doubts.append(
            f"{len(gone)} of {len(candidates)} snapshots would be deleted, more than prune_share = "
            f"{definition.prune_share:g} allows"
        )
    return End(name, driver, gone, why, doubts if gone else [], candidates)


def _by_rules(
    mirror: Mirror,
    snapshots: Sequence[Snapshot],
    keep: str,
    mine: Mapping[str, tuple[str, SnapshotKind, int]],
    protected: Mapping[str, str],
) -> tuple[list[Snapshot], dict[str, tuple[str, ...]], list[str]]:
    from mirrord.schedules import retention

    by_guid = {s.guid: s for s in snapshots if s.kind is SnapshotKind.REFERENCE and s.guid in mine}
    # Their order is that of the list: `Snapshot.order` is relative to one volume's history, and a
    # snapshot that was just sent still has its number from the source.
    items = [
        retention.Item(s.guid, s.name, number, s.taken_at_ns)
        for number, s in enumerate(by_guid.values())
    ]
    zone = mirror.definition.timing.zone or mirror.relation.zone
    verdicts = retention.plan_retention(
        items, retention.parse_keep(keep), zone=zone, protected=protected
    )
    gone = [by_guid[verdict.item.guid] for verdict in verdicts if not verdict.kept]
    accepted = mirror.row().accepted
    accepted_order = max(
        # (0: a lost catalogue was rebuilt. Nothing is known of what was accepted then.)
        (item.order for item in items if 0 < mine[item.guid][2] <= accepted),
        default=-1,
    )
    doubt = retention.clock_doubt(verdicts, now_ns=clock.now_ns(), accepted_order=accepted_order)
    doubts = [doubt] if doubt else []
    if gone and (jump := mirror.catalogue.fact("clock_doubt")):
        doubts.append(f"the clock of this host jumped: {jump['text']}")
    return gone, {verdict.item.guid: verdict.why for verdict in verdicts}, doubts


def _delete(
    mirror: Mirror, ends: Sequence[End], here: Sequence[Snapshot], there: Sequence[Snapshot]
) -> dict[str, str]:
    """Pin at both ends what is needed from now on; then delete at the given ends. Returns as
    `_delete_at`.
    """
    gone = {end.name: end.gone for end in ends}
    from_source, from_destination = gone.get("source", []), gone.get("destination", [])
    pins = pinning.wanted(mirror, here, there)
    pinning.replace(mirror, mirror.destination, there, pins.destination)
    begin = partial(_begin_at, mirror, mirror.destination, from_destination, pins.destination)
    if not from_source and not pinning.differs(mirror, here, pins.source):
        return begin()()
    with mirror.source_locked():
        pinning.replace(mirror, mirror.source, here, pins.source)
        finish = begin()  # both ends have their pins
        passed = [one for one in from_source if not sequence_of(one.name, mirror.id)]
        if passed and mirror.source.facts().role is not Role.LIVE:
            # A cascade: what the upstream mirror took is pruned by that.
            from_source = [one for one in from_source if one not in passed]
            guids = [one.guid for one in passed]
            mirror.catalogue.leave(mirror.id, str(mirror.source), guids)
        in_use = _delete_at_source(mirror, from_source, pins.source)
    return in_use | finish()


def _delete_left_over(
    mirror: Mirror, here: Sequence[Snapshot], there: Sequence[Snapshot]
) -> dict[str, str]:
    """Finish deletions that were interrupted between two members. Returns as `_delete_at`."""
    newest, in_use = plan.newest_complete_set(here, there), {}
    if not mirror.destination.append_only:
        gone = plan.left_over(there, mirror.id, newest)
        in_use = _delete_at(mirror, mirror.destination, gone, ())
    if rest := plan.left_over(here, mirror.id, newest):
        with mirror.source_locked():
            if mirror.source.facts().role is Role.LIVE:
                in_use |= _delete_at(mirror, mirror.source, rest, ())
    return in_use


def drop_aborted(
    mirror: Mirror, here: list[Snapshot], there: list[Snapshot], base: Snapshot | None
) -> list[Snapshot]:
    """Delete sets of the source that an earlier cycle could not delete when it was aborted; returns
    what the source has then.
    """
    gone = plan.aborted(here, there, mirror.id, base)
    if not gone:  # most often, and without asking the catalogue
        return here
    known = {name for name, _, _ in mirror.catalogue.snapshots(mirror.id).values()}
    gone = [one for one in gone if one.name not in known]
    if not gone:
        return here
    with mirror.failure_noted("the snapshots of an aborted set were not deleted"):
        with mirror.source_locked():
            guids = [one.guid for one in gone]
            shared = mirror.catalogue.others(mirror.id, str(mirror.source), guids)
            gone = [one for one in gone if one.guid not in shared]
            if not gone or mirror.source.facts().role is not Role.LIVE:
                return here
            in_use = _delete_at(mirror, mirror.source, gone, ())
            gone = [one for one in gone if one.guid not in in_use]
        names = ", ".join(one.name for one in gone)
        text = f"the snapshots of an aborted set were deleted: {names}"
        mirror.catalogue.add_event(mirror.id, "info", text)
        return [one for one in here if one not in gone]
    return here


def _delete_at_source(
    mirror: Mirror, gone: Sequence[Snapshot], pinned: Sequence[str]
) -> dict[str, str]:
    guids = [snapshot.guid for snapshot in gone]
    # One that several mirrors share is deleted by the last of them.
    others = mirror.catalogue.others(mirror.id, str(mirror.source), guids)
    alone = [snapshot for snapshot in gone if snapshot.guid not in others]
    in_use = _delete_at(mirror, mirror.source, alone, pinned)
    if others:
        mirror.catalogue.leave(mirror.id, str(mirror.source), others)
    return in_use


def _delete_at(
    mirror: Mirror, driver: Driver, gone: Sequence[Snapshot], pinned: Sequence[str]
) -> dict[str, str]:
    """Delete all but those in use; returns these: guid -> why. pinned: what the mirror has pinned
    there, which may include what is to be deleted.
    """
    return _begin_at(mirror, driver, gone, pinned)()


def _begin_at(
    mirror: Mirror, driver: Driver, gone: Sequence[Snapshot], pinned: Sequence[str]
) -> Callable[[], dict[str, str]]:
    """Begin `_delete_at`; calling the result completes it. A remote end begins at once."""
    guids = [snapshot.guid for snapshot in gone if snapshot.guid]
    if not set(guids).isdisjoint(pinned):
        driver.pin(mirror.id, [guid for guid in pinned if guid not in guids])
    deletes = deletions([(driver, guid) for guid in guids])

    def finish() -> dict[str, str]:
        in_use = {}
        for guid, delete in zip(guids, deletes, strict=True):
            try:
                delete()
            except Busy as error:
                in_use[guid] = one_line(error)
        return in_use

    return finish


def make_room(mirror: Mirror, member: int, need_bytes: int, *, base: str | None) -> None:
    """Prune a member of the destination that is too small for a transfer, and wait for the space.
    Other members may be receiving: what they have of the same sets is deleted later.

    The file system may release space only some time after a deletion, so this waits for it.
    """
    facts, driver = mirror.destination.facts(), mirror.destination.drivers[member]
    if driver.append_only:
        return
    free_bytes = driver.facts().free_bytes
    there = mirror.destination.snapshots()
    protected = _bases_of_others(mirror) | pinning.reasons(mirror, there, ())
    protected |= {guid: "it is the base" for guid in (base, facts.shown) if guid}
    end = look(mirror, "destination", there, protected=protected)
    if not end.gone or end.doubts:
        return
    gone = [one._replace(guid=mirror.destination.parts(one.guid)[member]) for one in end.gone]
    pinned = [mirror.destination.parts(guid)[member] for guid in pinning.own(mirror, there)]
    _delete_at(mirror, driver, gone, list(filter(None, pinned)))
    mirror.catalogue.add_event(
        mirror.id,
        "info",
        f"pruned {counted(len(end.gone), 'snapshot')} first: {format_size(need_bytes)} needed, "
        f"{format_size(free_bytes)} free",
    )
    deadline_s = clock.monotonic_s() + _ROOM_WAIT_S
    while driver.facts().free_bytes < need_bytes:
        if clock.monotonic_s() > deadline_s:
            return
        mirror.run.check_abort()
        driver.reclaim()
        clock.sleep_s(_POLL_S)


def prune_now(mirror: Mirror, *, dry_run: bool, accept: bool) -> Result:
    """The verb: show what is deleted and why the rest is kept; then delete, unless `dry_run`.

    accept: the doubts were checked; the snapshots that exist now are trusted from now on.
    """
    with mirror.hold(Verb.PRUNE):
        recovery.recover(mirror)
        _check_there(mirror)
        here, there = mirror.source.snapshots(), mirror.destination.snapshots()
        ends = _look_at_both(mirror, here, there, _protected(mirror, here, there), _names(mirror))
        planned = [_without_used(end) for end in ends]
        data = {"dry_run": dry_run, "ends": {end.name: _end_document(end) for end in planned}}
        lines = [line for end in planned for line in _end_lines(end)]
        if dry_run:
            count = sum(len(end.gone) for end in planned)
            lines.append(f"{counted(count, 'snapshot')} would be deleted.")
            return Result("planned", "\n".join(lines), data)
        refused = [end for end in ends if end.doubts and not accept]
        in_use = _delete(mirror, [end for end in ends if end not in refused], here, there)
        in_use |= _delete_left_over(mirror, here, there)
        left = {s.guid for s in (*mirror.source.snapshots(), *mirror.destination.snapshots())}
        mirror.catalogue.keep_snapshots(mirror.id, left)
        every = [(end, one) for end in ends for one in end.gone]
        count = sum(end not in refused and one.guid not in in_use for end, one in every)
        if accept:
            mirror.catalogue.accept(mirror.id, mirror.row().sequence)
        if count:
            mirror.catalogue.add_event(mirror.id, "info", f"pruned {counted(count, 'snapshot')}")
        lines += [f"{counted(count, 'snapshot')} deleted.", *in_use.values()]
        if refused:
            lines.append(
                f"Nothing was deleted where there is doubt. To delete those, too: 'mirrord prune "
                f"{mirror.name} --accept'."
            )
        return Result("refused" if refused else "done", "\n".join(lines), data)


def unpin(mirror: Mirror, mirror_id: str) -> Result:
    """Remove the pins of a mirror that no longer exists at both ends."""
    with mirror.hold(Verb.PRUNE):
        name = _names(mirror).get(mirror_id)
        if name is not None:
            raise Refused(
                f"the mirror with the id {mirror_id} is still defined",
                where=f"mirror '{name}'",
                why="it needs what it has pinned, and would pin it again",
                hint=f"'mirrord release {name}' or 'mirrord delete {name}' removes its pins.",
            )
        found = {
            str(driver): pinning.remove(mirror, driver, mirror_id)
            for driver in (mirror.source, mirror.destination)
        }
        count = sum(found.values())
        if count:
            text = f"removed the pins of the mirror {mirror_id}"
            mirror.catalogue.add_event(mirror.id, "info", text)
        lines = [f"{end}: {counted(count, 'snapshot')} unpinned." for end, count in found.items()]
        return Result("done", "\n".join(lines), {"unpinned": found})


def _names(mirror: Mirror) -> dict[str, str]:
    return {one.id: one.name for one in mirror.relation.definitions.all()}


def _bases_of_others(mirror: Mirror) -> dict[str, str]:
    """The bases of mirrors further down a cascade (or of the same source), as far as this host's
    catalogue knows: the only protection for a mirror that has not pinned anything yet.
    """
    return dict.fromkeys(
        mirror.catalogue.bases_of_others(mirror.id), "it is the base of another mirror"
    )


def origin(mirror: Mirror, here: Sequence[Snapshot]) -> dict[str, str]:
    """The snapshot that the source's live volume began as, while another mirror continues from an
    older one: it alone shows that the volume descends from that (`unrelated` in core/model.py).
    """
    others = pinning.of_others(mirror, here)
    began = mirror.source.facts().origin if others else None
    guids = [one.guid for one in here]
    if began is None or began not in guids:
        return {}
    if others.keys().isdisjoint(guids[: guids.index(began)]):
        return {}
    return {began: "the source began as it, after the base of another mirror"}


def _check_there(mirror: Mirror) -> None:
    """Refuse while an end is missing: the common snapshots are not known then."""
    for driver in (mirror.source, mirror.destination):
        facts = driver.facts()
        if facts.role is Role.ABSENT:
            raise Refused(
                "nothing is pruned while an end is missing",
                where=str(driver),
                why=facts.notes[0] if facts.notes else "nothing is at that path",
                hint="Check that its file system is mounted; nothing was deleted.",
            )


def _protected(
    mirror: Mirror, here: Sequence[Snapshot], there: Sequence[Snapshot]
) -> dict[str, str]:
    pinned = {one.guid for one in (*here, *there) if set(one.pinned) - {mirror.id}}
    protected = {guid: why for guid, why in _bases_of_others(mirror).items() if guid not in pinned}
    common = plan.newest_complete_set(here, there)
    if common is not None:
        protected[common.guid] = "it is the base of the next update"
    try:
        shown = mirror.destination.facts().shown
    except MirrordError as error:
        mirror.catalogue.add_event(mirror.id, "warning", one_line(error))
        shown = None
    if shown:
        protected.setdefault(shown, "the destination shows it")
    return protected


def _without_used(end: End) -> End:
    """The same without what cannot be deleted because somebody uses it (as long as they do)."""
    if end.driver.append_only:
        return end
    used = {}
    for snapshot in end.gone:
        with suppress(Unsupported, Untrusted):  # an older mirrord; a prune does not delete it
            if why := end.driver.in_use(snapshot.guid):
                used[snapshot.guid] = (why,)
    gone = [one for one in end.gone if one.guid not in used]
    return end._replace(gone=gone, why={**end.why, **used})


def _end_document(end: End) -> Document:
    return {
        "volume": str(end.driver),
        "gone": [
            {"name": s.name, "guid": s.guid, "why": list(end.why.get(s.guid, ()))} for s in end.gone
        ],
        "kept": [
            {"name": s.name, "guid": s.guid, "why": list(end.why.get(s.guid, ()))} for s in end.kept
        ],
        "doubts": list(end.doubts),
    }


def _end_lines(end: End) -> list[str]:
    lines = [f"{end.name.capitalize()} {end.driver}:"]
    for snapshot in end.every:
        word = "delete" if snapshot in end.gone else "keep  "
        lines.append(f"  {word}  {snapshot.name}  {', '.join(end.why.get(snapshot.guid, ()))}")
    if not end.every:
        lines.append("  no snapshots of this mirror")
    lines.extend(f"  in doubt: {doubt}" for doubt in end.doubts)
    return lines
