"""State, activity and history of a mirror, for people and machines. Changes nothing (except that
`delta` takes a temporary snapshot of the source).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mirrord.catalogue.store import MirrorRow, Operation, TransferRow
from mirrord.catalogue.watchbook import FailureRow
from mirrord.core import names
from mirrord.core.errors import MirrordError, NotFound
from mirrord.core.model import Delta, Role, Snapshot, VolumeFacts
from mirrord.core.states import Activity, State, Verb
from mirrord.core.units import format_duration
from mirrord.drivers.contract import Driver
from mirrord.engine import plan, recovery, shown
from mirrord.engine.failures import UPDATE
from mirrord.engine.mirror import Mirror, check_there, live_source, one_line
from mirrord.engine.shown import Fault
from mirrord.system import clock, locks
from mirrord.system.waiting import LOOK_S

#: For a mirror without an interrupted transfer.
NO_CHECKPOINT: Mapping[str, Any] = MappingProxyType(
    {"checkpoint_bytes": 0, "checkpoint_of_bytes": None, "checkpoint_age_s": None}
)

#: Verbs on live volumes: recovery may leave them for a person to decide.
DECIDED = frozenset({verb.value for verb in (Verb.BREAK, Verb.RESYNC, Verb.REVERSE, Verb.RESTORE)})
#: Kinds of faults that are about commands, not about the ends.
_OF_VERBS = frozenset({"failure", "verb"})


def status(mirror: Mirror) -> dict[str, Any]:
    """One mirror's status (docs/cli-json.md, `status`). Never raises for an unreachable end."""
    operation = mirror.catalogue.operation(mirror.id)
    holder = locks.holder_of(mirror.run.lock)
    facts, trouble = facts_of(mirror.destination)
    row = row_of(mirror, trouble)
    progress = mirror.run.read() if holder else {}
    transfers = mirror.catalogue.transfers(mirror.id, limit=1)
    last = transfers[0] if transfers else None
    state = _true_state(row.state, facts)
    activity = str(progress.get("activity", "idle")) if holder else Activity.IDLE.value
    if row.quiesced and not holder:
        activity = Activity.QUIESCED.value
    seen = shown.look(mirror, row, facts, trouble)
    failures = mirror.catalogue.failures(mirror.id)
    faults = [
        *seen.faults,
        *(shown.look_at_source(mirror) if row.state is State.MIRRORED and not holder else ()),
        *(_interrupted(mirror, operation) if operation and not holder else ()),
        *_failed(failures),
    ]
    base_risk = _base_risk(mirror, row, facts)
    problems = [fault.text for fault in faults if fault.kind not in _OF_VERBS]
    problems += [base_risk] if base_risk else []
    if not holder:
        problems += _unfinished(operation, last)
    problem_text = "\n".join(problems)
    problems += [
        fault.text
        for fault, failure in zip(_failed(failures), failures, strict=True)
        if failure.error not in problem_text
    ]
    confirmed_ns = seen.confirmed_ns
    lag_ns = clock.now_ns() - confirmed_ns if confirmed_ns else None
    return {
        "name": mirror.name,
        "id": mirror.id,
        "source": str(mirror.source),
        "destination": str(mirror.destination),
        "members": members(mirror),
        "state": state.value,
        "activity": activity,
        "healthy": not problems,
        "problems": problems,
        "lag_s": round(lag_ns / 1e9, 3) if lag_ns is not None else None,
        "confirmed_ns": confirmed_ns,
        "faults": [fault._asdict() for fault in faults],
        "failures": [failure._asdict() for failure in failures],
        "quiesced": row.quiesced,
        "schedule": list(mirror.definition.timing.rules),
        "filesystem": facts.filesystem if facts else "",
        "base_risk": base_risk,
        "view": facts.view if facts else "",
        "shown": seen.name,
        "copy": facts.copy if facts else "",
        "running": {"pid": holder.pid, "purpose": holder.purpose, **progress} if holder else None,
        **(_checkpoint(mirror, last) if facts and not holder else NO_CHECKPOINT),
        "reversed_since_ns": _reversed_since_ns(mirror),
        "last_transfer": _transfer_dict(last) if last else None,
        "notes": [sentence(note) for note in facts.notes] if facts else [],
        "next_ns": None,
        "alarms": [],
    } | promise(
        mirror.definition.promise.rpo_s,
        lag_ns / 1e9 if lag_ns is not None and state is State.MIRRORED else None,
        left_s=_left_s(progress),
    )


def _reversed_since_ns(mirror: Mirror) -> int | None:
    """Since when the sites have changed roles, 0 when that is not known; None: they have not."""
    if not mirror.definition.reversed:
        return None
    known = mirror.catalogue.direction(mirror.id)
    return known.since_ns if known else 0


def members(mirror: Mirror) -> list[dict[str, str]]:
    """The pairs of volumes of a mirror."""
    pairs = zip(mirror.source.names, mirror.source.drivers, mirror.destination.drivers, strict=True)
    return [
        {"name": name, "source": str(source), "destination": str(destination)}
        for name, source, destination in pairs
    ]


