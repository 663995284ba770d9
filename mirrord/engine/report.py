"""The status of a mirror: what the catalogue and both ends say of it. Changes nothing."""

from __future__ import annotations

from mirrord.catalogue.store import MirrorRow, Operation
from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, VolumeFacts
from mirrord.core.pause import decoded
from mirrord.core.records import AlarmKind, FailureRecord, Finding, Level, TransferRecord
from mirrord.core.states import LIVE_VERBS, Activity, State
from mirrord.core.status import (
    Checkpoint,
    Interrupted,
    MemberPair,
    MirrorStatus,
    Reading,
    RunningVerb,
    judge,
    judge_verified,
)
from mirrord.core.units import format_duration
from mirrord.core.verification import standing
from mirrord.drivers.contract import Driver
from mirrord.engine import direction, plan, shown, stillpaused
from mirrord.engine.failures import UPDATE
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system import clock, locks
from mirrord.system.waiting import LOOK_S


def status(mirror: Mirror) -> MirrorStatus:
    """The status of a mirror now. Changes nothing, and never raises for an unreachable end."""
    before = mirror.catalogue.operation(mirror.id)
    holder = locks.holder_of(mirror.run.lock)
    running = operation = None
    if holder is not None or before is not None:
        operation = mirror.catalogue.operation(mirror.id)
    if holder is not None:
        running = RunningVerb(holder.pid, holder.purpose, mirror.run.read())
    elif before is None or operation is None or before.started_ns != operation.started_ns:
        operation = None  # one that began or ended meanwhile was not interrupted
    reading = read(mirror, operation, busy=holder is not None)
    return judge(reading, now_ns=clock.now_ns(), running=running)


def read(mirror: Mirror, operation: Operation | None, *, busy: bool) -> Reading:
    """What the catalogue and both ends say of a mirror. busy: a verb is at work on it; otherwise
    `operation` was interrupted.
    """
    commits = busy and _commits(mirror)
    facts, trouble = facts_of(mirror.destination)
    commits |= busy and _commits(mirror)
    row = mirror.row_seen(facts)
    transfers = mirror.catalogue.transfers(mirror.id, limit=1)
    last = transfers[0] if transfers else None
    seen = shown.look(mirror, row, facts, trouble, commits=commits)
    failures = mirror.catalogue.failures(mirror.id)
    faults = [
        *seen.faults,
        *(shown.look_at_source(mirror) if row.state is State.MIRRORED and not busy else ()),
        *(_interrupted(mirror, operation) if operation and not busy else ()),
        *(_failed(mirror, one) for one in failures),
        *stillpaused.findings(mirror),
        *(_long_pause(mirror, last) if last else ()),
    ]
    definition = mirror.definition
    verified = standing(mirror.catalogue.verifications(mirror.id))
    if row.state is State.MIRRORED:
        wrong = judge_verified(verified, seen.name, definition.verify.max_age_s, clock.now_ns())
        faults += [wrong] if wrong else []
    found = Reading(
        name=mirror.name,
        id=mirror.id,
        source=str(mirror.source),
        destination=str(mirror.destination),
        members=_members(mirror),
        state=_true_state(mirror, row.state, facts),
        quiesced=row.quiesced,
        confirmed_ns=seen.confirmed_ns,
        schedule=tuple(definition.timing.rules),
        rpo_s=definition.promise.rpo_s,
        reversed_since_ns=direction.reversed_since_ns(mirror.catalogue, mirror.definition),
        shown=seen.name,
        faults=tuple(faults),
        failures=tuple(failures),
        base_risk=_base_risk(mirror, row, facts),
        verified=verified,
        last_transfer=last,
        interrupted=Interrupted(operation.verb, operation.pid) if operation else None,
    )
    if facts is None:
        return found
    return found._replace(
        filesystem=facts.filesystem,
        view=facts.view,
        copy=facts.copy or "",
        notes=tuple(sentence(note) for note in facts.notes),
        checkpoint=Checkpoint() if busy else _checkpoint(mirror, last),
    )


