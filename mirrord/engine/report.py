"""State, activity and history of a mirror, and why it is as it is, for people and machines. Changes
nothing (except that `delta` takes a temporary snapshot of the source).
"""

from __future__ import annotations

from mirrord.catalogue.store import MirrorRow, Operation
from mirrord.core import names
from mirrord.core.errors import MirrordError, NotFound
from mirrord.core.model import Delta, Role, Snapshot, VolumeFacts
from mirrord.core.records import AlarmKind, FailureRecord, Finding, Level, TransferRecord
from mirrord.core.reports import (
    ChangedFile,
    DeltaReport,
    History,
    SnapshotCopy,
    SnapshotEntry,
    SnapshotTable,
)
from mirrord.core.results import Result
from mirrord.core.states import LIVE_VERBS, Activity, State, Verb
from mirrord.core.status import (
    Checkpoint,
    Interrupted,
    MemberPair,
    MirrorStatus,
    Reading,
    RunningVerb,
    judge,
)
from mirrord.core.units import format_size
from mirrord.drivers.contract import Driver
from mirrord.engine import plan, recovery, shown
from mirrord.engine.failures import UPDATE
from mirrord.engine.mirror import Mirror, check_source, check_there, one_line
from mirrord.system import clock, locks
from mirrord.system.waiting import LOOK_S