def _left_s(progress: dict[str, Any]) -> float | None:
    """The remaining time of the running transfer at its rate so far."""
    try:
        left = float(progress["estimate_bytes"]) - float(progress["done_bytes"])
        rate = float(progress["rate_bytes_s"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(0.0, left) / rate if rate > 0 else None


def promise(rpo_s: float | None, lag_s: float | None, *, left_s: float | None) -> dict[str, Any]:
    """The status of the RPO: the share of it that is used, and when it will be exceeded.

    left_s: the remaining time of the running transfer; None when none runs.
    """
    used = lag_s / rpo_s if rpo_s and lag_s is not None else None
    text = ""
    if rpo_s and lag_s is not None:
        if lag_s >= rpo_s:
            text = f"the RPO has been exceeded for {format_duration(lag_s - rpo_s)}"
        elif left_s is not None and lag_s + left_s > rpo_s:
            text = f"at this rate the RPO will be exceeded in {format_duration(rpo_s - lag_s)}"
    return {
        "rpo_s": rpo_s,
        "rpo_used": round(used, 4) if used is not None else None,
        "forecast": text,
    }


def unknown(name: str, problem: str) -> dict[str, Any]:
    """The row of a mirror whose definition cannot be read."""
    return {
        "name": name,
        "id": "",
        "source": "",
        "destination": "",
        "members": [],
        "state": "unknown",
        "activity": "idle",
        "healthy": False,
        "problems": [problem],
        "lag_s": None,
        "view": "",
        "shown": "",
        "copy": "",
        "running": None,
        **NO_CHECKPOINT,
        "last_transfer": None,
        "notes": [],
        "reversed_since_ns": None,
        "faults": [],
        "failures": [],
        "confirmed_ns": 0,
        "quiesced": False,
        "schedule": [],
        "filesystem": "",
        "base_risk": "",
        "next_ns": None,
        "alarms": [],
        "rpo_s": None,
        "rpo_used": None,
        "forecast": "",
    }


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


def row_of(mirror: Mirror, trouble: str) -> MirrorRow:
    """A mirror's row. trouble: why the destination cannot be reached, or ""."""
    if not trouble:
        return mirror.row()
    known = mirror.catalogue.mirror(mirror.id)
    return known or MirrorRow(mirror.id, State.UNINITIALIZED, False, 0, 0)


def _true_state(recorded: State, facts: VolumeFacts | None) -> State:
    """A destination that has been made live is broken off, whatever was recorded here."""
    if facts and recorded is State.MIRRORED and facts.role is Role.LIVE:
        return State.BROKEN_OFF
    return recorded


def _unfinished(operation: Operation | None, last: TransferRow | None) -> list[str]:
    """What the last transfer left behind, which the next command recovers by itself."""
    found = []
    if operation and operation.verb not in DECIDED and not (last and last.error):
        found.append(
            f"process {operation.pid} ended during {operation.verb}: the next command that changes "
            "this mirror recovers it"
        )
    if last and last.error:
        found.append(f"the last transfer failed: {last.error}")
    return found


def _interrupted(mirror: Mirror, operation: Operation) -> list[Fault]:
    """An operation on live volumes that was interrupted: no process is running it."""
    now = mirror.catalogue.operation(mirror.id)
    if operation.verb not in DECIDED or now is None or now.started_ns != operation.started_ns:
        return []  # it has ended meanwhile
    text = (
        f"an interrupted {operation.verb} waits for a decision: 'mirrord resume-operation "
        f"{mirror.name}' completes it, 'mirrord abort {mirror.name} --hard' gives it up"
    )
    return [Fault("interrupted", "error", text)]


def _failed(failures: list[FailureRow]) -> list[Fault]:
    found = []
    for failure in failures:
        kind = "failure" if failure.kind == UPDATE else "verb"
        level = "warning" if kind == "failure" else "error"
        found.append(Fault(kind, level, f"the last {failure.verb} failed: {failure.error}"))
    return found


def _base_risk(mirror: Mirror, row: MirrorRow, facts: VolumeFacts | None) -> str:
    """Why the next update cannot be incremental, or ""."""
    if not facts or row.state is not State.MIRRORED or facts.role is not Role.MIRROR:
        return ""
    if facts.mirror_id != mirror.id or not facts.shown:
        return ""
    return _blocked(mirror, facts.shown)


def _blocked(mirror: Mirror, guid: str) -> str:
    """Why the next update is not possible, or ""."""
    try:
        with mirror.waiting.hurried(LOOK_S):
            here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    except (MirrordError, OSError) as error:
        return f"the source cannot be reached: {one_line(error)}"
    base = plan.find_base(mirror.name, here, there, guid)
    return f"no update is possible: {base.why}" if isinstance(base, plan.Conflict) else ""


def _checkpoint(mirror: Mirror, last: TransferRow | None) -> dict[str, Any]:
    """The checkpoint of an interrupted transfer: its size, that of the transfer, and its age."""
    try:
        here = max((s.received_bytes for s in mirror.destination.stagings()), default=0)
    except (MirrordError, OSError):
        here = 0
    operation = mirror.catalogue.operation(mirror.id) if here else None
    if operation is None:
        return {**NO_CHECKPOINT, "checkpoint_bytes": here}
    arguments = operation.arguments
    # After a crash that time is not recorded yet.
    since_ns = arguments.get("kept_ns") or (last.started_ns if last else operation.started_ns)
    return {
        "checkpoint_bytes": here,
        "checkpoint_of_bytes": max(int(arguments.get("estimate_bytes") or 0), here)
        if arguments.get("estimate_bytes")
        else None,
        "checkpoint_age_s": round(max(0, clock.now_ns() - int(since_ns)) / 1e9, 3),
    }


def _transfer_dict(row: TransferRow) -> dict[str, Any]:
    return dict(row._asdict())


def history(mirror: Mirror, *, limit: int) -> dict[str, Any]:
    """The last transfers and events, newest first."""
    return {
        "name": mirror.name,
        "transfers": [
            _transfer_dict(row) for row in mirror.catalogue.transfers(mirror.id, limit=limit)
        ],
        "attempts": [row._asdict() for row in mirror.catalogue.attempts(mirror.id, limit=limit)],
        "events": [
            {"at_ns": row.at_ns, "level": row.level, "text": row.text}
            for row in mirror.catalogue.events(mirror.id, limit=limit)
        ],
    }


def snapshots(mirror: Mirror) -> dict[str, Any]:
    """The snapshots of both ends, oldest first, with which end has each."""
    mine = mirror.catalogue.snapshots(mirror.id)
    ends: dict[str, list[Snapshot]] = {}
    trouble: dict[str, str] = {}
    for end, driver in (("source", mirror.source), ("destination", mirror.destination)):
        try:
            ends[end] = driver.snapshots()
        except (MirrordError, OSError) as error:
            ends[end], trouble[end] = [], one_line(error)
    facts, _ = facts_of(mirror.destination)
    rows: dict[str, dict[str, Any]] = {}
    for end, listed in ends.items():
        for snapshot in listed:
            entry = rows.setdefault(
                snapshot.guid,
                {
                    "name": snapshot.name,
                    "guid": snapshot.guid,
                    "kind": snapshot.kind.value,
                    "taken_ns": snapshot.taken_at_ns,
                    "mine": snapshot.guid in mine,
                    "shown": bool(facts and facts.shown == snapshot.guid),
                    "at": {},
                },
            )
            entry["at"][end] = {"path": snapshot.path, "intact": snapshot.intact}
    base = plan.newest_complete_set(ends["source"], ends["destination"])
    for guid, entry in rows.items():
        entry["base"] = base is not None and guid == base.guid
    ordered = [rows[guid] for guid in _merged(ends["source"], ends["destination"])]
    return {"name": mirror.name, "snapshots": ordered, "unreachable": trouble}


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
) -> dict[str, Any]:
    """What the next update would send, or the difference between two snapshots of the source.

    base, incremental: names or guids of source snapshots; None: the base of the next update, and
    the source as it is now (a temporary snapshot).
    """
    with mirror.hold(Verb.UPDATE, activity=Activity.SNAPSHOTTING):
        pending = recovery.recover(mirror).pending
        if mirror.catalogue.mirror(mirror.id) is None:  # it was lost: rebuild it from the ends
            check_there(mirror.destination.facts(), mirror)
            mirror.row()
        live_source(mirror)
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
    return _delta_dict(mirror, first, found)


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
        {},
        name=lambda sequence: names.snapshot_name(mirror.id, moment_ns, sequence),
    )
    try:
        snapshot = mirror.take_snapshot(str(arguments["name"]), alone=True)
        return mirror.source.delta(
            base.guid if base else None, snapshot.guid, states=states, files=files
        )
    finally:
        recovery.recover(mirror, RuntimeError("delta is done"))


