"""break, resync and reverse: SnapMirror's disaster recovery (FAST'02, 3.2.3) and failback.

No data is overwritten: the losing side of a resync is kept as a `diverged` snapshot.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from mirrord.catalogue.arguments import Arguments
from mirrord.config.together import check_together
from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Diverged, MirrordError, Refused
from mirrord.core.model import Divergence, OpenWriter, Role, Snapshot
from mirrord.core.relationship import Intent
from mirrord.core.results import Document, Result
from mirrord.core.states import Activity, Already, State, Verb
from mirrord.drivers.contract import Driver, clones_of
from mirrord.drivers.refusals import nothing_shown
from mirrord.engine import (
    after_break,
    cascade,
    failover_steps,
    half_switched,
    pinning,
    plan,
    preempt,
    recovery,
    relation,
    rights,
)
from mirrord.engine.failover_steps import Finished
from mirrord.engine.members import Members
from mirrord.engine.mirror import (
    Mirror,
    check_destination,
    check_source,
    check_there,
    one_line,
    pick_snapshot,
    tolerated,
)
from mirrord.engine.parts import Ends
from mirrord.engine.planlines import (
    loss_lines,
    nested_lines,
    newer_lines,
    replaced_lines,
    writer_lines,
)
from mirrord.engine.recovery import Recovered
from mirrord.engine.update import update_held
from mirrord.system import clock, steps
from mirrord.system.waiting import LOOK_S


class FailbackPlan(NamedTuple):
    """What a resync, reverse or restore is going to do, to be confirmed.

    loser: the end that is rolled back to `base`; lost: what it has beyond that (None: nothing).
    writers: processes that have files of it open for writing. newer: names of snapshots that the
    source does not have, newer than `base`.
    """

    verb: Verb
    base: Snapshot
    loser: str
    lost: Divergence | None
    lines: tuple[str, ...]
    writers: tuple[OpenWriter, ...] = ()
    newer: tuple[str, ...] = ()

    def data(self) -> Document:
        """As `--json` prints it."""
        lost = self.lost
        return {
            "verb": self.verb.value,
            "base": self.base.name,
            "loser": self.loser,
            "lost_bytes": lost.changed_bytes if lost else 0,
            "lost_changes": lost.total_changes if lost else 0,
            "lost_files": [change.path for change in lost.changes or ()] if lost else [],
            "newer_snapshots": list(lost.newer_snapshots if lost else self.newer),
            "writers": [writer._asdict() for writer in self.writers],
            "plan": list(self.lines),
        }


def break_off(mirror: Mirror, *, snapshot: str | None = None) -> Result:
    """Make the destination writable, now, without the source; ends a running transfer first.

    snapshot: what it begins as; None: what it shows, or the newest intact one. It works as long as
    one snapshot is intact, whatever else is missing: what cannot be recorded is reported, and
    rediscovered from the volumes later.
    """
    whole = mirror.destination
    with ExitStack() as stack:
        stopped = stack.enter_context(preempt.first(mirror, Verb.BREAK))
        mirror = Mirror(mirror.relation, Ends(mirror.source, whole.mounted()), mirror.context)
        stack.enter_context(mirror.hold(Verb.BREAK))
        # A source that does not answer is the usual case here: do not wait for it.
        apart = mirror.source.remote and not mirror.destination.remote
        stack.enter_context(mirror.waiting.hurried(LOOK_S if apart else 0))
        there = mirror.destination.present()
        was_live = set(there.roles()) == {Role.LIVE}
        kept = half_switched.kept(mirror, mirror.catalogue.operation(mirror.id))
        trouble = half_switched.put_back(mirror, there)
        if there is whole:
            trouble += _settle_for_break(mirror)
        else:
            trouble += _without_lost(mirror, whole, there)
            mirror = Mirror(mirror.relation, Ends(mirror.source, there), mirror.context)
        facts = mirror.destination.facts()
        view = facts.view
        verdict = mirror.permit(Verb.BREAK)
        check_there(facts, mirror)
        if isinstance(verdict, Already) and was_live:
            if snapshot is not None:
                raise Refused(
                    "the destination is already writable",
                    where=view,
                    hint=f"Run 'mirrord resync {mirror.name}' first, then break at that snapshot.",
                )
            text = [f"'{mirror.name}' is already broken off.", *(f"Warning: {t}" for t in trouble)]
            return Result(verdict.status, "\n".join(text), {"view": view, "warnings": trouble})
        trouble += facts.data_missing
        chosen = pick_snapshot(mirror, snapshot) if snapshot is not None else None
        if chosen is not None:
            half_switched.check_begun(mirror, chosen)
        guid, epoch = chosen.guid if chosen else None, relation.next_epoch(mirror)
        arguments = Arguments(guid=guid or "", epoch=epoch)
        trouble += tolerated(lambda: mirror.catalogue.begin(mirror.id, "break", arguments))
        tolerated(lambda: relation.begin_epoch(mirror, epoch, Intent.BROKEN_OFF, alone=True))
        try:
            failover_steps.make_live(mirror.destination, guid)
        except (MirrordError, OSError):
            # Recovery must not do it later, unexpectedly.
            tolerated(lambda: mirror.catalogue.end(mirror.id))
            raise
        trouble += [
            f"what an interrupted command had set aside is kept as {name}"
            for name in sorted(half_switched.kept(mirror) - kept)
        ]
        end = partial(mirror.catalogue.end, mirror.id, state=State.BROKEN_OFF)
        trouble += tolerated(partial(end, event=("info", failover_steps.BROKEN_OFF)))
        tolerated(lambda: relation.ensure(mirror))
        note = " A running transfer was aborted first." if stopped else ""
        are = "are" if len(there.drivers) > 1 else "is"
        start = f" Its content is that of snapshot {chosen.name}." if chosen else ""
        trouble = list(dict.fromkeys(trouble))
        lines = [
            f"'{mirror.name}' is broken off: {view} {are} writable now.{start}{note}",
            *(f"Warning: {text}" for text in trouble),
            after_break.to_mirror_again(
                Mirror(mirror.relation, Ends(mirror.source, whole), mirror.context)
            ),
        ]
        return Result("done", "\n".join(lines), {"view": view, "warnings": trouble})


def _without_lost(mirror: Mirror, whole: Members, there: Members) -> list[str]:
    """Members of the destination are lost: the others begin as the newest set that any of them
    shows, which was complete. Sets that are only staged may not have reached the lost members.
    """
    lost = [str(one) for one in whole.drivers if one not in there.drivers]
    return [
        f"a member is lost and was not made writable: {', '.join(lost)}",
        *tolerated(lambda: mirror.catalogue.end(mirror.id)),
    ]


def _settle_for_break(mirror: Mirror) -> list[str]:
    """Clear an interrupted operation, so that it cannot interfere; returns what failed."""
    operation = mirror.catalogue.operation(mirror.id)
    if operation is None or operation.verb == Verb.BREAK.value:
        return tolerated(lambda: mirror.catalogue.end(mirror.id)) if operation else []
    if operation.verb in (Verb.RESYNC.value, Verb.REVERSE.value, Verb.RESTORE.value):
        # The source stays as the verb left it: it may be what failed.
        live = mirror.destination.facts().role is Role.LIVE
        event = ("warning", f"gave up an interrupted {operation.verb}: broken off")
        state = State.BROKEN_OFF if live else None
        failed = tolerated(partial(mirror.catalogue.end, mirror.id, state=state, event=event))
        return [f"the interrupted {operation.verb} was given up", *failed]

    def settle() -> None:
        recovery.drop(mirror, recovery.recover(mirror, without_source=True).pending)

    found = tolerated(settle)
    return found + tolerated(lambda: mirror.catalogue.end(mirror.id)) if found else []


def begin_test(mirror: Mirror, place: str) -> Result:
    """Make a writable copy of what the destination shows; the mirror stays as it is."""
    with mirror.hold(Verb.BREAK):
        mirror.permit(Verb.BREAK)
        facts = mirror.destination.facts()
        check_destination(facts, mirror)
        if facts.role is Role.LIVE:
            raise Refused(
                "the destination is already writable",
                where=facts.view,
                why=f"'{mirror.name}' is broken off; a copy is made of a read-only destination",
                hint=after_break.to_mirror_again(mirror),
            )
        if facts.role is not Role.MIRROR or not facts.shown:
            raise nothing_shown(str(mirror.destination))
        status = "already_there" if facts.copy else "done"
        if place:
            kind = mirror.definition.destination.kind
            place = parse_endpoint(f"{kind}:{place}", what="the copy's place").location
        made = clones_of(mirror.destination).begin_test(place)
        if status == "done":
            mirror.catalogue.add_event(mirror.id, "info", f"made the copy {made.location}")
    where = made.view or made.location
    return Result(
        status,
        f"{where} is a writable copy of what '{mirror.name}' shows; the mirror continues.\n"
        f"When you are done, 'mirrord break {mirror.name} --end-test' removes it.",
        {"view": made.view, "location": made.location},
    )


def end_test(mirror: Mirror) -> Result:
    """Remove the writable copy, with everything that was written to it."""
    with mirror.hold(Verb.BREAK):
        where = mirror.destination.facts().copy
        if not clones_of(mirror.destination).end_test():
            return Result("already_gone", f"'{mirror.name}' has no writable copy.")
        mirror.catalogue.add_event(mirror.id, "info", f"removed the copy {where}")
    return Result("done", f"The writable copy {where} of '{mirror.name}' is removed.")


def resync(mirror: Mirror, *, yes: bool, force: bool = False) -> Result:
    """Mirror again in the same direction, from the newest common snapshot.

    force: even when processes have files of the losing side open for writing.
    """
    with mirror.hold(Verb.RESYNC, activity=Activity.RESYNCING):
        recovered = recovery.recover(mirror)
        mirror.permit(Verb.RESYNC)
        check_source(mirror.source.facts(), str(mirror.source), mirror.id, initialized=True)
        half_switched.refuse_half_restored(mirror)
        if yes:  # all are set aside under one name
            half_switched.put_back(mirror, mirror.destination, strict=True)
        failback = _plan_resync(mirror)
        if not yes:
            return Result("confirmation-required", "\n".join(failback.lines), failback.data())
        if not force:
            failover_steps.refuse_writers(mirror.destination, mirror.name)
        recovery.drop(mirror, recovered.pending)
        begin_failback(mirror, failback, mirror.destination, Arguments())
        finished = carry_out(mirror)
        return _then_update(finished, failback)


def carry_out(mirror: Mirror) -> Finished:
    """Carry out the recorded verb; a failure before the switch leaves everything as it was."""
    try:
        steps.reached("ENGINE:SWITCH:CONFIRMED")
        return failover_steps.finish(mirror, failover_steps.begun(mirror))
    except BaseException as error:
        recovery.give_back(mirror, error)
        raise


def begin_failback(
    mirror: Mirror, failback: FailbackPlan, loser: Driver, arguments: Arguments
) -> None:
    """Record the confirmation, and a mark of the losing side at this moment: recovery finishes the
    verb by itself only while the mark still matches.

    The losing side is kept under a name with a sequence number that was never used before, so that
    no earlier diverged snapshot can be taken for this one.
    """
    arguments = arguments._replace(
        guid=failback.base.guid,
        base_name=failback.base.name,
        taken_ns=failback.base.taken_at_ns,
        mark=loser.mark(),
        epoch=relation.confirmed_epoch(mirror),
    )
    needed = {failback.base.guid} | ({arguments.base} if arguments.base else set())
    pinning.add(mirror, [mirror.destination, mirror.source], needed)
    name = partial(names.snapshot_name, mirror.id, clock.now_ns(), diverged=True)
    mirror.catalogue.begin(mirror.id, failback.verb.value, arguments, name=name)


def _plan_resync(mirror: Mirror) -> FailbackPlan:
    facts = mirror.destination.facts()
    check_destination(facts, mirror)
    here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    shown = cascade.passed_on(mirror)  # nothing newer is replicated
    common = _common(mirror, here, there, not_after=shown.guid if shown else None)
    where = str(mirror.destination)
    live = facts.role is Role.LIVE
    if live and facts.fixed:
        raise Refused(
            "the destination cannot be set aside",
            where=where,
            why=facts.fixed,
            hint=f"Rename {facts.view} (a mount point must be mounted elsewhere for that) and run "
            "the same command again: it makes a new view, and does not change what was renamed.",
        )
    lost = mirror.destination.divergence(common.guid) if live else None
    writers = tuple(mirror.destination.writers()) if live else ()
    newer = plan.only_there(here, there, common)
    lines = [
        f"resync '{mirror.name}': {mirror.source} is kept unchanged and overwrites {where}.",
        *replaced_lines(here, common),
        f"1. The destination is rolled back to {common.name}, the newest common snapshot.",
        *loss_lines(lost),
        *newer_lines(mirror.name, newer),
        *writer_lines(writers),
        "2. What changed at the source since then is transferred.",
    ]
    names_newer = tuple(one.name for one in newer)
    return FailbackPlan(Verb.RESYNC, common, where, lost, tuple(lines), writers, names_newer)


def reverse(mirror: Mirror, *, yes: bool, force: bool = False) -> Result:
    """Make the destination the source, and continue incrementally in the other direction.

    A working mirror loses no acknowledged write: the source is frozen, its last changes are
    transferred, and only then are the ends switched. force: even when processes have files of the
    old source open for writing.
    """
    with mirror.hold(Verb.REVERSE, activity=Activity.RESYNCING):
        recovered = recovery.recover(mirror)
        if recovered.finished == Verb.REVERSE.value:
            return turned(mirror)  # repeating the command must not reverse it a second time
        mirror.permit(Verb.REVERSE)
        _refuse_without_live(mirror)
        planned = mirror.row().state is State.MIRRORED
        if yes:  # the new source is of one moment
            half_switched.put_back(mirror, mirror.destination, strict=True)
        failback = _plan_reverse(mirror, planned=planned)
        if not yes:
            return Result("confirmation-required", "\n".join(failback.lines), failback.data())
        if not force:
            failover_steps.refuse_writers(mirror.source, mirror.name)
        if planned:
            update_held(mirror, recovered)
            failback = _plan_reverse(mirror, planned=planned)
        else:
            recovery.drop(mirror, recovered.pending)
        arguments = Arguments(
            new_source=str(mirror.definition.destination),
            new_destination=str(mirror.definition.source),
            planned=planned,
            force=force,
        )
        with mirror.source_locked():
            begin_failback(mirror, failback, mirror.source, arguments)
            finished = carry_out(mirror)
        return _then_update(finished, failback)


def _refuse_without_live(mirror: Mirror) -> None:
    """`Refused` when the mirror is broken off, but its writable volume was moved away or deleted:
    an older snapshot would become the source.
    """
    facts = mirror.destination.facts()
    if facts.role is Role.MIRROR and not facts.shown and mirror.row().state is State.BROKEN_OFF:
        raise Refused(
            "the destination is not writable",
            where=str(mirror.destination),
            why=f"its writable volume is missing: nothing is at {facts.view}",
            hint=f"Move it back. If it is lost, 'mirrord break {mirror.name}' makes another one "
            "from the newest snapshot.",
        )


def turned(mirror: Mirror) -> Result:
    """The result when an interrupted reverse was finished first."""
    return Result(
        "done",
        f"An interrupted reverse of '{mirror.name}' was finished: {mirror.source} is now the "
        "source.",
    )


def _plan_reverse(mirror: Mirror, *, planned: bool) -> FailbackPlan:
    source, destination = mirror.source, mirror.destination
    facts = source.facts()
    check_source(facts, str(source), mirror.id, initialized=True)
    check_destination(destination.facts(), mirror)
    cascade.refuse_turn(mirror, facts)
    if facts.fixed:
        raise MirrordError(
            "the source cannot become a destination",
            where=str(source),
            why=facts.fixed,
            hint=f"'mirrord resync {mirror.name}' mirrors again in the old direction. To mirror "
            f"the destination instead: 'mirrord break {mirror.name}', "
            f"{after_break.new_mirror(mirror, destination.facts())}.",
        )
    rights.check_turn(source, destination)
    every = mirror.relation.definitions.all()
    turned = mirror.relation.definitions.load(mirror.name, mirror.definition.destination_site)
    check_together([turned if one.id == mirror.id else one for one in every])
    common = _common(mirror, destination.snapshots(), source.snapshots())
    lost = None if planned else source.losses(common.guid)
    writers = tuple(source.writers())
    first = (
        [
            "1. An update transfers what has changed. Then the source is frozen, and what was "
            "written in the meantime is transferred."
        ]
        if planned
        else []
    )
    number = len(first)
    lines = [
        f"reverse '{mirror.name}': {destination} becomes the source, {source} the destination.",
        *first,
        *writer_lines(writers),
        f"{number + 1}. {destination} is made writable and is the source from then on.",
        f"{number + 2}. {source} is rolled back to {common.name}, the newest common snapshot, "
        "and is read-only from then on."
        if not planned
        else f"{number + 2}. {source} is read-only from then on.",
        *(loss_lines(lost) if not planned else ()),
        *nested_lines(facts),
        f"{number + 3}. What changed at the new source since then is transferred.",
        f"To switch back, run 'mirrord reverse {mirror.name}' again.",
    ]
    return FailbackPlan(Verb.REVERSE, common, str(source), lost, tuple(lines), writers)


def _common(
    mirror: Mirror, ours: list[Snapshot], theirs: list[Snapshot], *, not_after: str | None = None
) -> Snapshot:
    common = plan.newest_complete_set(ours, theirs, not_after=not_after)
    if common is None:
        raise Diverged(
            "the two ends have no snapshot in common",
            where=f"mirror '{mirror.name}'",
            why="every common snapshot was deleted or changed at one end",
            hint=plan.check_source_path(mirror.source.snapshots())
            + "A full transfer is required: delete this mirror and create it again with another "
            "destination; this removes neither volume.",
        )
    return common


def _then_update(finished: Finished, failback: FailbackPlan) -> Result:
    """The switch is done and recorded; the update that follows may fail without undoing it."""
    verb, mirror = failback.verb, finished.mirror
    head = {
        Verb.RESYNC: f"'{mirror.name}' is mirrored again, from {finished.base}.",
        Verb.REVERSE: f"'{mirror.name}' is reversed: {mirror.source} is now the source.",
    }[verb]
    try:
        result = update_held(mirror, Recovered(), replaced=True)
    except (MirrordError, OSError) as error:
        mirror.catalogue.add_event(
            mirror.id, "warning", f"{verb.value} is done, but its update failed: {one_line(error)}"
        )
        if isinstance(error, MirrordError):
            error.prepend_hint(
                f"The {verb.value} itself is done; 'mirrord update {mirror.name}' retries the "
                "update."
            )
        raise
    lines = [head]
    if finished.kept:
        lines.append(f"The losing side is kept as {finished.kept}.")
    lines += [*(f"Warning: {line}" for line in finished.lines), result.text]
    data = {**failback.data(), **result.data, "kept_as": finished.kept}
    return Result("done", "\n".join(lines), data, result.update)
