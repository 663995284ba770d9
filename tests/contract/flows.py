"""What the suite's tests do over and over: one update through the bare contract."""

from __future__ import annotations

from mirrord.core.model import ReceiveRequest, Snapshot, Staging
from mirrord.core.sets import split
from mirrord.drivers.contract import Driver
from mirrord.drivers.streams import CHUNK_BYTES_MAX
from mirrord.engine.members import Members
from tests.contract.lab import Lab

MIRROR = "m1"


def volumes(driver: Driver) -> list[Driver]:
    """Each volume of an end: a stream is that of one of them."""
    return list(driver.drivers) if isinstance(driver, Members) else [driver]


def request(
    transfer_id: str, base: Snapshot | None, snapshot: Snapshot, *, resumable: bool = False
) -> ReceiveRequest:
    return ReceiveRequest(
        transfer_id, MIRROR, base.guid if base else None, snapshot, resumable=resumable
    )


def whole_stream(source: Driver, base: Snapshot, snapshot: Snapshot) -> bytes:
    with source.send(base.guid, snapshot.guid) as stream:
        whole = bytearray()
        while chunk := stream.read():
            whole += chunk
    return bytes(whole)


def stage(
    source: Driver,
    destination: Driver,
    base: Snapshot | None,
    snapshot: Snapshot,
    transfer: str,
    *,
    resumable: bool = False,
) -> Staging:
    """Send and receive up to a complete staging; of sets, member by member."""
    if isinstance(source, Members) and isinstance(destination, Members):
        count = len(source.drivers)
        bases = split(base, count) if base else [None] * count
        pairs = zip(source.drivers, destination.drivers, bases, split(snapshot, count), strict=True)
        for one, other, before, part in pairs:
            if not any(s.transfer_id == transfer and s.complete for s in other.stagings()):
                stage(one, other, before, part, transfer, resumable=resumable)
        [staged] = [one for one in destination.stagings() if one.transfer_id == transfer]
        return staged
    left = {staging.transfer_id: staging for staging in destination.stagings()}.get(transfer)
    checkpoint = dict(left.checkpoint) if left and left.checkpoint else None
    with (
        destination.receive(request(transfer, base, snapshot, resumable=resumable)) as receiver,
        source.send(base.guid if base else None, snapshot.guid, checkpoint=checkpoint) as stream,
    ):
        chunk = stream.read()
        while chunk:
            assert 0 < len(chunk) <= CHUNK_BYTES_MAX
            # It is written after the next one was read: its content may not change.
            copied = bytes(chunk)
            following = stream.read()
            assert chunk == copied
            receiver.write(chunk)
            chunk = following
        return receiver.finish()


def mirror(
    source: Driver, destination: Driver, base: Snapshot | None, name: str, *, show: bool = True
) -> Snapshot:
    """One whole update; returns the source's copy of the incremental."""
    snapshot = source.take_snapshot(name)
    transfer = f"t-{name}"
    staging = stage(source, destination, base, snapshot, transfer)
    assert staging.complete
    assert destination.commit(transfer, show=show).guid == snapshot.guid
    return snapshot


def initialized(lab: Lab) -> tuple[Driver, Driver, Snapshot]:
    source, destination = lab.source(), lab.destination()
    destination.prepare(MIRROR)
    return source, destination, mirror(source, destination, None, "base")
