"""Taking up what an interrupted verb left: the operation row says how far it came, the volumes
say what is there. Every step is idempotent, so recovery goes forward where all that is needed is
at hand, and back where it is not.

| verb                | phase        | what is known done         | recovery                      |
|---------------------|--------------|----------------------------|-------------------------------|
| initialize, update  | begun        | a name was given out       | drop a snapshot of that name  |
|                     | transferring | snapshot taken             | complete: commit; checkpoint: |
|                     |              |                            | keep it; else discard         |
| delta               | begun        | a name was given out       | drop a snapshot of that name  |
| break               | begun        | the owner said so          | promote                       |
| resync              | begun        | the owner said yes         | roll back, mirrored           |
| reverse             | begun        | the owner said yes         | promote, swap, roll back      |
|                     | promoted     | destination is live        | swap, roll back               |
|                     | swapped      | definition is swapped      | roll back                     |
| restore             | begun        | the owner said yes         | roll back, transfer, promote  |
|                     | prepared     | source shows the base      | transfer, promote             |
|                     | transferred  | source shows the snapshot  | promote                       |
"""

from __future__ import annotations

from typing import NamedTuple

from mirrord.catalogue.store import Confirmed, Operation
from mirrord.core.errors import Aborted, LinkLost, MirrordError, Unreachable
from mirrord.core.model import Snapshot, Staging
from mirrord.core.states import State, Verb
from mirrord.core.units import format_size
from mirrord.drivers.base import Capability
from mirrord.engine import failover_steps
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system import clock

_DAY_NS = 86400 * 1_000_000_000
_INTERRUPTED = "interrupted: the process ended before the transfer did"


class Pending(NamedTuple):
    """An interrupted transfer that can go on from its checkpoint."""

    transfer_id: str
    snapshot: Snapshot
    base: str | None
    sequence: int
    show: bool
    name: str


class Recovered(NamedTuple):
    """What recovery found and did.

    finished: the verb of an operation that was brought to its end, or "".
    pending: a transfer that can go on; its operation stays until it does or is dropped.
    """

    finished: str = ""
    pending: Pending | None = None


class Turned(Exception):
    """An interrupted reverse was finished: the definition is swapped now. Never leaves the API."""


_FAILOVER = frozenset({Verb.BREAK.value, Verb.RESYNC.value, Verb.REVERSE.value})


def recover(
    mirror: Mirror, error: BaseException | None = None, *, without_source: bool = False
) -> Recovered:
    """Settle the operation that the catalogue has for this mirror, if any.

    error: why it ended, when the caller just saw it end; None after a crash. without_source: a
    transfer whose source cannot be reached is given up. Raises `Turned` when it was a reverse: the
    mirror then goes the other way, and has to be opened anew.
    """
    operation = mirror.catalogue.operation(mirror.id)
    if operation is None:
        return Recovered()
    if error is None and not _is_kept(mirror, operation):
        mirror.catalogue.add_event(
            mirror.id, "warning",
            f"took up an interrupted {operation.verb} (process {operation.pid}, phase "
            f"{operation.phase})",
        )  # fmt: skip
    if operation.verb in _FAILOVER:
        turned = failover_steps.resume_failover(mirror, operation)
        if turned.definition is not mirror.definition:
            raise Turned
        return Recovered(operation.verb)
    if operation.verb == Verb.RESTORE.value:
        failover_steps.resume_restore(mirror, operation)
        return Recovered(operation.verb)
    if operation.phase == "begun":
        _drop_snapshot(mirror, operation)
        mirror.catalogue.end(mirror.id)
        return Recovered()
    return _settle_transfer(mirror, operation, error, without_source=without_source)


def drop(mirror: Mirror, pending: Pending) -> None:
    """Give up a transfer that could go on: its checkpoint and its snapshot go."""
    operation = mirror.catalogue.operation(mirror.id)
    assert operation is not None
    mirror.destination.discard(pending.transfer_id)
    gone = [pending.snapshot.guid] if _drop_snapshot(mirror, operation) else []
    mirror.catalogue.end(mirror.id, gone=gone)


def end_owners(mirror: Mirror) -> None:
    """A transfer of the owner's own snapshot went on and is done. The snapshot that was taken to
    follow it goes: what follows is planned anew.
    """
    operation = mirror.catalogue.operation(mirror.id)
    assert operation is not None
    _drop_snapshot(mirror, operation)
    mirror.catalogue.end(mirror.id)


