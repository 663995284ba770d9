"""The JSON documents of reports whose keys are not those of their type (docs/cli-json.md). Keys are
added, never renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirrord.wire.values import as_json

if TYPE_CHECKING:
    from mirrord.core.reports import DeltaReport, NamedSchedule, SnapshotTable
    from mirrord.core.status import MirrorStatus, RunningVerb


def of_status(status: MirrorStatus) -> dict[str, Any]:
    """One mirror of `status --json`."""
    reading, last = status.reading, status.reading.last_transfer
    found = {
        "name": reading.name,
        "id": reading.id,
        "source": reading.source,
        "destination": reading.destination,
        "members": [pair._asdict() for pair in reading.members],
        "state": status.state,
        "activity": status.activity.value,
        "healthy": status.healthy,
        "problems": list(status.problems),
        "lag_s": _rounded(status.lag_s, 3),
        "confirmed_ns": reading.confirmed_ns,
        "faults": [fault._asdict() for fault in reading.faults],
        "failures": [failure._asdict() for failure in reading.failures],
        "quiesced": reading.quiesced,
        "schedule": list(reading.schedule),
        "filesystem": reading.filesystem,
        "base_risk": reading.base_risk,
        "view": reading.view,
        "shown": reading.shown,
        "copy": reading.copy,
        "running": _running(status.running) if status.running else None,
        "checkpoint_bytes": reading.checkpoint.size_bytes,
        "checkpoint_of_bytes": reading.checkpoint.of_bytes,
        "checkpoint_age_s": _rounded(status.checkpoint_age_s, 3),
        "reversed_since_ns": reading.reversed_since_ns,
        "last_transfer": last._asdict() if last else None,
        "verified": _verified(status),
        "notes": list(reading.notes),
        "next_ns": status.next_ns,
        "next_verify_ns": status.next_verify_ns,
        "alarms": [alarm._asdict() for alarm in status.alarms],
        "rpo_s": reading.rpo_s,
        "rpo_used": _rounded(status.lag.used, 4),
        "forecast": status.lag.forecast,
        "live": as_json(reading.live),
    }
    return found if status.waiting is None else found | {"waiting": status.waiting}


def _verified(status: MirrorStatus) -> dict[str, Any] | None:
    verified = status.reading.verified
    if verified is None:
        return None
    age_s = _rounded(status.verified_age_s, 3)
    return verified._asdict() | {"mode": verified.mode.value, "age_s": age_s}


def _running(running: RunningVerb) -> dict[str, Any]:
    """The keys about a transfer are there once there was one."""
    progress = running.progress
    found: dict[str, Any] = {
        "pid": running.pid,
        "purpose": running.purpose,
        "activity": progress.activity.value,
    }
    if progress.snapshot:
        found |= {
            "snapshot": progress.snapshot,
            "estimate_bytes": progress.estimate_bytes,
            "done_bytes": progress.done_bytes,
        }
    if progress.rate_bytes_s is not None:
        found["rate_bytes_s"] = progress.rate_bytes_s
    return found


def of_snapshots(table: SnapshotTable) -> dict[str, Any]:
    """`snapshots --json`."""
    rows = []
    for entry in table.snapshots:
        row = entry._asdict() | {"kind": entry.kind.value}
        ends = {"source": row.pop("source"), "destination": row.pop("destination")}
        row["at"] = {end: copy._asdict() for end, copy in ends.items() if copy}
        rows.append(row)
    return {"name": table.name, "snapshots": rows, "unreachable": dict(table.unreachable)}


def of_delta(delta: DeltaReport) -> dict[str, Any]:
    """`delta --json`."""
    changes = delta.changes
    return delta._asdict() | {
        "states": delta.states._asdict() if delta.states else None,
        "estimated_s": _rounded(delta.estimated_s, 3),
        "rate_bytes_s": round(delta.rate_bytes_s) if delta.rate_bytes_s else None,
        "changes": None if changes is None else [change._asdict() for change in changes],
    }


def of_schedule(schedule: NamedSchedule) -> dict[str, Any]:
    """One schedule of `schedule list --json`."""
    found = schedule._asdict()
    return found | {"from": found.pop("origin")}


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None else None
