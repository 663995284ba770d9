"""The verbs that move no data: abort, quiesce, resume, release, delete."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress

from mirrord.catalogue.store import Operation
from mirrord.core.errors import (
    Fenced,
    LinkLost,
    MirrordError,
    NotFound,
    Refused,
    Undecided,
    Unreachable,
)
from mirrord.core.model import Role, SnapshotKind
from mirrord.core.results import Result
from mirrord.core.states import LIVE_VERBS, Activity, Already, State, Verb
from mirrord.core.units import counted, format_size
from mirrord.drivers.pins import VERIFYING
from mirrord.engine import (
    cascade,
    direction,
    failover_steps,
    pinning,
    preempt,
    prune,
    recovery,
    relation,
    stillpaused,
)
from mirrord.engine.members import Members
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system.waiting import HURRY_S


def abort(mirror: Mirror, *, hard: bool) -> Result:
    """End the running transfer. Its checkpoint is kept if the driver can; `hard` drops it."""
    with preempt.first(mirror, Verb.ABORT) as stopped:
        return _abort(mirror, hard=hard, stopped=stopped)


def _abort(mirror: Mirror, *, hard: bool, stopped: bool) -> Result:
    if not stopped and mirror.catalogue.operation(mirror.id) is None:
        return _thawed(mirror) or _idle(mirror)
    try:
        # An abort because of a dead link must not wait for that link.
        with mirror.waiting.hurried(HURRY_S if stopped and not hard else 0):
            return _abort_held(mirror, hard=hard, stopped=stopped)
    except (LinkLost, Unreachable) as error:
        operation = mirror.catalogue.operation(mirror.id)
        # What was set aside is known from the record of a switch alone: that stays.
        switch = operation is not None and operation.verb in LIVE_VERBS
        if hard and not switch:
            return _abort_here(mirror, error)
        if hard or not stopped:
            error.prepend_hint(
                "This needs both ends: run the same command again when the other one answers."
                if switch
                else f"'mirrord abort {mirror.name} --hard' gives it up."
            )
            raise
        return Result(
            "done",
            f"The transfer was aborted. The other end does not answer ({error}): the next command "
            f"checks what it has received of '{mirror.name}', and resumes from there.",
            {"stopped": True, "checkpoint": True},
        )


def _thawed(mirror: Mirror) -> Result | None:
    """Thaw a source that was left frozen when the power failed and the catalogue was lost."""
    try:
        if not mirror.source.facts().frozen:
            return None
    except (MirrordError, OSError):
        return None
    relation.ask_source(mirror)
    with mirror.source_locked():
        mirror.source.thaw()
    return Result("done", f"{mirror.source} was frozen by an interrupted reverse; it is thawed.")


def _idle(mirror: Mirror) -> Result:
    return Result("already_idle", f"No transfer of '{mirror.name}' is running.")


def _abort_here(mirror: Mirror, error: MirrordError) -> Result:
    """Give up an interrupted operation, without the other end."""
    with mirror.hold_here(Verb.ABORT):
        mirror.catalogue.end(
            mirror.id, event=("warning", f"gave up an unfinished operation: {error}")
        )
    return Result(
        "done",
        f"The unfinished operation was given up. The other end does not answer ({error}): what it "
        "received stays there until the next transfer.",
        {"stopped": True, "checkpoint": False},
    )


def _abort_held(mirror: Mirror, *, hard: bool, stopped: bool) -> Result:
    with mirror.hold(Verb.ABORT):
        operation = mirror.catalogue.operation(mirror.id)
        if hard and operation is not None and operation.verb in LIVE_VERBS:
            return _give_up(mirror, operation)
        if stopped and operation is not None and operation.verb == Verb.RESTORE.value:
            return _restore_ended(mirror)  # its recovery would go on with the transfer
        try:
            recovered = _recovered(mirror)
        except Undecided:
            raise
        except MirrordError as error:
            if not hard:
                error.prepend_hint(f"'mirrord abort {mirror.name} --hard' gives it up.")
                raise
            mirror.catalogue.end(
                mirror.id, event=("warning", f"gave up an unfinished operation: {error}")
            )
            return Result("done", f"The unfinished operation was given up: {error}.")
        if recovered.finished in LIVE_VERBS:
            data = {"stopped": stopped, "checkpoint": False}
            return Result("done", _finished(mirror, recovered.finished), data)
        kept, pending = "", recovered.pending
        if pending is not None and hard:
            recovery.drop(mirror, pending)
            kept = " Its checkpoint was discarded."
        elif pending is not None:
            done = {s.transfer_id: s.received_bytes for s in mirror.destination.stagings()}
            size = format_size(done.get(pending.id, 0))
            kept = (
                f" A checkpoint of {size} is kept: the next transfer resumes from there "
                f"('mirrord abort {mirror.name} --hard' discards it)."
            )
        if not stopped and pending is None:
            return _idle(mirror)
        head = "The transfer was aborted" if stopped else "No transfer is running"
        return Result(
            "done" if stopped or hard else "already_idle",
            f"{head}; the destination of '{mirror.name}' shows what it showed before.{kept}",
            {"stopped": stopped, "checkpoint": pending is not None and not hard},
        )


def _recovered(mirror: Mirror) -> recovery.Recovered:
    """Recover the mirror for a command that does nothing else with it."""
    try:
        return recovery.recover(mirror)
    except direction.Turned:
        return recovery.Recovered(Verb.REVERSE.value)


def _finished(mirror: Mirror, verb: str) -> str:
    return f"The interrupted {verb} of '{mirror.name}' was finished."


def _restore_ended(mirror: Mirror) -> Result:
    return Result(
        "done",
        f"The restore of '{mirror.name}' was ended; the source is not complete. 'mirrord restore "
        f"{mirror.name} --all' goes on with it, 'mirrord abort {mirror.name} --hard' gives it up.",
        {"stopped": True, "checkpoint": True},
    )


def _give_up(mirror: Mirror, operation: Operation) -> Result:
    if mirror.outdated():
        return _idle(mirror)
    done = "given up" if recovery.give_up(mirror, operation) else "completed, as it lost nothing"
    state = mirror.row().state
    return Result(
        "done",
        f"The interrupted {operation.verb} of '{mirror.name}' was {done}: it is {state.value}. "
        "Nothing was deleted at either end.",
        {"stopped": False, "checkpoint": False, "state": state.value},
    )


def resume_operation(mirror: Mirror, *, yes: bool) -> Result:
    """Finish an interrupted verb although there are later changes: these are set aside."""
    with mirror.hold(Verb.RESUME_OPERATION, activity=Activity.RESYNCING):
        try:
            recovered = _recovered(mirror)
        except Undecided as why:
            operation = failover_steps.begun(mirror)
            lines = [
                f"resume-operation '{mirror.name}': the {operation.verb} will be finished.",
                f"   {why.why}.",
                "   The later changes are kept as a `diverged` snapshot.",
            ]
            if not yes:
                return Result(
                    "confirmation-required",
                    "\n".join(lines),
                    {"verb": operation.verb, "plan": lines},
                )
            finished = failover_steps.finish(mirror, operation)
            kept = f"\nThe later changes are kept as {finished.kept}." if finished.kept else ""
            data = {"verb": operation.verb, "kept_as": finished.kept}
            text = f"The {operation.verb} of '{mirror.name}' was finished.{kept}"
            return Result("done", text, data)
    if recovered.finished:
        text = _finished(mirror, recovered.finished)
        return Result("done", text, {"verb": recovered.finished, "kept_as": None})
    return Result("already_idle", f"No operation of '{mirror.name}' waits for a decision.")


def quiesce(mirror: Mirror) -> Result:
    """Block new transfers; a running one finishes. Survives restarts."""
    verdict = mirror.permit(Verb.QUIESCE)
    if isinstance(verdict, Already):
        return Result(verdict.status, f"'{mirror.name}' is already quiesced.")
    mirror.catalogue.set_quiesced(mirror.id, True)
    mirror.catalogue.add_event(mirror.id, "info", "quiesced")
    return Result(
        "done",
        f"'{mirror.name}' is quiesced: no transfer starts until 'mirrord resume {mirror.name}'.",
    )


def resume(mirror: Mirror) -> Result:
    """Allow transfers again."""
    verdict = mirror.permit(Verb.RESUME)
    if isinstance(verdict, Already):
        return Result(verdict.status, f"'{mirror.name}' was not quiesced.")
    mirror.catalogue.set_quiesced(mirror.id, False)
    mirror.catalogue.add_event(mirror.id, "info", "resumed")
    return Result("done", f"'{mirror.name}' is resumed: transfers are allowed again.")


def release(mirror: Mirror) -> Result:
    """Delete this mirror's reference snapshots at the source; the mirror is uninitialized then."""
    with mirror.hold(Verb.RELEASE):
        pending = recovery.recover(mirror).pending
        mirror.permit(Verb.RELEASE)
        recovery.drop(mirror, pending)
        trouble = _unpin(mirror, mirror.source, mirror.destination)
        count = _drop_references(mirror)
        deleted = counted(count, "reference snapshot")
        mirror.catalogue.end(
            mirror.id,
            state=State.UNINITIALIZED,
            event=("info", f"released: {deleted} deleted at the source"),
        )
        return Result(
            "done",
            f"'{mirror.name}' is released: {deleted} deleted at the source. The destination "
            "is not changed.\n"
            f"To start over: 'mirrord delete {mirror.name}', then create a mirror with another "
            f"destination.{trouble}",
            {"deleted": count},
        )