def _commits(mirror: Mirror) -> bool:
    return mirror.run.read().activity is Activity.COMMITTING


def _long_pause(mirror: Mirror, last: TransferRecord) -> list[Finding]:
    """The last pause, if it was longer than allowed."""
    report, alarm_s = decoded(last.pause), mirror.definition.pausing.alarm_s
    if report is None or report.longest_ms <= 1000 * alarm_s:
        return []
    text = f"the application was {report.line()}, longer than {format_duration(alarm_s)}"
    return [Finding(AlarmKind.PAUSE, Level.WARNING, text)]


def _members(mirror: Mirror) -> tuple[MemberPair, ...]:
    """The pairs of volumes of a mirror."""
    pairs = zip(
        mirror.source.names,
        mirror.source.drivers,
        mirror.destination.drivers,
        mirror.definition.pausers,
        strict=True,
    )
    return tuple(
        MemberPair(name, str(source), str(destination), pause)
        for name, source, destination, pause in pairs
    )


def sentence(text: str) -> str:
    """A clause as a sentence."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else text + "."


def facts_of(driver: Driver) -> tuple[VolumeFacts | None, str]:
    """The facts of an end, or why it cannot be reached."""
    try:
        with driver.waiting.hurried(LOOK_S):
            return driver.facts(), ""
    except (MirrordError, OSError) as error:
        return None, one_line(error)


def _true_state(mirror: Mirror, recorded: State, facts: VolumeFacts | None) -> State:
    """A destination that has been made live is broken off, whatever was recorded here; one in
    whose place is another volume was not.
    """
    live = facts is not None and recorded is State.MIRRORED and facts.role is Role.LIVE
    return State.BROKEN_OFF if live and shown.replaced(mirror) is None else recorded


def _interrupted(mirror: Mirror, operation: Operation) -> list[Finding]:
    """An operation on live volumes that was interrupted: no process is running it."""
    if operation.verb not in LIVE_VERBS:
        return []
    text = (
        f"an interrupted {operation.verb} waits for a decision: 'mirrord resume-operation "
        f"{mirror.name}' completes it, 'mirrord abort {mirror.name} --hard' gives it up"
    )
    return [Finding(AlarmKind.INTERRUPTED, Level.ERROR, text)]


def _failed(mirror: Mirror, failure: FailureRecord) -> Finding:
    text = failure.text(mirror.name)
    if failure.kind == UPDATE:
        return Finding(AlarmKind.FAILURE, Level.WARNING, text)
    return Finding(AlarmKind.VERB, Level.ERROR, text)


def _base_risk(mirror: Mirror, row: MirrorRow, facts: VolumeFacts | None) -> str:
    """Why the next update cannot be incremental, or ""."""
    if not facts or row.state is not State.MIRRORED or facts.role is not Role.MIRROR:
        return ""
    if facts.mirror_id != mirror.id or not facts.shown:
        return ""
    try:
        with mirror.waiting.hurried(LOOK_S):
            here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    except (MirrordError, OSError) as error:
        return f"the source cannot be reached: {one_line(error)}"
    base = plan.find_base(mirror.name, here, there, facts.shown)
    if isinstance(base, plan.Conflict):
        return f"no update is possible: {base.why}"
    why = plan.unrelated_reason(here, {one.guid for one in there})
    return f"another volume has taken the place of the source: {why}" if why else ""


def _checkpoint(mirror: Mirror, last: TransferRecord | None) -> Checkpoint:
    """The checkpoint of an interrupted transfer."""
    try:
        here = max((s.received_bytes for s in mirror.destination.stagings()), default=0)
    except (MirrordError, OSError):
        here = 0
    operation = mirror.catalogue.operation(mirror.id) if here else None
    if operation is None:
        return Checkpoint(here)
    arguments = operation.arguments
    # After a crash that time is not recorded yet.
    since_ns = arguments.kept_ns or (last.started_ns if last else operation.started_ns)
    expected = arguments.estimate_bytes
    return Checkpoint(here, max(expected, here) if expected else None, since_ns)
