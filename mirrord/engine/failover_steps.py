"""The recorded steps of break, resync, reverse and restore: each idempotent, so that the verb and
recovery after a crash run the very same code. `mirrord.engine.recovery` has the table of phases.
"""

from __future__ import annotations

import os

from mirrord.catalogue.store import Confirmed, Operation, TransferBegin
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.model import Role
from mirrord.core.states import Activity, State, Verb
from mirrord.drivers.base import snapshot_missing
from mirrord.engine.mirror import Mirror
from mirrord.engine.transfer import carry


def begun(mirror: Mirror) -> Operation:
    """The operation that was just recorded."""
    operation = mirror.catalogue.operation(mirror.id)
    assert operation is not None
    return operation


def _keep_as(operation: Operation) -> str | None:
    return str(operation.arguments["name"]) if operation.arguments["keep"] else None


def _confirmed(operation: Operation) -> Confirmed:
    return Confirmed(str(operation.arguments["guid"]), int(operation.arguments["taken_ns"]))


def resume_failover(mirror: Mirror, operation: Operation) -> Mirror:
    """Do what is left of a break, resync or reverse; returns the mirror as it is then."""
    arguments = operation.arguments
    if operation.verb == Verb.BREAK.value:
        mirror.destination.promote()
        mirror.catalogue.end(
            mirror.id, state=State.BROKEN_OFF,
            event=("info", "broken off: the destination is a live volume now"),
        )  # fmt: skip
        return mirror
    if operation.verb == Verb.RESYNC.value:
        mirror.destination.rollback(
            str(arguments["guid"]), mirror_id=mirror.id, keep_as=_keep_as(operation)
        )
        mirror.catalogue.end(
            mirror.id, state=State.MIRRORED, confirmed=_confirmed(operation),
            event=("info", _kept("resynced", _keep_as(operation), "destination")),
        )  # fmt: skip
        return mirror
    return _reverse(mirror, operation)


def _reverse(mirror: Mirror, operation: Operation) -> Mirror:
    arguments, phase = operation.arguments, operation.phase
    new_source = parse_endpoint(str(arguments["new_source"]))
    new_destination = parse_endpoint(str(arguments["new_destination"]))
    if phase == "begun":
        there = mirror.definition.destination == new_source
        (mirror.destination if there else mirror.source).promote()
        mirror.catalogue.advance(mirror.id, "promoted")
        phase = "promoted"
    if phase == "promoted":
        if mirror.definition.source != new_source:
            definition = mirror.definitions.swap(mirror.name, new_source, new_destination)
            mirror = mirror.swapped(definition)
        mirror.catalogue.advance(mirror.id, "swapped")
    mirror.watcher.activity(Activity.RESYNCING, str(new_destination))
    mirror.destination.rollback(
        str(arguments["guid"]), mirror_id=mirror.id, keep_as=_keep_as(operation)
    )
    mirror.catalogue.end(
        mirror.id, state=State.MIRRORED, confirmed=_confirmed(operation),
        event=("info", _kept(f"reversed: {new_source} is the source now", _keep_as(operation),
                             "new destination")),
    )  # fmt: skip
    return mirror


def _kept(what: str, keep_as: str | None, where: str) -> str:
    return f"{what}; the {where}'s own changes are kept as {keep_as}" if keep_as else what


def resume_restore(mirror: Mirror, operation: Operation) -> None:
    """Do what is left of a whole-volume restore: source back to a snapshot of the destination."""
    arguments, phase = operation.arguments, operation.phase
    guid, base = str(arguments["guid"]), arguments["base"]
    mirror.watcher.activity(Activity.RESYNCING, str(mirror.source))
    if phase == "begun":
        if base is None:
            mirror.source.prepare(mirror.id, in_place=True)
        else:
            mirror.source.rollback(str(base), mirror_id=mirror.id, keep_as=_keep_as(operation))
        mirror.catalogue.advance(mirror.id, "prepared")
        phase = "prepared"
    if phase in ("prepared", "transferring"):
        if base != guid:
            _transfer_back(mirror, guid, base)
        mirror.catalogue.advance(mirror.id, "transferred")
    if mirror.source.facts().role is Role.MIRROR:
        mirror.source.promote()
    mirror.catalogue.end(
        mirror.id,
        event=("info", _kept(f"restored the source to {arguments['chosen']}",
                             _keep_as(operation), "source")),
    )  # fmt: skip


def _transfer_back(mirror: Mirror, guid: str, base: str | None) -> None:
    here = {snapshot.guid for snapshot in mirror.source.snapshots()}
    there = {snapshot.guid: snapshot for snapshot in mirror.destination.snapshots()}
    if guid not in there:
        raise snapshot_missing(str(mirror.destination), guid)
    transfer_id = os.urandom(8).hex()
    for staging in mirror.source.stagings():
        if staging.snapshot.guid == guid and (staging.complete or staging.checkpoint):
            transfer_id = staging.transfer_id
        else:
            mirror.source.discard(staging.transfer_id)
    if guid in here:
        mirror.source.rollback(guid, mirror_id=mirror.id, keep_as=None)
        return
    snapshot = there[guid]
    route = mirror.route()._replace(sender=mirror.destination, receiver=mirror.source)
    why = "" if base else "the source has no snapshot in common"
    mirror.catalogue.begin_transfer(
        mirror.id,
        TransferBegin(transfer_id, Verb.RESTORE.value, base, why, snapshot, 0, show=True),
    )
    outcome = carry(route, transfer_id, base, snapshot)
    mirror.source.commit(transfer_id, show=True)
    mirror.catalogue.finish_transfer(transfer_id, "done", **outcome.columns())