def status(mirror: Mirror) -> MirrorStatus:
    """The status of a mirror now. Changes nothing, and never raises for an unreachable end."""
    before = mirror.catalogue.operation(mirror.id)
    holder = locks.holder_of(mirror.run.lock)
    running = None
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
    facts, trouble = facts_of(mirror.destination)
    row = mirror.row_seen(facts)
    transfers = mirror.catalogue.transfers(mirror.id, limit=1)
    last = transfers[0] if transfers else None
    seen = shown.look(mirror, row, facts, trouble)
    failures = mirror.catalogue.failures(mirror.id)
    faults = [
        *seen.faults,
        *(shown.look_at_source(mirror) if row.state is State.MIRRORED and not busy else ()),
        *(_interrupted(mirror, operation) if operation and not busy else ()),
        *map(_failed, failures),
    ]
    definition = mirror.definition
    found = Reading(
        name=mirror.name,
        id=mirror.id,
        source=str(mirror.source),
        destination=str(mirror.destination),
        members=_members(mirror),
        state=_true_state(row.state, facts),
        quiesced=row.quiesced,
        confirmed_ns=seen.confirmed_ns,
        schedule=tuple(definition.timing.rules),
        rpo_s=definition.promise.rpo_s,
        reversed_since_ns=_reversed_since_ns(mirror),
        shown=seen.name,
        faults=tuple(faults),
        failures=tuple(failures),
        base_risk=_base_risk(mirror, row, facts),
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


def _reversed_since_ns(mirror: Mirror) -> int | None:
    """Since when the sites have changed roles, 0 when that is not known; None: they have not."""
    if not mirror.definition.reversed:
        return None
    known = mirror.catalogue.direction(mirror.id)
    return known.since_ns if known else 0


def _members(mirror: Mirror) -> tuple[MemberPair, ...]:
    """The pairs of volumes of a mirror."""
    pairs = zip(mirror.source.names, mirror.source.drivers, mirror.destination.drivers, strict=True)
    return tuple(
        MemberPair(name, str(source), str(destination)) for name, source, destination in pairs
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


def _true_state(recorded: State, facts: VolumeFacts | None) -> State:
    """A destination that has been made live is broken off, whatever was recorded here."""
    if facts and recorded is State.MIRRORED and facts.role is Role.LIVE:
        return State.BROKEN_OFF
    return recorded


def _interrupted(mirror: Mirror, operation: Operation) -> list[Finding]:
    """An operation on live volumes that was interrupted: no process is running it."""
    if operation.verb not in LIVE_VERBS:
        return []
    text = (
        f"an interrupted {operation.verb} waits for a decision: 'mirrord resume-operation "
        f"{mirror.name}' completes it, 'mirrord abort {mirror.name} --hard' gives it up"
    )
    return [Finding(AlarmKind.INTERRUPTED, Level.ERROR, text)]


def _failed(failure: FailureRecord) -> Finding:
    text = f"the last {failure.verb} failed: {failure.error}"
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
    return f"no update is possible: {base.why}" if isinstance(base, plan.Conflict) else ""


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


def history(mirror: Mirror, *, limit: int) -> History:
    """The last transfers and events, newest first."""
    book = mirror.catalogue
    return History(
        mirror.name,
        tuple(book.transfers(mirror.id, limit=limit)),
        tuple(book.attempts(mirror.id, limit=limit)),
        tuple(book.events(mirror.id, limit=limit)),
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
        check_source(mirror.source.facts(), str(mirror.source), mirror.id)
        here = mirror.source.snapshots()
        if incremental is None:
            from mirrord.engine.update import check_descent  # `status` starts without it

            check_descent(mirror, here, {one.guid for one in mirror.destination.snapshots()})
        first = _named(mirror, here, base) if base else _next_base(mirror, here)
        if incremental:
            second = _named(mirror, here, incremental)
            found = mirror.source.delta(
                first.guid if first else None, second.guid, states=states, files=files
            )
        elif pending is not None:
            found = mirror.source.delta(
                first.guid if first else None, pending.snapshot.guid, states=states, files=files
            )
        else:
            found = _delta_to_now(mirror, first, states=states, files=files)
    return _delta_report(mirror, first, found)


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


def _delta_to_now(mirror: Mirror, base: Snapshot | None, *, states: bool, files: bool) -> Delta:
    moment_ns = clock.now_ns()
    arguments = mirror.catalogue.begin(
        mirror.id,
        "delta",
        name=lambda sequence: names.snapshot_name(mirror.id, moment_ns, sequence),
    )
    try:
        snapshot = mirror.take_snapshot(arguments.name, alone=True)
        return mirror.source.delta(
            base.guid if base else None, snapshot.guid, states=states, files=files
        )
    finally:
        recovery.recover(mirror, RuntimeError("delta is done"))


def _delta_report(mirror: Mirror, base: Snapshot | None, found: Delta) -> DeltaReport:
    changes = None
    if found.changes is not None:
        changes = tuple(ChangedFile(*change) for change in found.changes)
    return DeltaReport(
        name=mirror.name,
        base=base.name if base else None,
        block_size=found.block_size,
        states=found.states,
        added_bytes=found.added_bytes,
        send_bytes=found.send_bytes,
        exact=found.exact,
        rate_bytes_s=_usual_rate(mirror),
        changes=changes,
    )


def _usual_rate(mirror: Mirror) -> float | None:
    """Bytes per second of this mirror's last transfers, without very short ones."""
    done = [
        (row.stream_bytes, row.duration_ms)
        for row in mirror.catalogue.transfers(mirror.id, limit=20)
        if row.result == "done" and row.duration_ms >= 5 and row.stream_bytes > 0
    ]
    total_ms = sum(duration for _, duration in done)
    return sum(size for size, _ in done) / (total_ms / 1000) if total_ms else None


def explain(mirror: Mirror) -> Result:
    """Why things are as they are, and which command changes it: one finding a line."""
    found = status(mirror)
    findings = [
        f"State: {found.state}; activity: {found.activity.value}.",
        *_explain_base(mirror, found),
        *_explain_last(mirror),
    ]
    if found.reading.quiesced:
        findings.append(f"It is quiesced: no transfer starts until 'mirrord resume {mirror.name}'.")
    if running := found.running:
        findings.append(
            f"Process {running.pid} holds it ({running.purpose}). "
            f"'mirrord abort {mirror.name}' stops that."
        )
    if saved_bytes := found.reading.checkpoint.size_bytes:
        findings.append(
            f"An interrupted transfer left a checkpoint of {format_size(saved_bytes)}: the next "
            "transfer resumes from there."
        )
    operation = mirror.catalogue.operation(mirror.id)
    if operation and operation.verb not in LIVE_VERBS and not found.running:
        findings.append(
            f"An interrupted {operation.verb} (phase {operation.phase}) will be recovered by the "
            "next command that changes this mirror."
        )
    findings.extend(f"Problem: {problem}." for problem in found.problems)
    findings.extend(found.reading.notes)
    source_facts, trouble = facts_of(mirror.source)
    if trouble:
        findings.append(f"The source cannot be reached: {trouble}.")
    elif source_facts:
        findings.extend(f"Source: {sentence(note)}" for note in source_facts.notes)
    return Result(found.state, "\n".join(findings), {"findings": findings})


def _explain_base(mirror: Mirror, found: MirrorStatus) -> list[str]:
    if found.reading.state is State.UNINITIALIZED:
        return [f"Nothing has been transferred yet: run 'mirrord initialize {mirror.name}'."]
    try:
        with mirror.waiting.hurried(LOOK_S):
            here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    except (MirrordError, OSError) as error:
        return [f"The base cannot be checked: {one_line(error)}."]
    common = plan.newest_complete_set(here, there)
    newest = common.name if common else "none"
    count = len({s.guid for s in here if s.intact} & {s.guid for s in there if s.intact})
    lines = [f"Common snapshots: {count}; the newest is {newest}."]
    if found.reading.state is State.BROKEN_OFF:
        lines.append(
            f"It is broken off: 'mirrord resync {mirror.name}' (source wins) or 'mirrord reverse "
            f"{mirror.name}' (destination becomes the source) continues from there."
        )
        return lines
    facts, _ = facts_of(mirror.destination)
    if facts and facts.shown:
        base = plan.find_base(mirror.name, here, there, facts.shown)
        if isinstance(base, plan.Conflict):
            lines.append(f"The next update is blocked: {base.why}. {base.hint}")
        else:
            lines.append(f"The next update is incremental, from {base.name}.")
    return lines


def _explain_last(mirror: Mirror) -> list[str]:
    transfers = mirror.catalogue.transfers(mirror.id, limit=50)
    lines = []
    if transfers:
        last = transfers[0]
        how = f"incremental ({format_size(last.stream_bytes)})"
        if last.base is None:
            how = f"full ({format_size(last.stream_bytes)}): {last.full_reason or 'no base'}"
        tail = f": {last.error}" if last.error else ""
        lines.append(f"The last transfer, {last.name}, was {how}; result: {last.result}{tail}.")
    full = [row for row in transfers[1:] if row.base is None and row.result == "done"]
    if full and transfers[0].base is not None:
        lines.append(
            f"The last full transfer was {full[0].name}: {full[0].full_reason or 'no base'}."
        )
    return lines
