"""break, resync and reverse: SnapMirror's disaster recovery (FAST'02, 3.2.3) and the way back.

Nobody's data are overwritten: the losing side of a resync stays as a `diverged` snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Diverged, MirrordError, Refused
from mirrord.core.model import Divergence, Role, Snapshot, VolumeFacts
from mirrord.core.results import Result
from mirrord.core.states import Activity, Already, State, Verb
from mirrord.core.text import escaped
from mirrord.core.units import format_size
from mirrord.drivers.base import nothing_shown
from mirrord.engine import failover_steps, plan, recovery
from mirrord.engine.mirror import Mirror, check_destination, check_source, one_line, stop_running
from mirrord.engine.recovery import Recovered
from mirrord.engine.update import update_held
from mirrord.link import waiting
from mirrord.system import clock

_FILES_SHOWN = 20


class Turn(NamedTuple):
    """What a resync or reverse is going to do, for the owner's yes.

    loser: the end that goes back to `base`; lost: what it has beyond it (None: nothing to ask).
    keep: that is kept as a `diverged` snapshot.
    """

    verb: Verb
    base: Snapshot
    loser: str
    lost: Divergence | None
    keep: bool
    lines: tuple[str, ...]

    def data(self) -> dict[str, object]:
        """As `--json` prints it."""
        lost = self.lost
        return {
            "verb": self.verb.value,
            "base": self.base.name,
            "loser": self.loser,
            "lost_bytes": lost.changed_bytes if lost else 0,
            "lost_changes": lost.total_changes if lost else 0,
            "lost_files": [change.path for change in lost.changes or ()] if lost else [],
            "newer_snapshots": list(lost.newer_snapshots) if lost else [],
            "plan": list(self.lines),
        }


def break_off(mirror: Mirror) -> Result:
    """Make the destination writable, now, without the source; ends a running transfer first."""
    stopped = stop_running(mirror)
    with mirror.hold(Verb.BREAK) as stack:
        # A source that does not answer is the usual case here: it is not waited for.
        apart = mirror.source.remote and not mirror.destination.remote
        stack.enter_context(waiting.hurried(waiting.LOOK_S if apart else 0))
        pending = recovery.recover(mirror, without_source=True).pending
        verdict = mirror.permit(Verb.BREAK)
        facts = mirror.destination.facts()
        view = facts.view
        if isinstance(verdict, Already):
            return Result(verdict.status, f"'{mirror.name}' is broken off already.", {"view": view})
        # What is recorded is done as soon as it can be: not what was just refused.
        check_destination(facts, mirror)
        if pending is not None:
            recovery.drop(mirror, pending)
        mirror.catalogue.begin(mirror.id, Verb.BREAK.value, {})
        failover_steps.resume_failover(mirror, failover_steps.begun(mirror))
        note = " A running transfer was ended first." if stopped else ""
        return Result(
            "done",
            f"'{mirror.name}' is broken off: {view} is writable now.{note}\n"
            f"Way back: 'mirrord resync {mirror.name}' (source wins) or "
            f"'mirrord reverse {mirror.name}' (destination becomes the source).",
            {"view": view},
        )


def begin_test(mirror: Mirror, place: str) -> Result:
    """Make a writable copy of what the destination shows; the mirror stays as it is."""
    with mirror.hold(Verb.BREAK):
        mirror.permit(Verb.BREAK)
        facts = mirror.destination.facts()
        check_destination(facts, mirror)
        if facts.role is not Role.MIRROR or not facts.shown:
            raise nothing_shown(str(mirror.destination))
        status = "already_there" if facts.copy else "done"
        if place:
            kind = mirror.definition.destination.kind
            place = parse_endpoint(f"{kind}:{place}", what="the copy's place").location
        made = mirror.destination.begin_test(place)
        if status == "done":
            mirror.catalogue.add_event(mirror.id, "info", f"made the copy {made.location}")
    where = made.view or made.location
    return Result(
        status,
        f"{where} is a writable copy of what '{mirror.name}' shows; the mirror goes on.\n"
        f"When you are done: 'mirrord break {mirror.name} --end-test' removes it.",
        {"view": made.view, "location": made.location},
    )


def end_test(mirror: Mirror) -> Result:
    """Remove the writable copy, with all that was written to it."""
    with mirror.hold(Verb.BREAK):
        where = mirror.destination.facts().copy
        if not mirror.destination.end_test():
            return Result("already_gone", f"'{mirror.name}' has no writable copy.")
        mirror.catalogue.add_event(mirror.id, "info", f"removed the copy {where}")
    return Result("done", f"The writable copy {where} of '{mirror.name}' is removed.")


def resync(mirror: Mirror, *, yes: bool) -> Result:
    """Mirror again in the same direction, from the newest common snapshot."""
    with mirror.hold(Verb.RESYNC, activity=Activity.RESYNCING):
        recovered = recovery.recover(mirror)
        mirror.permit(Verb.RESYNC)
        check_source(mirror.source.facts(), str(mirror.source))
        turn = _plan_resync(mirror)
        if not yes:
            return Result("needs-yes", "\n".join(turn.lines), turn.data())
        if recovered.pending is not None:
            recovery.drop(mirror, recovered.pending)
        kept_as = begin_turn(mirror, turn, {"taken_ns": turn.base.taken_at_ns})
        failover_steps.resume_failover(mirror, failover_steps.begun(mirror))
        return _then_update(mirror, turn, kept_as)


def begin_turn(mirror: Mirror, turn: Turn, arguments: dict[str, object]) -> str | None:
    """Record the owner's yes; returns the name under which the losing side is kept.

    The name has a sequence number that was never given out before, so that no earlier diverged
    snapshot can be taken for this one.
    """
    moment_ns = clock.now_ns()
    full = mirror.catalogue.begin(
        mirror.id, turn.verb.value, {"guid": turn.base.guid, "keep": turn.keep, **arguments},
        name=lambda sequence: names.diverged_name(mirror.id, moment_ns, sequence),
    )  # fmt: skip
    return str(full["name"]) if turn.keep else None


def _plan_resync(mirror: Mirror) -> Turn:
    facts = mirror.destination.facts()
    check_destination(facts, mirror)
    common = _common(mirror, mirror.source.snapshots(), mirror.destination.snapshots())
    where = str(mirror.destination)
    lost = mirror.destination.divergence(common.guid) if facts.role is Role.LIVE else None
    keep = lost is not None and (lost.changed_bytes > 0 or lost.total_changes > 0)
    lines = [
        f"resync '{mirror.name}': {mirror.source} stays as it is and overwrites {where}.",
        f"1. The destination goes back to {common.name}, the newest snapshot both ends have.",
        *loss_lines(lost, keep=keep),
        "2. What changed at the source since then is transferred.",
    ]
    return Turn(Verb.RESYNC, common, where, lost, keep, tuple(lines))


def reverse(mirror: Mirror, *, yes: bool) -> Result:
    """Make the destination the source, and go on incrementally the other way round."""
    with mirror.hold(Verb.REVERSE, activity=Activity.RESYNCING):
        recovered = recovery.recover(mirror)
        mirror.permit(Verb.REVERSE)
        switchover = mirror.row().state is State.MIRRORED
        turn = _plan_reverse(mirror, switchover=switchover)
        if not yes:
            return Result("needs-yes", "\n".join(turn.lines), turn.data())
        if switchover:
            update_held(mirror, recovered)
            turn = _plan_reverse(mirror, switchover=switchover)
        elif recovered.pending is not None:
            recovery.drop(mirror, recovered.pending)
        with mirror.source_locked():
            kept_as = begin_turn(
                mirror,
                turn,
                {
                    "taken_ns": turn.base.taken_at_ns,
                    "new_source": str(mirror.definition.destination),
                    "new_destination": str(mirror.definition.source),
                },
            )
            turned = failover_steps.resume_failover(mirror, failover_steps.begun(mirror))
        return _then_update(turned, turn, kept_as)


def _plan_reverse(mirror: Mirror, *, switchover: bool) -> Turn:
    source, destination = mirror.source, mirror.destination
    facts = source.facts()
    check_source(facts, str(source))
    check_destination(destination.facts(), mirror)
    if facts.role is Role.MIRROR:
        raise Refused(
            "the source cannot become a destination of this mirror", where=str(source),
            why="it is that of another one", hint="'mirrord break' that one first.",
        )  # fmt: skip
    if facts.fixed:
        raise MirrordError(
            "the source cannot become a destination", where=str(source), why=facts.fixed,
            hint="'mirrord resync' goes on in the old direction; or make a new mirror from "
            f"{destination} to another place.",
        )  # fmt: skip
    ends = mirror.definition.destination, mirror.definition.source
    mirror.definitions.swapped(mirror.name, *ends)  # later would be too late: half way
    others = [
        other.name
        for other in mirror.definitions.all()
        if other.id != mirror.id and other.source == mirror.definition.source
    ]
    if others:
        raise Refused(
            "the source has other mirrors", where=str(source),
            why=f"{', '.join(others)} would have no source any more",
            hint="Delete them first (their destinations stay as they are), or resync instead.",
        )  # fmt: skip
    common = _common(mirror, destination.snapshots(), source.snapshots())
    changed = source.changed_since(common.guid)
    lost = source.divergence(common.guid) if changed and not switchover else None
    first = (
        [
            "1. A last update carries what has changed; stop writing to the source before "
            "you say yes."
        ]
        if switchover
        else []
    )
    number = len(first)
    lines = [
        f"reverse '{mirror.name}': {destination} becomes the source, {source} the destination.",
        *first,
        f"{number + 1}. {destination} is made writable and is the source from then on.",
        f"{number + 2}. {source} goes back to {common.name}, the newest snapshot both ends have, "
        "and is read-only from then on.",
        *loss_lines(lost, keep=changed),
        *nested_lines(facts),
        f"{number + 3}. What changed at the new source since then is transferred.",
        f"The same command again turns it back ('mirrord reverse {mirror.name}').",
    ]
    return Turn(Verb.REVERSE, common, str(source), lost, changed, tuple(lines))


def _common(mirror: Mirror, ours: list[Snapshot], theirs: list[Snapshot]) -> Snapshot:
    common = plan.newest_common(ours, theirs)
    if common is None:
        raise Diverged(
            "the two ends have no snapshot in common",
            where=f"mirror '{mirror.name}'",
            why="every common snapshot was deleted or changed at one end",
            hint="Only a whole transfer helps: delete this mirror and create it anew with another "
            "destination; nothing at either end is removed by that.",
        )
    return common


def nested_lines(facts: VolumeFacts) -> list[str]:
    """What a person should know of a volume that is about to be set aside."""
    lines = [f"   Note: {note}" for note in facts.notes]
    if lines:
        lines.append("   Nested subvolumes move along with the losing side.")
    return lines


def loss_lines(lost: Divergence | None, *, keep: bool) -> list[str]:
    """What a rollback loses, for the owner to read before a yes."""
    if lost is None:
        return []
    if not keep:
        return ["   Nothing is lost by that: it has no changes of its own."]
    word, end = ("block", ".") if lost.changes is None else ("change", ":")
    count = f"{lost.total_changes} {word}{'' if lost.total_changes == 1 else 's'}"
    lines = [f"   It loses {count} of its own ({format_size(lost.changed_bytes)}){end}"]
    for change in (lost.changes or ())[:_FILES_SHOWN]:
        lines.append(f"     {change.change:9} {escaped(change.path)}")
    shown = min(len(lost.changes or ()), _FILES_SHOWN)
    if lost.changes is not None and lost.total_changes > shown:
        lines.append(f"     … and {lost.total_changes - shown} more")
    lines.append("   All of it is kept, as a `diverged` snapshot.")
    return lines


def _then_update(mirror: Mirror, turn: Turn, kept_as: str | None) -> Result:
    """The turn is done and recorded; the update that follows may fail without undoing it."""
    verb = turn.verb
    head = {
        Verb.RESYNC: f"'{mirror.name}' is mirrored again, from {turn.base.name}.",
        Verb.REVERSE: f"'{mirror.name}' is reversed: {mirror.source} is the source now.",
    }[verb]
    try:
        result = update_held(mirror, Recovered())
    except (MirrordError, OSError) as error:
        mirror.catalogue.add_event(
            mirror.id, "warning", f"{verb.value} is done, its update failed: {one_line(error)}"
        )
        if isinstance(error, MirrordError):
            error.hint = (
                f"The {verb.value} itself is done; 'mirrord update {mirror.name}' tries the update "
                f"again. {error.hint}"
            )
        raise
    kept = f"\nThe losing side is kept as {kept_as}." if kept_as else ""
    return Result(
        "done", f"{head}{kept}\n{result.text}", {**turn.data(), **result.data, "kept_as": kept_as}
    )