def delete(mirror: Mirror, *, yes: bool, keep_snapshots: bool) -> Result:
    """Remove the mirror: its definition, its records, its reference snapshots at the source.

    The destination keeps what it has: live, or read-only as last shown. With `yes` it need not
    even exist any more.
    """
    try:
        return _delete_held(mirror, yes=yes, keep_snapshots=keep_snapshots)
    except (LinkLost, Unreachable) as error:
        if not yes:
            error.prepend_hint("With --yes the mirror is deleted anyway.")
            raise
        trouble = f" The other end was not cleaned up: {one_line(error)}."
    with mirror.hold_here(Verb.DELETE):
        why = "the other end does not answer"
        try:
            relation.ask_source(mirror)
        except (MirrordError, OSError) as error:
            trouble += f" {one_line(error)}."
        for driver in (mirror.source, mirror.destination):
            if driver.remote:
                trouble += f" {pinning.left_pinned(str(driver), mirror.id, why)}"
            else:
                trouble += _unpin(mirror, driver)
        count = 0
        if not keep_snapshots:
            try:
                count = _drop_references(mirror)
            except (MirrordError, OSError) as error:
                trouble += f" Snapshots were not deleted at the source: {one_line(error)}."
        with suppress(MirrordError, OSError):  # what is left is told
            stillpaused.resume(mirror)
        return _deleted(mirror, count, trouble)


