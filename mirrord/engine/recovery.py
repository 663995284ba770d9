"""Recovery of interrupted verbs: the operation row records how far a verb got, the volumes show the
present state. Every step is idempotent, so recovery completes the verb where everything that is
needed exists, and undoes it where it does not.

A verb is finished without asking only where that cannot touch anything newer than its confirmation:
the volume that is to be set aside still matches its mark of that time, or is set aside already.
Otherwise `Undecided` is raised, both ends stay as they are, and the administrator decides:
`resume-operation` (finish), or `abort --hard` (give_up).

| verb                | phase        | what is known to be done   | recovery                      |
|---------------------|--------------|----------------------------|-------------------------------|
| initialize, update  | begun        | a name was reserved        | drop a snapshot of that name  |
|                     | transferring | snapshot taken             | complete: commit; checkpoint: |
|                     |              |                            | keep it; else discard         |
| delta               | begun        | a name was reserved        | drop a snapshot of that name  |
| break               | begun        | confirmed                  | promote                       |
| resync              | begun        | confirmed                  | roll back, mirrored           |
| reverse             | begun        | confirmed                  | nothing is switched: give up  |
|                     | promoted     | destination is live        | record the roles, roll back   |
|                     | swapped      | the sites changed roles    | roll back                     |
| restore             | begun        | confirmed                  | roll back, transfer, promote  |
|                     | prepared     | source shows the base      | transfer, promote             |
|                     | transferred  | source shows the snapshot  | promote                       |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from mirrord.catalogue.store import Confirmed, Operation, TransferBegin
from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import (
    Aborted,
    LinkLost,
    MirrordError,
    Undecided,
    Unreachable,
)
from mirrord.core.model import Role, SnapshotKind, Staging
from mirrord.core.sets import is_complete
from mirrord.core.states import LIVE_VERBS, Activity, State, Verb
from mirrord.core.units import format_size
from mirrord.drivers.contract import Capability, Driver
from mirrord.engine import failover_steps, pinning, places, plan, relation, stillpaused
from mirrord.engine.direction import Turned
from mirrord.engine.members import Members
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system import clock

_DAY_NS = 86400 * 1_000_000_000
#: For verbs that begin none, and operations that were recorded before epochs existed.
_NO_EPOCH = 2**63
_INTERRUPTED = "interrupted: the process ended before the transfer was complete"


class Recovered(NamedTuple):
    """What recovery found and did.

    finished: the verb of an operation that was completed, or "".
    pending: a transfer that can be resumed; its operation stays until it is resumed or dropped.
    """

    finished: str = ""
    pending: TransferBegin | None = None


def recover(
    mirror: Mirror, error: BaseException | None = None, *, without_source: bool = False
) -> Recovered:
    """Recover the operation that the catalogue has for this mirror, if any.

    error: why it ended, when the caller has just seen it end; None after a crash. without_source: a
    transfer whose source cannot be reached is given up. Raises `Undecided`; and `Turned` when it
    was a reverse: the mirror then has the other direction, and has to be opened again.
    """
    stillpaused.resume(mirror)
    operation = mirror.catalogue.operation(mirror.id)
    if operation is None:
        return Recovered()
    if error is None and mirror.outdated():
        return Recovered()  # it is older than the volumes
    epoch = operation.arguments.epoch
    if relation.is_over(mirror, _NO_EPOCH if epoch is None else epoch):
        text = (
            f"an interrupted {operation.verb} was discarded: the mirror is already in a later epoch"
        )
        mirror.catalogue.end(mirror.id, event=("warning", text))
        return Recovered()
    if operation.verb in LIVE_VERBS:
        return _recover_switch(mirror, operation)
    if error is None and not _is_kept(mirror, operation):
        _tell(mirror, operation)
    if operation.phase == "begun":
        # After a failure here the next command tries once more: only it knows the snapshot.
        dropped, guid = _drop_snapshot(mirror, operation), operation.arguments.guid
        if dropped or error is None:
            mirror.catalogue.end(mirror.id, gone=[guid] if dropped and guid else [])
        return Recovered()
    return _settle_transfer(mirror, operation, error, without_source=without_source)


def _tell(mirror: Mirror, operation: Operation) -> None:
    mirror.catalogue.add_event(
        mirror.id,
        "warning",
        f"recovering an interrupted {operation.verb} (process {operation.pid}, phase "
        f"{operation.phase})",
    )


def _recover_switch(mirror: Mirror, operation: Operation) -> Recovered:
    if operation.verb == Verb.REVERSE.value and nothing_switched(mirror, operation):
        give_up(mirror, operation)
        return Recovered()
    if operation.verb == Verb.BREAK.value:
        return _finish_unasked(mirror, operation)
    with failover_steps.held(mirror, operation), _frozen(_loser(mirror, operation)):
        return _finish_unasked(mirror, operation)


@contextmanager
def _frozen(where: Driver) -> Iterator[None]:
    """Block writes between the check of a live volume and its switch, where that is possible."""
    try:
        if where.facts().role is Role.LIVE:
            where.freeze()
    except MirrordError:
        pass  # what is written then is set aside, too
    try:
        yield
    finally:
        with suppress(MirrordError):
            where.thaw()


def _finish_unasked(mirror: Mirror, operation: Operation) -> Recovered:
    why = undecided(mirror, operation)
    if why:
        raise Undecided(
            f"an interrupted {operation.verb} waits for a decision",
            where=f"mirror '{mirror.name}'",
            why=why,
            hint="Nothing was lost. 'mirrord resume-operation "
            f"{mirror.name}' finishes the {operation.verb} and keeps the later "
            f"changes as a `diverged` snapshot; 'mirrord abort {mirror.name} --hard' gives it up.",
        )
    _tell(mirror, operation)
    finished = failover_steps.finish(mirror, operation)
    mirror.catalogue.clear_failures(mirror.id, {operation.verb})  # it has not failed after all
    if finished.mirror.definition is not mirror.definition:
        raise Turned
    return Recovered(operation.verb)


def nothing_switched(mirror: Mirror, operation: Operation) -> bool:
    """Whether a switch has certainly not changed yet what is live and what is shown."""
    if operation.phase != "begun":
        return False
    if operation.verb == Verb.REVERSE.value:
        return Role.LIVE not in mirror.destination.roles()
    if operation.verb == Verb.RESYNC.value:
        return set(mirror.destination.roles()) <= {Role.LIVE, Role.FOREIGN}
    return operation.verb == Verb.RESTORE.value and Role.MIRROR not in mirror.source.roles()


def give_back(mirror: Mirror, error: BaseException) -> None:
    """A switch has failed in this process: give it up when nothing was switched yet."""
    if not isinstance(error, Exception | KeyboardInterrupt):
        return
    mirror.run.begin(Activity.ABORTING)  # clears a request to abort: clean up
    try:
        operation = mirror.catalogue.operation(mirror.id)
        if operation is not None and nothing_switched(mirror, operation):
            give_up(mirror, operation)
    except (MirrordError, OSError) as second:
        error.add_note(f"cleanup failed too, the next command will do it: {second}")


def undecided(mirror: Mirror, operation: Operation) -> str:
    """Why a verb cannot be finished without asking, or ""."""
    if operation.verb == Verb.BREAK.value:
        return ""
    where = _loser(mirror, operation)
    marks = where.marks(operation.arguments.mark)
    found = (_undecided_of(operation, *one) for one in zip(where.drivers, marks, strict=True))
    return "; ".join(why for why in found if why)


def _undecided_of(operation: Operation, where: Driver, mark: str) -> str:
    """The same for one member. Others may be set aside already: a crash came between them."""
    verb, role = Verb(operation.verb), where.facts().role
    if role is Role.MIRROR or (verb is Verb.RESTORE and operation.phase == "transferred"):
        return ""  # set aside already, and read-only since
    if verb is Verb.RESTORE and role is Role.ABSENT and operation.arguments.base is None:
        return ""
    began = clock.format_moment(operation.started_ns)
    if role is not Role.LIVE:
        return f"{where} is no longer what it was at {began}"
    if operation.phase in ("begun", "promoted", "swapped"):
        if where.is_marked(mark):
            return ""
        return f"{where} was written to, or replaced, after {began}"
    return f"{where} was made writable after {began}"


def _loser(mirror: Mirror, operation: Operation) -> Members:
    """The end whose live volume the verb sets aside; a reverse may have swapped them already."""
    if operation.verb == Verb.RESYNC.value:
        return mirror.destination
    if operation.verb == Verb.REVERSE.value:
        new_source = parse_endpoint(operation.arguments.new_source)
        return mirror.destination if mirror.definition.source == new_source else mirror.source
    return mirror.source


def give_up(mirror: Mirror, operation: Operation) -> bool:
    """Cancel an interrupted switch so that both ends are live, or as they were: what was set aside
    for it is put back. Where nothing was, it is finished: False.
    """
    with failover_steps.held(mirror, operation):
        return _give_up(mirror, operation)


def _give_up(mirror: Mirror, operation: Operation) -> bool:
    verb = Verb(operation.verb)
    state: State | None = None
    confirmed: Confirmed | None = None
    where = _loser(mirror, operation)
    if verb is Verb.REVERSE and nothing_switched(mirror, operation):
        confirmed = _settle_last_update(mirror, operation)
    elif verb is not Verb.BREAK:
        done = verb is Verb.RESTORE and operation.phase == "transferred"
        if Role.MIRROR in where.roles() and (done or _put_back(operation, where)):
            finished = failover_steps.finish(mirror, operation)
            if finished.mirror.definition is not mirror.definition:
                raise Turned
            return False
        if verb is not Verb.RESTORE and Role.LIVE in where.roles():
            state = State.BROKEN_OFF
    with mirror.failure_noted(f"{where} could not be thawed"):
        where.thaw()
    mirror.catalogue.end(
        mirror.id,
        state=state,
        confirmed=confirmed,
        event=("warning", f"gave up an interrupted {operation.verb}"),
    )
    return True


def _put_back(operation: Operation, where: Members) -> bool:
    """Make what was set aside live again; True: nothing was, so the verb can be finished."""
    for staging in where.stagings():
        where.discard(staging.transfer_id)
    restoring = operation.verb == Verb.RESTORE.value
    base = operation.arguments.base if restoring else operation.arguments.guid
    if base is None:
        where.forget()  # there was no volume
        return False
    if where.put_back(operation.arguments.name, base):
        return False
    if restoring:
        where.promote(base)  # it had no other changes
    return not restoring


def _settle_last_update(mirror: Mirror, operation: Operation) -> Confirmed | None:
    """The last update of a planned reverse: if it was not completed, delete what it left; otherwise
    it is what the destination shows.
    """
    for staging in mirror.destination.stagings():
        mirror.destination.discard(staging.transfer_id)
    sequence = operation.arguments.sequence
    with mirror.failure_noted("a snapshot was not deleted at the source"):
        there = {snapshot.guid: snapshot for snapshot in mirror.destination.snapshots()}
        last = there.get(mirror.destination.facts().shown or "")
        if last is not None and names.sequence_of(last.name, mirror.id) == sequence:
            return Confirmed(last.guid, last.taken_at_ns)
        for snapshot in mirror.source.snapshots():
            mine = names.sequence_of(snapshot.name, mirror.id) == sequence
            if mine and snapshot.kind is SnapshotKind.REFERENCE and snapshot.guid not in there:
                with mirror.source_locked():
                    mirror.source.delete_snapshot(snapshot.guid)
    return None


def drop(mirror: Mirror, pending: TransferBegin | None) -> None:
    """Give up a transfer that could be resumed, if there is one, with its checkpoint and its
    snapshot.
    """
    if pending is None:
        return
    operation = failover_steps.begun(mirror)
    mirror.destination.discard(pending.id)
    _take_back(mirror, pending.snapshot.name)
    gone = [pending.snapshot.guid] if _drop_snapshot(mirror, operation) else []
    mirror.catalogue.end(mirror.id, gone=gone)


def _take_back(mirror: Mirror, name: str) -> None:
    """Roll members of the destination that have committed a set which the others will not receive
    back to the newest complete one, and delete their part of the set.
    """
    listed = mirror.destination.snapshots()
    ahead = [one.guid for one in listed if one.name == name and not is_complete(one.guid)]
    complete = [one.guid for one in listed if plan.usable(one)]
    if not ahead or mirror.destination.append_only or Role.LIVE in mirror.destination.roles():
        return
    with mirror.failure_noted(f"incomplete set {name} was not deleted at the destination"):
        mirror.destination.go_back(ahead[0], complete[-1] if complete else None, mirror.id, name)


def end_owners(mirror: Mirror) -> None:
    """The resumed transfer of a user snapshot is done. Delete the snapshot that was taken to follow
    it: what follows is planned again.
    """
    _drop_snapshot(mirror, failover_steps.begun(mirror))
    mirror.catalogue.end(mirror.id)


def _settle_transfer(
    mirror: Mirror, operation: Operation, error: BaseException | None, *, without_source: bool
) -> Recovered:
    places.check_destination_mounted(mirror)
    arguments = operation.arguments
    transfer_id, guid, show = arguments.transfer, arguments.guid, arguments.show
    staging = _staging(mirror, transfer_id)
    there = {snapshot.guid: snapshot for snapshot in mirror.destination.snapshots()}
    # It was broken off since: this operation is of an older catalogue, or another host took over.
    live = Role.LIVE in mirror.destination.roles()
    # What is to be verified before it is committed is resumed instead: that has still to be done.
    committable = staging is not None and staging.complete and not mirror.definition.verify.updates
    if live and guid in there:
        mirror.catalogue.end(mirror.id, transfer=(transfer_id, "done", {}))
        return Recovered()
    if not live and (guid in there or committable):
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
        pending = None if live else _pending(mirror, operation, staging)
    except (LinkLost, Unreachable):
        # What was received is kept: the next command may reach the source again.
        if not _is_kept(mirror, operation):
            mirror.catalogue.finish_transfer(transfer_id, result, **columns)
        if not without_source:
            raise
        pending = None
    if pending is not None and staging is not None:
        if not _is_kept(mirror, operation):
            # These are times of this host's clock; if it jumps, some data may be sent again.
            mirror.catalogue.advance(
                mirror.id,
                operation.phase,
                kept_ns=clock.now_ns(),
                estimate_bytes=mirror.run.estimate_bytes if error else 0,
            )
            mirror.catalogue.finish_transfer(transfer_id, result, **columns)
        elif _is_expired(mirror, operation):
            _expire(mirror, pending, staging)
            return Recovered()
        return Recovered(pending=pending)
    mirror.destination.discard(transfer_id)
    _take_back(mirror, arguments.name)
    gone = [guid] if _drop_snapshot(mirror, operation) else []
    mirror.catalogue.end(mirror.id, transfer=(transfer_id, result, columns), gone=gone)
    return Recovered()


def _is_expired(mirror: Mirror, operation: Operation) -> bool:
    kept_ns = operation.arguments.kept_ns or operation.started_ns
    return clock.now_ns() - kept_ns > mirror.definition.checkpoint_days * _DAY_NS


def _expire(mirror: Mirror, pending: TransferBegin, staging: Staging) -> None:
    """Discard an old checkpoint: it takes space, and a new update is larger anyway."""
    drop(mirror, pending)
    mirror.catalogue.add_event(
        mirror.id,
        "warning",
        f"the checkpoint of {pending.snapshot.name} ({format_size(staging.received_bytes)}) was "
        f"older than {mirror.definition.checkpoint_days} days: discarded",
    )


def _is_kept(mirror: Mirror, operation: Operation) -> bool:
    """Whether its transfer was recovered before, and its checkpoint was kept."""
    wanted = operation.arguments.transfer
    return any(
        row.id == wanted and row.result != "running"
        for row in mirror.catalogue.transfers(mirror.id, limit=1)
    )


def _staging(mirror: Mirror, transfer_id: str) -> Staging | None:
    for staging in mirror.destination.stagings():
        if staging.transfer_id == transfer_id:
            return staging
    return None


def _pending(mirror: Mirror, operation: Operation, staging: Staging | None) -> TransferBegin | None:
    """The interrupted transfer, when it can be resumed from its checkpoint. (The catalogue keeps
    why it is a full one.)
    """
    resumable = Capability.RESUME in mirror.destination.capabilities
    if staging is None or not (staging.complete or (staging.checkpoint and resumable)):
        return None
    arguments = operation.arguments
    base = arguments.base
    try:
        every = mirror.source.snapshots()
        every += mirror.source.own_snapshots(mirror.definition.snapshots)
    except (LinkLost, Unreachable):
        raise
    except (MirrordError, OSError):
        return None
    here = {snapshot.guid: snapshot for snapshot in every if snapshot.intact}
    snapshot = here.get(arguments.guid)
    if snapshot is None or (base is not None and base not in here):
        return None  # users may delete their own snapshots: then the update is planned again
    return TransferBegin(
        staging.transfer_id,
        operation.verb,
        base,
        "",
        snapshot,
        arguments.sequence,
        arguments.show,
        str(mirror.source),
    )


def _drop_snapshot(mirror: Mirror, operation: Operation) -> bool:
    """Delete the snapshot that was taken for this operation, if it is not at both ends; returns
    whether the mirror has nothing more to do with it.

    The catalogue reserved the name for this operation only, before the snapshot was taken, so the
    name identifies it. One that another mirror took, and no longer has, is left to the next prune.
    A source that cannot be reached keeps its snapshot, which is recorded as an event.
    """
    name, left = operation.arguments.name, False
    with mirror.failure_noted(f"the snapshot {name} was not deleted at the source"):
        there = {snapshot.guid for snapshot in mirror.destination.snapshots()}
        for snapshot in mirror.source.snapshots():
            if snapshot.name == name and snapshot.guid not in there:
                with mirror.source_locked():
                    if not mirror.catalogue.others(mirror.id, str(mirror.source), [snapshot.guid]):
                        mirror.source.delete_snapshot(snapshot.guid)
            elif snapshot.guid == operation.arguments.guid and snapshot.guid not in there:
                left = pinning.is_left_to(mirror, snapshot)
        return not left
    return False