def _delta_dict(mirror: Mirror, base: Snapshot | None, found: Delta) -> dict[str, Any]:
    rate = _usual_rate(mirror)
    states = found.states
    return {
        "name": mirror.name,
        "base": base.name if base else None,
        "block_size": found.block_size,
        "states": (
            {name: getattr(states, name) for name in ("unused", "unchanged", "deleted", "added")}
            if states
            else None
        ),
        "added_bytes": found.added_bytes,
        "send_bytes": found.send_bytes,
        "exact": found.exact,
        "estimated_s": round(found.send_bytes / rate, 3) if rate else None,
        "rate_bytes_s": round(rate) if rate else None,
        "changes": (
            [
                {"path": c.path, "change": c.change, "data_bytes": c.data_bytes}
                for c in found.changes
            ]
            if found.changes is not None
            else None
        ),
    }


def _usual_rate(mirror: Mirror) -> float | None:
    """Bytes per second of this mirror's last transfers, without very short ones."""
    done = [
        (row.stream_bytes, row.duration_ms)
        for row in mirror.catalogue.transfers(mirror.id, limit=20)
        if row.result == "done" and row.duration_ms >= 5 and row.stream_bytes > 0
    ]
    total_ms = sum(duration for _, duration in done)
    return sum(size for size, _ in done) / (total_ms / 1000) if total_ms else None
