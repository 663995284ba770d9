"""One transfer: source driver -> checksum, count -> destination driver; then commit.

The destination's view does not change before `Driver.commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mirrord.core.errors import (
    CheckpointUseless,
    LinkLost,
    MirrordError,
    NoSpace,
    PartLost,
    Unreachable,
)
from mirrord.core.model import BlockStates, ReceiveRequest, Snapshot, Staging
from mirrord.core.results import Watcher
from mirrord.core.states import Activity
from mirrord.core.units import format_size
from mirrord.drivers.contract import Driver
from mirrord.drivers.streams import SendStream
from mirrord.engine.fanout import Fanout
from mirrord.engine.throttle import Throttle
from mirrord.system import clock
from mirrord.system.native import StreamChecksum
from mirrord.system.waiting import Waiting

if TYPE_CHECKING:
    from mirrord.engine.progress import RunFiles
    from mirrord.engine.tally import LegProgress

#: Pauses before a broken link is retried, and how long to retry without moving a byte.
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 10.0
_PATIENCE_S = 60.0
#: A smaller transfer is repeated: a checkpoint would cost more than it saves.
_RESUMABLE_BYTES = 4 << 20
#: How often an unusable checkpoint is handled by starting over: the data before the first fault in
#: it is tried first.
_USELESS_MAX = 2
#: The space for metadata that a transfer needs: its data divided by this.
_METADATA_SHARE = 64


class Outcome(NamedTuple):
    """A completed transfer; durations in seconds, sizes in bytes."""

    stream_bytes: int
    resumed_bytes: int
    added_bytes: int
    duration_s: float
    checksum: str
    throttled_s: float = 0.0
    delta_s: float = 0.0
    states: BlockStates | None = None

    def columns(self) -> dict[str, int | str]:
        """As the catalogue's columns."""
        return {
            "stream_bytes": self.stream_bytes,
            "resumed_bytes": self.resumed_bytes,
            "added_bytes": self.added_bytes,
            "duration_ms": round(self.duration_s * 1000),
            "checksum": self.checksum,
            "throttled_ms": round(self.throttled_s * 1000),
        }


class Route(NamedTuple):
    """The two volumes of a transfer, its watcher, and how both volumes wait.

    make_room: called to prune the receiver when it lacks that many bytes. tell: adds a line to the
    history. together: shares what is read with other mirrors; None: no sharing.
    """

    sender: Driver
    receiver: Driver
    mirror_id: str
    run: RunFiles | LegProgress
    watcher: Watcher
    throttle: Throttle
    waiting: Waiting
    make_room: Callable[[int], None]
    tell: Callable[[str], None]
    together: Fanout | None

    def send(
        self, base: str | None, guid: str, checkpoint: dict[str, int | str] | None
    ) -> SendStream:
        """The sender's stream; one without a checkpoint may be shared."""
        if self.together is not None and checkpoint is None:
            return self.together.send(self.sender, base, guid)
        return self.sender.send(base, guid, checkpoint=checkpoint)


def carry(route: Route, transfer_id: str, base: str | None, snapshot: Snapshot) -> Outcome:
    """Bring `snapshot` into a complete staging `transfer_id` at the receiver.

    Resumes from the staging's checkpoint when there is one, also after a broken link: then it
    reconnects, with growing pauses, as long as that makes progress. Raises what the drivers raise,
    and `NoSpace` before a byte moves when the receiver has not enough space for the delta.
    """
    again = _Retries(route)
    while True:
        try:
            with route.waiting.cancellable(route.run.check_abort), route.waiting.once():
                outcome = _carry_once(route, transfer_id, base, snapshot)
        except (LinkLost, Unreachable) as error:
            again.after(error)
            continue
        except CheckpointUseless as error:
            again.start_over(error, transfer_id)
            continue
        return outcome._replace(
            stream_bytes=outcome.stream_bytes + again.moved_bytes,
            duration_s=clock.monotonic_s() - again.began_s,
        )