def _deleted(mirror: Mirror, count: int, trouble: str) -> Result:
    trouble += "".join(f" Warning: {one.line()}." for one in stillpaused.listed(mirror))
    mirror.relation.definitions.remove(mirror.name)
    mirror.catalogue.remove_mirror(mirror.id)
    return Result(
        "done",
        f"'{mirror.name}' was deleted ({counted(count, 'reference snapshot')} removed at the "
        f"source). The data at {mirror.destination} is kept.{trouble}",
        {"deleted": count},
    )


def _delete_held(mirror: Mirror, *, yes: bool, keep_snapshots: bool) -> Result:
    with mirror.hold(Verb.DELETE):
        pending = recovery.recover(mirror).pending
        if not (yes and mirror.row().state is State.MIRRORED):
            mirror.permit(Verb.DELETE)
        cascade.refuse_middle(mirror)
        recovery.drop(mirror, pending)
        count, trouble = 0, _unpin(mirror, mirror.source, mirror.destination)
        if not keep_snapshots:
            try:
                count = _drop_references(mirror)
            except (MirrordError, OSError) as error:
                if not yes:
                    if isinstance(error, MirrordError):
                        error.prepend_hint("With --yes the mirror is deleted anyway.")
                    raise
                trouble += f" Snapshots were not deleted at the source: {one_line(error)}."
        there = mirror.destination.present()
        facts = there.facts()
        if facts.role in (Role.MIRROR, Role.LIVE) and facts.mirror_id in ("", mirror.id):
            there.forget()
        return _deleted(mirror, count, trouble + _forget_source(mirror))


def _unpin(mirror: Mirror, *ends: Members) -> str:
    """Remove the mirror's pins and records; returns warnings about what could not be removed."""
    removals = pinning.give_up, relation.give_up
    warnings = [give_up(mirror, one) for one in ends for give_up in removals]
    return "".join(f" {text}" for text in warnings if text)


def _forget_source(mirror: Mirror) -> str:
    """Remove the marks of a source that was a destination of this mirror once: another mirror could
    not restore it when it is lost. Returns warnings as `_unpin` does.
    """
    trouble = ""
    for driver in mirror.source.drivers:
        try:
            facts = driver.facts()
            if facts.mirror_id == mirror.id and facts.shown is None:
                with mirror.locked(driver):
                    driver.forget()
        except (MirrordError, OSError) as error:
            trouble += f" The mark of the mirror was not removed at {driver}: {one_line(error)}."
    return trouble


