"""The recorded steps of break, resync, reverse and restore: each idempotent, so that the verb and
recovery after a crash run the same code. `mirrord.engine.recovery` has the table of phases.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import NamedTuple

from mirrord.catalogue.store import Confirmed, Operation, TransferBegin
from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import MirrordError, Refused, TransferFailed
from mirrord.core.model import OpenWriter, Role, Snapshot
from mirrord.core.relationship import Intent
from mirrord.core.sets import is_complete, is_part_of
from mirrord.core.states import Activity, State, Verb
from mirrord.drivers.contract import Driver
from mirrord.drivers.refusals import snapshot_missing
from mirrord.engine import pinning, places, plan, relation
from mirrord.engine.members import Members
from mirrord.engine.mirror import Mirror
from mirrord.engine.ship import Leg, legs, ship
from mirrord.system import clock

BROKEN_OFF = "broken off: the destination is now a live volume"


class Finished(NamedTuple):
    """What a verb did. mirror: as it is now. base: name of the snapshot that both ends are at.
    kept: the name under which the losing side is kept, or None. lines: warnings for the user.
    """

    mirror: Mirror
    base: str = ""
    kept: str | None = None
    lines: tuple[str, ...] = ()


def begun(mirror: Mirror) -> Operation:
    """The operation that was just recorded."""
    operation = mirror.catalogue.operation(mirror.id)
    assert operation is not None
    return operation


def finish(mirror: Mirror, operation: Operation) -> Finished:
    """Do the remaining steps of a break, resync, reverse or restore."""
    with held(mirror, operation):
        return _FINISH[Verb(operation.verb)](mirror, operation)


def held(mirror: Mirror, operation: Operation) -> AbstractContextManager[None]:
    """Hold the source too, where the verb changes that end."""
    if operation.verb in (Verb.REVERSE.value, Verb.RESTORE.value):
        return mirror.source_locked()
    return nullcontext()


def _begin_epoch(
    mirror: Mirror, operation: Operation, intent: Intent, *, turned: bool = False
) -> None:
    """The first effect of a confirmed verb."""
    epoch, name = operation.arguments.epoch, operation.arguments.name
    if epoch is not None:
        relation.begin_epoch(mirror, epoch, intent, set_aside=name, turned=turned)


def _break(mirror: Mirror, operation: Operation) -> Finished:
    _begin_epoch(mirror, operation, Intent.BROKEN_OFF)
    make_live(mirror.destination.present(), operation.arguments.guid or None)
    mirror.catalogue.end(
        mirror.id,
        state=State.BROKEN_OFF,
        event=("info", BROKEN_OFF),
    )
    return Finished(mirror)


def make_live(destination: Driver, guid: str | None = None) -> None:
    """Promote a destination. Partly received snapshots are discarded."""
    destination.promote(guid)
    with suppress(MirrordError):
        for staging in destination.stagings():
            destination.discard(staging.transfer_id)


def _resync(mirror: Mirror, operation: Operation) -> Finished:
    _begin_epoch(mirror, operation, Intent.MIRRORED)
    return _roll_back(mirror, operation, "resynced", "destination")


def _roll_back(mirror: Mirror, operation: Operation, done: str, where: str) -> Finished:
    arguments = operation.arguments
    kept = mirror.destination.rollback(arguments.guid, mirror_id=mirror.id, keep_as=arguments.name)
    mirror.catalogue.end(
        mirror.id,
        state=State.MIRRORED,
        confirmed=Confirmed(arguments.guid, arguments.taken_ns),
        event=("info", _event(done, kept, where)),
    )
    lines = still_written(mirror.destination, kept)
    for line in lines:
        mirror.catalogue.add_event(mirror.id, "warning", line)
    return Finished(mirror, arguments.base_name, kept, lines)


def still_written(driver: Driver, kept: str | None) -> tuple[str, ...]:
    """Warnings about processes that still write to what was set aside."""
    found = driver.writers(kept) if kept else []
    return tuple(
        f"{described(writer)} open for writing: what it writes goes to {kept} only."
        for writer in found
    )


def described(writer: OpenWriter) -> str:
    """A writer as the start of a sentence: "Process 1 (name) has /path"."""
    subject = f"Process {writer.pid} ({writer.process})" if writer.pid else f"The {writer.process}"
    return f"{subject} has {writer.path}"


def _reverse(mirror: Mirror, operation: Operation) -> Finished:
    """The last update is part of it: the source is frozen, so that update has every write that was
    acknowledged before, and none is acknowledged after it.
    """
    arguments, phase = operation.arguments, operation.phase
    new_source = parse_endpoint(arguments.new_source)
    new_destination = parse_endpoint(arguments.new_destination)
    if phase == "begun":
        # A destination that is already live has everything: later changes of the source are not
        # meant for it.
        if arguments.planned and mirror.destination.facts().role is not Role.LIVE:
            last = _freeze_and_ship(mirror, operation)
            advance = partial(mirror.catalogue.advance, mirror.id, "begun")
            mark = mirror.source.mark()
            if last is None:
                advance(mark=mark)
            else:
                guid, name, taken_ns = last.guid, last.name, last.taken_at_ns
                advance(mark=mark, guid=guid, base_name=name, taken_ns=taken_ns)
        make_live(mirror.destination)
        mirror.catalogue.advance(mirror.id, "promoted")
        operation, phase = begun(mirror), "promoted"
    if phase == "promoted":
        turned = mirror.definition.source != new_source
        _begin_epoch(mirror, operation, Intent.MIRRORED, turned=turned)
        if mirror.definition.source != new_source:
            mirror = mirror.turned()
        mirror.catalogue.advance(mirror.id, "swapped")
    mirror.watcher.activity(Activity.RESYNCING, str(new_destination))
    done = f"reversed: {new_source} is now the source"
    return _roll_back(mirror, operation, done, "new destination")


def _freeze_and_ship(mirror: Mirror, operation: Operation) -> Snapshot | None:
    """Freeze the source for a planned reverse and transfer its last snapshot, which is returned;
    None when nothing had changed.
    """
    arguments = operation.arguments
    base = arguments.guid
    mirror.source.freeze()
    if not arguments.force:
        refuse_writers(mirror.source, mirror.name)  # some may have started since the plan
    last = None
    if mirror.source.changed_since(base):
        name = names.snapshot_name(mirror.id, clock.now_ns(), arguments.sequence)
        last = mirror.take_snapshot(name, alone=True)
        begin = TransferBegin(
            os.urandom(8).hex(),
            Verb.REVERSE.value,
            base,
            "",
            last,
            arguments.sequence,
            show=True,
            source=str(mirror.source),
        )
        _transfer(mirror, begin, legs(mirror.routes(), base, last), mirror.destination)
    if not all(driver.facts().frozen for driver in mirror.source.drivers):
        raise TransferFailed(
            "the reverse was cancelled",
            where=str(mirror.source),
            why="the freeze of the source ended before the last snapshot was transferred",
            hint="Nothing was switched: the mirror continues as before.",
        )
    mirror.run.check_abort()
    return last


def refuse_writers(driver: Driver, name: str) -> None:
    """Raise `Refused` when processes have files open on a volume that is to be switched."""
    found = driver.writers()
    if not found:
        return
    more = len(found) - 1
    rest = f", and {more} more" if more else ""
    raise Refused(
        "files of the volume are open for writing",
        where=str(driver),
        why=f"{described(found[0])} open{rest}",
        hint="Stop the program ('lsof' and 'fuser -vm' list all of them), or add --force: what it "
        f"still writes is then kept with the losing side of '{name}', and is not mirrored.",
    )


def _event(what: str, kept: str | None, where: str) -> str:
    return f"{what}; the {where}'s own changes are kept as {kept}" if kept else what


def _restore(mirror: Mirror, operation: Operation) -> Finished:
    """A full restore: the source is brought back to a snapshot of the destination."""
    with ExitStack() as stack:
        arguments, phase = operation.arguments, operation.phase
        guid, base = arguments.guid, arguments.base
        kept = arguments.kept
        mirror.watcher.activity(Activity.RESYNCING, str(mirror.source))
        _begin_epoch(mirror, operation, Intent.MIRRORED)
        if phase != "begun" and set(mirror.source.roles()) == {Role.ABSENT}:
            # It was lost since, not only unmounted: the volume that was rolled back is gone.
            places.check_mounted(mirror, new_disk=True)
            base, phase = None, "begun"
            mirror.catalogue.advance(mirror.id, phase, base=base)
        if phase == "begun":
            if base is None:
                stack.enter_context(_create_source(mirror))
            else:
                kept = mirror.source.rollback(base, mirror_id=mirror.id, keep_as=arguments.name)
            mirror.catalogue.advance(mirror.id, "prepared", kept=kept)
            phase = "prepared"
        if phase == "prepared":
            if base != guid:
                kept = _transfer_back(mirror, guid, base, arguments.name) or kept
            mirror.catalogue.advance(mirror.id, "transferred", kept=kept)
        if Role.MIRROR in mirror.source.roles():  # (a crash came between two members)
            mirror.source.promote(guid)
        mirror.catalogue.end(
            mirror.id,
            event=("info", _event(f"restored the source to {arguments.chosen}", kept, "source")),
        )
        relation.ensure(mirror)
        lines = still_written(mirror.source, kept)
        return Finished(mirror, arguments.chosen, kept, lines)


def _create_source(mirror: Mirror) -> AbstractContextManager[None]:
    """Create a lost source, empty; returns its lock, as nothing could be locked before. `Refused`
    when its file system is not mounted.
    """
    places.check_mounted(mirror, new_disk=True)
    mirror.source.prepare(mirror.id, in_place=True)
    return mirror.source_locked()


def _transfer_back(mirror: Mirror, guid: str, base: str | None, name: str) -> str | None:
    """Returns the name under which what was written to the source in the meantime is kept."""
    here = {snapshot.guid for snapshot in mirror.source.snapshots()}
    there = {snapshot.guid: snapshot for snapshot in mirror.destination.snapshots()}
    if guid not in there:
        raise snapshot_missing(str(mirror.destination), guid)
    transfer_id = _resumable(mirror, guid) if guid not in here else ""
    for staging in mirror.source.stagings():
        if staging.transfer_id != transfer_id:
            mirror.source.discard(staging.transfer_id)
    if not transfer_id:
        _drop_incomplete(mirror, guid, base, name)
    transfer_id = transfer_id or os.urandom(8).hex()
    if guid in here:
        return mirror.source.rollback(guid, mirror_id=mirror.id, keep_as=name)
    kept = None
    if base is None:
        base = _base_of_returned(mirror, guid)
    if Role.LIVE in mirror.source.roles():
        kept = mirror.source.rollback(base or "", mirror_id=mirror.id, keep_as=name)
    snapshot = there[guid]
    back = [way._replace(sender=way.receiver, receiver=way.sender) for way in mirror.routes()]
    found = legs(back, base, snapshot, held=mirror.source.held(snapshot.name))
    why = "" if base else "the source has no snapshot in common"
    begin = TransferBegin(transfer_id, Verb.RESTORE.value, base, why, snapshot, 0, show=True)
    _transfer(mirror, begin, found, mirror.source)
    return kept


def _transfer(
    mirror: Mirror, begin: TransferBegin, found: Sequence[Leg], receiver: Members
) -> None:
    """Ship a set that belongs to a switch to that end, and show it there."""
    mirror.catalogue.begin_transfer(mirror.id, begin)
    outcome = ship(found, begin.id, run=mirror.run, watcher=mirror.watcher)
    receiver.commit(begin.id, show=True)
    mirror.catalogue.finish_transfer(begin.id, "done", **outcome.columns())


def _base_of_returned(mirror: Mirror, guid: str) -> str | None:
    """The newest common snapshot up to the one to restore: a lost source has them again when its
    disk, or an older copy of it, has returned in the meantime.
    """
    here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    common = plan.newest_complete_set(here, there, not_after=guid)
    if common is None and Role.LIVE in mirror.source.roles():
        raise Refused(
            "the restore cannot be finished",
            where=str(mirror.source),
            why="a live volume that has no snapshot in common with the destination is there now",
            hint=f"Rename it; or give the restore up: 'mirrord abort {mirror.name} --hard'.",
        )
    return common.guid if common else None


def _drop_incomplete(mirror: Mirror, guid: str, base: str | None, name: str) -> None:
    """Delete what members of the source have of a set that is to be transferred to all of them:
    from a transfer that cannot be resumed, or because the other members were lost. (What is pinned
    of it is no base any more.)
    """
    listed = mirror.source.snapshots()
    ahead = [one for one in listed if is_part_of(one.guid, guid) and not is_complete(one.guid)]
    if pinning.own(mirror, ahead):
        mirror.source.pin(mirror.id, list(filter(is_complete, pinning.own(mirror, listed))))
    for one in ahead:
        mirror.source.go_back(one.guid, base, mirror.id, name)


def _resumable(mirror: Mirror, guid: str) -> str:
    """The transfer of that set to the source that can be resumed, or ""."""
    for staging in mirror.source.stagings():
        if (staging.complete or staging.checkpoint) and is_part_of(staging.snapshot.guid, guid):
            return staging.transfer_id
    return ""


_FINISH = {
    Verb.BREAK: _break,
    Verb.RESYNC: _resync,
    Verb.REVERSE: _reverse,
    Verb.RESTORE: _restore,
}
