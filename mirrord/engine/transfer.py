"""One transfer: source driver -> checksum, count -> destination driver; then commit.

Nothing of the destination's view changes before `Driver.commit`.
"""

from __future__ import annotations

from typing import NamedTuple

from mirrord.core.errors import NoSpace
from mirrord.core.model import ReceiveRequest, Snapshot, Staging
from mirrord.core.results import Watcher
from mirrord.core.states import Activity
from mirrord.core.units import format_size
from mirrord.drivers.base import Driver
from mirrord.engine.progress import RunFiles
from mirrord.system import clock
from mirrord.system.native import StreamChecksum


class Outcome(NamedTuple):
    """A transfer that arrived whole; durations in seconds, sizes in bytes."""

    stream_bytes: int
    resumed_bytes: int
    added_bytes: int
    duration_s: float
    checksum: str

    def columns(self) -> dict[str, int | str]:
        """As the catalogue's columns."""
        return {
            "stream_bytes": self.stream_bytes,
            "resumed_bytes": self.resumed_bytes,
            "added_bytes": self.added_bytes,
            "duration_ms": round(self.duration_s * 1000),
            "checksum": self.checksum,
        }


class Route(NamedTuple):
    """The two ends of a transfer and who watches it."""

    sender: Driver
    receiver: Driver
    mirror_id: str
    run: RunFiles
    watcher: Watcher


def carry(route: Route, transfer_id: str, base: str | None, snapshot: Snapshot) -> Outcome:
    """Bring `snapshot` into a complete staging `transfer_id` at the receiver.

    Goes on from the staging's checkpoint when there is one. Raises what the drivers raise, and
    `NoSpace` before a byte moves when the receiver is short of what the delta needs.
    """
    started_s = clock.monotonic_s()
    left = {staging.transfer_id: staging for staging in route.receiver.stagings()}
    staging = left.get(transfer_id)
    if staging is not None and staging.complete:
        return Outcome(0, staging.received_bytes, 0, clock.monotonic_s() - started_s, "")
    delta = route.sender.delta(base, snapshot.guid)
    done_bytes = staging.received_bytes if staging else 0
    _check_space(route.receiver, max(delta.added_bytes - done_bytes, 0), snapshot)
    route.watcher.activity(Activity.TRANSFERRING, snapshot.name)
    route.watcher.transfer(snapshot.name, delta.send_bytes, done_bytes)
    route.run.begin_transfer(snapshot.name, delta.send_bytes, done_bytes)
    request = ReceiveRequest(transfer_id, route.mirror_id, base, snapshot)
    moved, checksum = _pump(route, request, staging, done_bytes)
    return Outcome(moved, done_bytes, delta.added_bytes, clock.monotonic_s() - started_s, checksum)


def _pump(
    route: Route, request: ReceiveRequest, staging: Staging | None, done_bytes: int
) -> tuple[int, str]:
    """Move the stream; returns its bytes and checksum."""
    moved, checksum = 0, StreamChecksum()
    guid = request.snapshot.guid
    checkpoint = dict(staging.checkpoint) if staging and staging.checkpoint else None
    with (
        route.receiver.receive(request) as receiver,
        route.sender.send(request.base, guid, checkpoint=checkpoint) as stream,
    ):
        while chunk := stream.read():
            route.run.check_abort()
            checksum.update(chunk)
            receiver.write(chunk)
            moved += len(chunk)
            route.watcher.moved(len(chunk))
            route.run.moved(len(chunk), done_bytes + moved)
        route.run.check_abort()
        receiver.finish()
    return moved, checksum.hexdigest()


def _check_space(receiver: Driver, need_bytes: int, snapshot: Snapshot) -> None:
    if need_bytes < 1 << 20:
        return  # what little is missing shows soon enough; asking costs more
    facts = receiver.facts()
    if need_bytes > facts.free_bytes:
        raise NoSpace(
            "the destination is too small for this transfer",
            where=str(receiver),
            why=f"{snapshot.name} needs {format_size(need_bytes)}, "
            f"{format_size(facts.free_bytes)} are free",
            hint="Free space there and run the same command again; nothing was changed.",
        )