def _drop_references(mirror: Mirror) -> int:
    """Delete what this mirror took at the source; returns how many there were."""
    facts = mirror.source.facts()
    if facts.role in (Role.ABSENT, Role.MIRROR):
        return 0  # in a cascade they belong to the upstream mirror
    if facts.role is not Role.LIVE:
        raise Refused(
            "the reference snapshots cannot be deleted",
            where=str(mirror.source),
            why="there is no live volume",
            hint="Check that its file system is mounted.",
        )
    mine, count = mirror.catalogue.snapshots(mirror.id, at=str(mirror.source)), 0
    with mirror.source_locked():
        for guid in mirror.catalogue.others(mirror.id, str(mirror.source), mine):
            del mine[guid]  # the last mirror that has it deletes it
        here = mirror.source.snapshots()
        for guid in mine.keys() & prune.origin(mirror, here).keys():
            ids = {one for by in pinning.of_others(mirror, here).values() for one in by}
            mirror.catalogue.hand_over(mirror.id, guid, ids)
            del mine[guid]
        for snapshot in here:
            pinned = set(snapshot.pinned) - {mirror.id, VERIFYING}  # other mirrors need it
            if snapshot.kind is SnapshotKind.REFERENCE and snapshot.guid in mine and not pinned:
                mirror.source.delete_snapshot(snapshot.guid)
                count += 1
    return count


def choose_source(mirror: Mirror, ends: Mapping[str, direction.End]) -> Result:
    """Record that the mirror's source is the one it was opened with, as the user has decided. ends:
    what both sites have. `Refused` when that contradicts it, or a verb was interrupted.
    """
    site = mirror.definition.source_site
    with mirror.hold_here(Verb.TAKEOVER):
        operation = mirror.catalogue.operation(mirror.id)
        if operation is not None:
            raise Refused(
                f"an interrupted {operation.verb} must be finished first",
                where=f"mirror '{mirror.name}'",
                hint=f"'mirrord resume-operation {mirror.name}' finishes it.",
            )
        known = direction.source_of(mirror.catalogue, mirror.id)
        found: str | None = None
        with suppress(Refused):
            found = direction.find(mirror.definition, ends)
        if found not in (None, site):
            raise Refused(
                f"'{site}' is not the source",
                where=f"mirror '{mirror.name}'",
                why=f"according to the volumes at both ends it is '{found}'",
                hint=f"'mirrord reverse {mirror.name}' swaps the roles of the sites. If '{found}' "
                f"is lost, 'mirrord break {mirror.name}' makes '{site}' writable.",
            )
        data = {"source": str(mirror.source), "destination": str(mirror.destination)}
        if known == site:
            return Result("already_source", f"'{site}' is the source of '{mirror.name}'.", data)
        mirror.catalogue.set_direction(mirror.id, site)
        if ends[mirror.definition.destination_site].facts is not None:
            mirror.adopt()
        mirror.catalogue.add_event(mirror.id, "info", f"'{site}' was declared to be the source")
    return Result(
        "done",
        f"'{site}' ({mirror.source}) is the source of '{mirror.name}'. Next: 'mirrord status "
        f"{mirror.name}'.",
        data,
    )


def delete_diverged(mirror: Mirror, wanted: str) -> Result:
    """Delete the losing side of a resync, once nothing of it is needed any more."""
    with mirror.hold(Verb.ABORT):
        try:
            recovery.recover(mirror)
        except Refused as error:
            is_restore = failover_steps.begun(mirror).verb == Verb.RESTORE.value
            if isinstance(error, Undecided | Fenced) or not is_restore:
                raise  # (a restore may need the blocks of this snapshot)
        for driver in (mirror.destination, mirror.source):
            for snapshot in driver.snapshots():
                if wanted not in (snapshot.name, snapshot.guid):
                    continue
                if snapshot.kind is not SnapshotKind.DIVERGED:
                    raise Refused(
                        "this is not a diverged snapshot",
                        where=snapshot.name,
                        why="the mirror manages the others according to its definition",
                        hint="'keep' of its site in the definition sets how many are kept.",
                    )
                with mirror.source_locked() if driver is mirror.source else nullcontext():
                    driver.delete_snapshot(snapshot.guid)
                mirror.catalogue.add_event(mirror.id, "info", f"deleted {snapshot.name}")
                return Result("done", f"{snapshot.name} was deleted at {driver}.")
    raise NotFound(
        f"there is no snapshot '{wanted}'",
        where=f"mirror '{mirror.name}'",
        hint=f"'mirrord snapshots {mirror.name}' lists them.",
    )
