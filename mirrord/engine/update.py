"""initialize and update: transfers from source to destination.

SnapMirror, FAST'02, 3.2.1 (initialize) and 3.2.2 (update). Each step is recorded before it takes
effect, the old view is kept until the commit, and after a failure it is all or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial

from mirrord.catalogue.store import Confirmed, TransferBegin
from mirrord.core.errors import (
    Aborted,
    Diverged,
    LinkLost,
    MirrordError,
    NotFound,
    Refused,
    TransferFailed,
    Unreachable,
)
from mirrord.core.model import Role, Snapshot
from mirrord.core.results import Result, UpdateNumbers
from mirrord.core.states import Activity, State, Verb
from mirrord.core.units import format_duration, format_size
from mirrord.drivers import refusals
from mirrord.drivers.refusals import not_a_mirror
from mirrord.engine import (
    cascade,
    half_switched,
    hooks,
    pausing,
    pinning,
    places,
    plan,
    prune,
    recovery,
    relation,
)
from mirrord.engine.cycle import Total, commit, prepare
from mirrord.engine.mirror import Mirror, check_destination, check_source
from mirrord.engine.recovery import Recovered
from mirrord.engine.ship import legs, ship
from mirrord.system import clock
from mirrord.system.waiting import HURRY_S


def initialize(mirror: Mirror) -> Result:
    """The first, full transfer: base reference snapshot, then all its blocks (FAST'02, 3.2.1)."""
    with mirror.hold(Verb.INITIALIZE) as stack:
        recovered = recovery.recover(mirror)
        if recovered.finished == Verb.INITIALIZE.value:
            pinning.renew(mirror)
            return Result(
                "done", f"'{mirror.name}' is initialized: an interrupted transfer was complete."
            )
        mirror.permit(Verb.INITIALIZE)
        mirror.catalogue.add_mirror(mirror.id, State.UNINITIALIZED)
        _check_source(mirror)
        places.check_destination_mounted(mirror)
        prepared = mirror.destination.facts().role is Role.MIRROR
        mirror.destination.prepare(mirror.id)
        if not prepared:
            stack.enter_context(mirror.destination.lock(f"mirrord initialize {mirror.name}"))
        places.remember(mirror)
        return update_held(mirror, recovered, verb=Verb.INITIALIZE)


def update(mirror: Mirror) -> Result:
    """Bring the destination up to the source as it is now (FAST'02, 3.2.2)."""
    with mirror.hold(Verb.UPDATE):
        recovered = recovery.recover(mirror)
        mirror.permit(Verb.UPDATE)
        return update_held(mirror, recovered)


def update_held(
    mirror: Mirror, recovered: Recovered, *, verb: Verb = Verb.UPDATE, replaced: bool = False
) -> Result:
    """An update, or the first transfer, by a caller that already holds the mirror. replaced: accept
    another volume in the place of the source.
    """
    started_s, total = clock.monotonic_s(), Total()
    _demand_proof(mirror)
    pending = recovered.pending
    if pending is not None:
        _finish_pending(mirror, pending, total)
        if pending.show and verb is Verb.INITIALIZE:
            pinning.renew(mirror)
            return _done(mirror, pending.snapshot, total, started_s)
    shown = _shown(mirror)
    there, here = mirror.destination.snapshots(), mirror.source.snapshots()
    if mirror.outdated([*here, *there]):
        mirror.permit(verb)
    base = _base(mirror, here, there, shown, first=verb is Verb.INITIALIZE)
    received = {one.guid for one in there}
    if base is not None and not replaced:
        check_descent(mirror, here, received)
    here = prune.drop_aborted(mirror, here, there, base)
    own = mirror.source.own_snapshots(mirror.definition.snapshots)
    asked_ns = clock.now_ns()
    if base is not None and base.guid == shown and not _has_changes(mirror, base, own, received):
        if pending is None:
            # Of an unknown transfer: the catalogue was lost, or is an older one. (A transfer
            # discards all others itself.)
            for staging in mirror.destination.stagings():
                mirror.destination.discard(staging.transfer_id)
        total.prune_refused = _finish_cleanup(mirror, base, here, there)
        if total.transfers:
            return _done(mirror, base, total, started_s)
        return _unchanged(mirror, base, asked_ns, total, started_s)
    with hooks.around(mirror, "snapshot") as hook_facts, total.timing("snapshot"):
        incremental, sequence = _take(mirror, verb, received)
        hook_facts["snapshot"] = incremental.name
    steps = plan.plan_steps(base, incremental, own, received)
    try:
        with hooks.around(mirror, "transfer", snapshot=incremental.name) as hook_facts:
            for step in steps:
                _cycle(mirror, _begun(mirror, verb, step, sequence), total)
            hook_facts["bytes"] = str(total.stream_bytes)
    except (NotFound, Diverged) as error:
        better = _vanished(mirror, own) or error
        _settle(mirror, better)
        raise better from error
    except BaseException as error:
        _settle(mirror, error)
        raise
    sent = [step.snapshot for step in steps]
    with total.timing("prune"):
        total.prune_refused = prune.prune(
            mirror, [*here, incremental], [*there, *sent], shown=incremental.guid
        )
    return _done(mirror, incremental, total, started_s)


def _begun(mirror: Mirror, verb: Verb, step: plan.Step, sequence: int) -> TransferBegin:
    full_reason = "the destination has no complete snapshot to update from"
    if verb is Verb.INITIALIZE:
        full_reason = "first transfer"
    return TransferBegin(
        os.urandom(8).hex(),
        verb.value,
        step.base,
        "" if step.base else full_reason,
        step.snapshot,
        sequence,
        step.show,
        str(mirror.source),
        mirror.source.spread_ms(step.snapshot.guid),
        mirror.source.pauses.get(step.snapshot.guid),
    )


def check_descent(mirror: Mirror, here: list[Snapshot], common: set[str]) -> None:
    """`Diverged` when the live volume at the source is not the one that is mirrored."""
    why = plan.unrelated_reason(here, common)
    if why:
        several = bool(mirror.definition.members)
        raise refusals.replaced(_replaced(mirror, common), why, is_member=several)


def _replaced(mirror: Mirror, common: set[str]) -> str:
    """The members at the source that are not what is mirrored."""
    source = mirror.source
    found = [
        str(driver)
        for driver, *guids in zip(source.drivers, *map(source.parts, common), strict=True)
        if any(one.unrelated and one.guid in guids for one in driver.snapshots())
    ]
    return ", ".join(found) or str(source)


def _check_source(mirror: Mirror) -> None:
    """Refuse a source that cannot be mirrored, with the best explanation."""
    facts = mirror.source.facts()
    if facts.role is not Role.MIRROR:
        places.check_mounted(mirror)
    # (Only what is said of a missing source depends on it: an update reads no row for that.)
    gone = facts.role in (Role.ABSENT, Role.FOREIGN)
    initialized = gone and mirror.row().state is not State.UNINITIALIZED
    check_source(facts, str(mirror.source), mirror.id, initialized=initialized)
    half_switched.refuse_half_restored(mirror)


def _finish_cleanup(
    mirror: Mirror, base: Snapshot, here: list[Snapshot], there: list[Snapshot]
) -> str:
    """Do what the last update may have left undone, and read no more than that needs."""
    definition = mirror.definition
    if _left_over(definition.keep_source, here) or _left_over(definition.keep_destination, there):
        return prune.prune(mirror, here, there, shown=base.guid)
    pinning.settle(mirror, here, there)
    return ""


def _left_over(keep: int | str, snapshots: list[Snapshot]) -> bool:
    """Whether the last prune may have left something: it was interrupted, or refused."""
    return isinstance(keep, str) or len(snapshots) > keep


def _vanished(mirror: Mirror, own: list[Snapshot]) -> MirrordError | None:
    """The better explanation when a user snapshot was deleted before it was replicated."""
    left = {snapshot.guid for snapshot in mirror.source.own_snapshots(mirror.definition.snapshots)}
    gone = [snapshot.name for snapshot in own if snapshot.guid not in left]
    if not gone:
        return None
    return TransferFailed(
        "a user snapshot was deleted before it was replicated",
        where=str(mirror.source),
        why=f"{gone[0]} was deleted at the source",
        hint=f"'mirrord update {mirror.name}' continues without it.",
    )


def _demand_proof(mirror: Mirror) -> None:
    if mirror.definition.verify.updates:
        from mirrord.engine import proof  # (slow to load, and rarely needed)

        proof.demand(mirror)


def _finish_pending(mirror: Mirror, pending: TransferBegin, total: Total) -> None:
    """Resume an interrupted transfer from its checkpoint."""
    try:
        _cycle(mirror, pending, total, held=mirror.destination.held(pending.snapshot.name))
        if not pending.show:
            recovery.end_owners(mirror)
    except BaseException as error:
        _settle(mirror, error)
        raise


def _cycle(
    mirror: Mirror, begun: TransferBegin, total: Total, *, held: Collection[str] = ()
) -> None:
    """Ship and commit one set, and record it. held: what members of the destination have already
    committed of it.
    """
    mirror.catalogue.begin_transfer(mirror.id, begun)
    routes = mirror.routes(partial(prune.make_room, mirror, base=begun.base))
    found = legs(routes, begun.base, begun.snapshot, held=held)
    outcome = ship(found, begun.id, run=mirror.run, watcher=mirror.watcher)
    verified = None
    if mirror.definition.verify.updates:
        from mirrord.engine import proof

        with total.timing("verify"):
            verified = proof.prove(mirror, begun, found)
    mirror.watcher.activity(Activity.COMMITTING, begun.snapshot.name)
    mirror.run.enter(Activity.COMMITTING)
    commit(begun, outcome, total, mirror.destination, mirror.catalogue, mirror.id)
    if verified is not None:
        mirror.catalogue.add_verification(mirror.id, verified)
    if begun.show and mirror.relation.known is None:
        relation.ensure(mirror)


def _settle(mirror: Mirror, error: BaseException) -> None:
    """Clean up after a failure now, by the same code that does it after a crash."""
    if isinstance(error, Exception | KeyboardInterrupt):
        mirror.run.begin(Activity.ABORTING)  # clears a request to abort: clean up
        broken = isinstance(error, Aborted | KeyboardInterrupt | LinkLost | Unreachable)
        try:
            with mirror.waiting.hurried(HURRY_S if broken else 0):
                recovery.recover(mirror, error)
        except (MirrordError, OSError) as second:
            error.add_note(f"cleanup failed too, the next command will do it: {second}")


def _shown(mirror: Mirror) -> str | None:
    facts = mirror.destination.facts()
    check_destination(facts, mirror)
    if facts.role is not Role.MIRROR:
        if mirror.reconciled(facts):
            mirror.permit(Verb.UPDATE)  # raises what applies to the corrected state
        raise not_a_mirror(str(mirror.destination))
    return facts.shown


def _base(
    mirror: Mirror, here: list[Snapshot], there: list[Snapshot], shown: str | None, *, first: bool
) -> Snapshot | None:
    found = plan.find_base(mirror.name, here, there, shown)
    if isinstance(found, plan.Conflict):
        if shown is None and (first or not any(map(plan.usable, there))):
            return None  # there is no copy that a full transfer could replace
        intact = any(one.guid == shown and one.intact for one in there)
        left = mirror.source.base_left(shown) if shown and intact else None
        if left is not None:
            return left
        _check_source(mirror)  # a missing source is the better explanation
        raise Diverged(
            "no update is possible",
            where=f"mirror '{mirror.name}'",
            why=found.why,
            hint=found.hint,
        )
    return found


def _has_changes(mirror: Mirror, base: Snapshot, own: list[Snapshot], there: set[str]) -> bool:
    """Whether there is anything to transfer. Checked before a snapshot is taken."""
    if any(snapshot.order > base.order and snapshot.guid not in there for snapshot in own):
        return True
    try:
        return mirror.source.changed_since(base.guid)
    except Refused:
        upstream = cascade.passed_on(mirror)
        if upstream is not None:
            return upstream.guid != base.guid
        _check_source(mirror)
        raise


def _take(mirror: Mirror, verb: Verb, there: set[str]) -> tuple[Snapshot, int]:
    """Take the incremental set; returns it with its number."""

    def take(name: str) -> Snapshot:
        snapshot, passed_on = _taken(mirror, name)
        if passed_on and snapshot.guid in there:
            raise cascade.rolled_back_error(mirror, snapshot)
        if passed_on:  # it is another mirror's, and must be kept until it is transferred
            pinning.add(mirror, [mirror.source], [snapshot.guid])
        return snapshot

    try:
        return prepare(verb, there, take, mirror.catalogue, mirror.id)
    except BaseException as error:
        _settle(mirror, error)
        raise


def _taken(mirror: Mirror, name: str) -> tuple[Snapshot, bool]:
    """The incremental; True: it was not taken by this mirror, but is replicated in a cascade."""
    try:
        return pausing.take(mirror, name), False
    except Refused:
        upstream = cascade.passed_on(mirror)
        if upstream is None:
            _check_source(mirror)  # a missing member is the better explanation
            raise
        return upstream, True


def _unchanged(
    mirror: Mirror, base: Snapshot, asked_ns: int, total: Total, started_s: float
) -> Result:
    mirror.catalogue.set_confirmed(mirror.id, Confirmed(base.guid, asked_ns))
    duration_s = round(clock.monotonic_s() - started_s, 6)
    numbers = UpdateNumbers(asked_ns, total.prune_refused, duration_s=duration_s)
    return Result(
        "unchanged",
        f"'{mirror.name}' is up to date: the source has not changed since {base.name}.",
        {"base": base.name, **numbers.document()},
        numbers,
    )


def _done(mirror: Mirror, snapshot: Snapshot, total: Total, started_s: float) -> Result:
    duration_s = clock.monotonic_s() - started_s
    rate = total.stream_bytes / duration_s if duration_s > 0 else 0
    resumed = f", resumed after {format_size(total.resumed_bytes)}" if total.resumed_bytes else ""
    refused = f"\nNote: pruning was refused: {total.prune_refused}." if total.prune_refused else ""
    pause = mirror.source.pauses.get(snapshot.guid)
    paused = (
        f"\nWarning: may still be paused: {pause.problems}." if pause and pause.problems else ""
    )
    numbers = UpdateNumbers(
        confirmed_ns=snapshot.taken_at_ns,
        prune_refused=total.prune_refused,
        snapshot=snapshot.name,
        transfers=total.transfers,
        stream_bytes=total.stream_bytes,
        added_bytes=total.added_bytes,
        resumed_bytes=total.resumed_bytes,
        duration_s=round(duration_s, 6),
        throttled_s=round(total.throttled_s, 6),
        phases={phase: round(spent_s, 6) for phase, spent_s in total.phases.items()},
        block_states=total.block_states,
        pause_s=pause.longest_ms / 1000 if pause else None,
        not_resumed=pause.problems if pause else "",
    )
    return Result(
        "done",
        f"'{mirror.name}' now shows {snapshot.name}: {format_size(total.stream_bytes)} in "
        f"{format_duration(duration_s)} ({format_size(rate)}/s){resumed}.{refused}{paused}",
        numbers.document(),
        numbers,
    )