def _settle_transfer(
    mirror: Mirror, operation: Operation, error: BaseException | None, *, without_source: bool
) -> Recovered:
    arguments = operation.arguments
    transfer_id, guid = str(arguments["transfer"]), str(arguments["guid"])
    show = bool(arguments["show"])
    staging = _staging(mirror, transfer_id)
    there = {snapshot.guid: snapshot for snapshot in mirror.destination.snapshots()}
    if guid in there or (staging is not None and staging.complete):
        snapshot = mirror.destination.commit(transfer_id, show=show)
        if not show:
            _drop_snapshot(mirror, operation)
        mirror.catalogue.end(
            mirror.id,
            state=State.MIRRORED if show else None,
            confirmed=Confirmed(snapshot.guid, snapshot.taken_at_ns) if show else None,
            transfer=(transfer_id, "done", {}),
        )
        return Recovered(operation.verb if show else "")
    result = "aborted" if isinstance(error, Aborted | KeyboardInterrupt) else "failed"
    columns: dict[str, int | str] = {"error": one_line(error) if error else _INTERRUPTED}
    if error is not None:
        columns["stream_bytes"] = mirror.run.moved_bytes
        columns["duration_ms"] = round((clock.monotonic_s() - mirror.run.moved_since_s) * 1000)
    try:
        pending = _pending(mirror, operation, staging)
    except (LinkLost, Unreachable):
        # What was received stays: the next command finds the source again.
        if not _is_kept(mirror, operation):
            mirror.catalogue.finish_transfer(transfer_id, result, **columns)
        if not without_source:
            raise
        pending = None
    if pending is not None and staging is not None:
        if not _is_kept(mirror, operation):
            # The times are those of this host's clock; should it jump, that costs some sending.
            mirror.catalogue.advance(
                mirror.id, operation.phase, kept_ns=clock.now_ns(),
                estimate_bytes=mirror.run.estimate_bytes if error else 0,
            )  # fmt: skip
            mirror.catalogue.finish_transfer(transfer_id, result, **columns)
        elif _is_expired(mirror, operation):
            _expire(mirror, pending, staging)
            return Recovered()
        return Recovered(pending=pending)
    mirror.destination.discard(transfer_id)
    gone = [guid] if _drop_snapshot(mirror, operation) else []
    mirror.catalogue.end(mirror.id, transfer=(transfer_id, result, columns), gone=gone)
    return Recovered()


def _is_expired(mirror: Mirror, operation: Operation) -> bool:
    kept_ns = int(operation.arguments.get("kept_ns", operation.started_ns))
    return clock.now_ns() - kept_ns > mirror.definition.checkpoint_days * _DAY_NS


def _expire(mirror: Mirror, pending: Pending, staging: Staging) -> None:
    """What waits at the destination for so long is in the way, and what follows it has grown."""
    drop(mirror, pending)
    mirror.catalogue.add_event(
        mirror.id, "warning",
        f"the checkpoint of {pending.snapshot.name} ({format_size(staging.received_bytes)}) was "
        f"older than {mirror.definition.checkpoint_days} days: discarded",
    )  # fmt: skip


def _is_kept(mirror: Mirror, operation: Operation) -> bool:
    """Whether its transfer was settled before, and waits at its checkpoint since."""
    wanted = operation.arguments.get("transfer")
    return any(
        row.id == wanted and row.result != "running"
        for row in mirror.catalogue.transfers(mirror.id, limit=1)
    )


def _staging(mirror: Mirror, transfer_id: str) -> Staging | None:
    for staging in mirror.destination.stagings():
        if staging.transfer_id == transfer_id:
            return staging
    return None


def _pending(mirror: Mirror, operation: Operation, staging: Staging | None) -> Pending | None:
    resumable = Capability.RESUME in mirror.destination.capabilities
    if staging is None or not staging.checkpoint or not resumable:
        return None
    arguments = operation.arguments
    base = arguments.get("base")
    try:
        every = mirror.source.snapshots()
        every += mirror.source.own_snapshots(mirror.definition.snapshots)
    except (LinkLost, Unreachable):
        raise
    except (MirrordError, OSError):
        return None
    here = {snapshot.guid: snapshot for snapshot in every if snapshot.intact}
    snapshot = here.get(str(arguments["guid"]))
    if snapshot is None or (base is not None and base not in here):
        return None  # the owner deletes his own when he likes: then it begins anew, from others
    return Pending(
        transfer_id=staging.transfer_id,
        snapshot=snapshot,
        base=base,
        sequence=int(arguments["sequence"]),
        show=bool(arguments["show"]),
        name=str(arguments["name"]),
    )


def _drop_snapshot(mirror: Mirror, operation: Operation) -> bool:
    """Delete the snapshot that was taken for this operation, if it is not at both ends; whether
    nothing is left of what had to go.

    The name was given out by the catalogue for this operation alone and recorded before the
    snapshot was taken: this is no guess from a name. A source that cannot be reached keeps its
    snapshot; the event says so.
    """
    name = str(operation.arguments["name"])
    try:
        there = {snapshot.guid for snapshot in mirror.destination.snapshots()}
        for snapshot in mirror.source.snapshots():
            if snapshot.name == name and snapshot.guid not in there:
                with mirror.source_locked():
                    if not mirror.catalogue.others(mirror.id, str(mirror.source), [snapshot.guid]):
                        mirror.source.delete_snapshot(snapshot.guid)
    except (MirrordError, OSError) as error:
        mirror.catalogue.add_event(
            mirror.id, "warning", f"the snapshot {name} stays at the source: {one_line(error)}"
        )
        return False
    return True