class _Retries:
    """When a broken transfer is retried: at once, then after growing pauses, and not any more when
    nothing has moved for `_PATIENCE_S`.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._pause_s = _PAUSE_FIRST_S
        self.began_s = self._moved_s = clock.monotonic_s()
        self._useless = 0
        #: What the failed attempts had moved.
        self.moved_bytes = 0

    def start_over(self, error: CheckpointUseless, transfer_id: str) -> None:
        """Give up a checkpoint that cannot be resumed, or use what can be; raises `error` when both
        was done before.
        """
        if self._useless == _USELESS_MAX:
            raise error
        if self._useless or "shortened" not in error.data:
            self._useless = _USELESS_MAX - 1
            self._route.receiver.discard(transfer_id)
            told = f"the data of an interrupted transfer cannot be used: {error}"
        elif isinstance(error, PartLost):
            told = str(error)
        else:
            told = "an interrupted transfer is resumed from the newest checkpoint: "
            told += error.why or str(error)
        self._useless += 1
        self._route.tell(told)
        self.moved_bytes += self._route.run.moved_bytes
        self._route.run.moved_bytes = 0

    def after(self, error: MirrordError) -> None:
        """Wait before the next attempt; raises `error` when there is none, `Aborted`."""
        route, now_s = self._route, clock.monotonic_s()
        if not (route.sender.remote or route.receiver.remote):
            raise error
        if route.run.moved_bytes:
            self.moved_bytes += route.run.moved_bytes
            route.run.moved_bytes = 0
            self._moved_s, self._pause_s = now_s, _PAUSE_FIRST_S
        if now_s + self._pause_s > self._moved_s + _PATIENCE_S:
            raise error
        route.watcher.activity(
            Activity.TRANSFERRING, f"connection to {error.where} lost, reconnecting"
        )
        until_s = now_s + self._pause_s
        while clock.monotonic_s() < until_s:
            route.run.check_abort()
            clock.sleep_s(min(0.05, self._pause_s))
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def _carry_once(route: Route, transfer_id: str, base: str | None, snapshot: Snapshot) -> Outcome:
    started_s = clock.monotonic_s()
    route.run.check_abort()
    left = {staging.transfer_id: staging for staging in route.receiver.stagings()}
    staging = left.pop(transfer_id, None)
    for stale in left:  # of a transfer that was given up while this end could not be reached
        route.receiver.discard(stale)
    if staging is not None and staging.complete:
        return Outcome(0, staging.received_bytes, 0, clock.monotonic_s() - started_s, "")
    delta = route.sender.delta(base, snapshot.guid)
    route.run.check_abort()
    delta_s = clock.monotonic_s() - started_s
    done_bytes = staging.received_bytes if staging else 0
    _check_space(route, max(delta.added_bytes - done_bytes, 0), snapshot)
    route.watcher.activity(Activity.TRANSFERRING, snapshot.name)
    route.watcher.transfer(snapshot.name, delta.send_bytes, done_bytes)
    route.run.begin_transfer(snapshot.name, delta.send_bytes, done_bytes)
    request = ReceiveRequest(
        transfer_id,
        route.mirror_id,
        base,
        snapshot,
        resumable=delta.send_bytes > _RESUMABLE_BYTES,
        local=not (route.sender.remote or route.receiver.remote),
        resume_bytes=done_bytes if staging and staging.checkpoint else 0,
    )
    moved, checksum = _pump(route, request, staging, done_bytes)
    return Outcome(
        stream_bytes=moved,
        resumed_bytes=done_bytes,
        added_bytes=delta.added_bytes,
        duration_s=clock.monotonic_s() - started_s,
        checksum=checksum,
        throttled_s=sum(route.throttle.waited_s.values()),
        delta_s=delta_s,
        states=delta.states,
    )


def _pump(
    route: Route, request: ReceiveRequest, staging: Staging | None, done_bytes: int
) -> tuple[int, str]:
    """Move the stream; returns its bytes and checksum, "" if nobody computed that."""
    moved, direct = 0, False

    def count(size_bytes: int) -> None:
        nonlocal moved
        moved += size_bytes
        route.watcher.moved(size_bytes)
        route.run.moved(size_bytes, done_bytes + moved)
        route.throttle.moved(size_bytes)

    guid = request.snapshot.guid
    checkpoint = dict(staging.checkpoint) if staging and staging.checkpoint else None
    with (
        route.receiver.receive(request) as receiver,
        route.send(request.base, guid, checkpoint) as stream,
    ):
        receiver.waiting = stream.waiting = route.waiting
        computed = stream.checksum or receiver.checksum
        checksum = computed or StreamChecksum()
        while stream.skip():
            route.run.check_abort()
        while (taken := receiver.take_from(stream, route.throttle.piece_bytes())) != 0:
            route.run.check_abort()
            if taken is not None:
                direct = True
                count(taken)
                continue
            if not (chunk := stream.read()):
                break
            if computed is None:
                checksum.update(chunk)
            view, piece_bytes = memoryview(chunk), route.throttle.piece_bytes()
            for start in range(0, len(chunk), piece_bytes):
                route.run.check_abort()
                piece = view[start : start + piece_bytes]
                receiver.write(piece)
                count(len(piece))
        route.run.check_abort()
        receiver.finish()
    return moved, "" if direct and computed is None else checksum.hexdigest()


def _check_space(route: Route, added_bytes: int, snapshot: Snapshot) -> None:
    """Refuse a transfer that does not fit before a byte moves, after pruning what may be pruned."""
    if added_bytes < 1 << 20:
        return  # a check would cost more than it saves
    need_bytes = added_bytes + added_bytes // _METADATA_SHARE
    free_bytes = route.receiver.facts().free_bytes
    if need_bytes > free_bytes:
        route.make_room(need_bytes)
        free_bytes = route.receiver.facts().free_bytes
    if need_bytes > free_bytes:
        raise NoSpace(
            "the destination is too small for this transfer",
            where=str(route.receiver),
            why=f"{snapshot.name} needs {format_size(need_bytes)}, "
            f"{format_size(free_bytes)} is free, and nothing more can be pruned",
            hint="Free space there, or keep fewer snapshots (`keep` of its site), and run the same "
            "command again; nothing was changed.",
        )
