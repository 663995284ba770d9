"""The receiving side: `zfs recv` directly into the dataset, with the END record held back until the
commit, and the checkpoint that ZFS itself keeps of an interrupted receive.
"""

from __future__ import annotations

import fcntl
import os
import tempfile

from mirrord.core.errors import CheckpointUseless, MirrordError, TransferFailed
from mirrord.core.model import ReceiveRequest, Snapshot, Staging
from mirrord.core.units import format_few
from mirrord.drivers import refusals
from mirrord.drivers.streams import Receiver
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, names, transfer_record
from mirrord.drivers.zfs.dataset.marks import Mark
from mirrord.drivers.zfs.dataset.place import Place, look
from mirrord.drivers.zfs.receive import held_receive
from mirrord.drivers.zfs.receive.held_receive import HeldReceive
from mirrord.drivers.zfs.snapshots import listing_cache
from mirrord.drivers.zfs.snapshots.listing import Listing
from mirrord.drivers.zfs.stream import tokens
from mirrord.drivers.zfs.stream.records import Begin, ZfsScanner
from mirrord.drivers.zfs.stream.send import TOKEN
from mirrord.system import command as programs
from mirrord.system import steps

_PIPE_BYTES = 1 << 20


class ZfsReceiver(Receiver):
    """Starts `zfs recv` when the stream's first record has arrived and identifies the snapshot.

    present: the snapshot already exists here; the stream is checked and discarded.
    """

    def __init__(
        self,
        place: Place,
        request: ReceiveRequest,
        target: str,
        where: str,
        *,
        mirror_id: str,
        present: bool,
        lock: int,
    ) -> None:
        super().__init__()
        self._place = place
        self._request = request
        self._target = target
        self._where = where
        self._mirror_id = mirror_id
        self._present = present
        self._lock = lock
        self._scanner = ZfsScanner()
        self._running: HeldReceive | None = None
        self._early: HeldReceive | None = None
        self._waiting: list[bytes] = []
        self._staging: Staging | None = None
        self._closed = False

    def start_early(self) -> None:
        """Start `zfs recv` early, where its arguments do not depend on the stream: it does nothing
        until the first record arrives, and that is checked before it is passed on.
        """
        volume = self._place.here
        if self._present or self._request.base is None or volume is None:
            return
        if not volume.token and volume.get("inconsistent") != "1":
            self._early = self._launch(self._arguments(None))

    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        if self._closed or self._staging is not None:
            raise TransferFailed("the receiver is closed", where=self._where)
        try:
            passed = self._scanner.feed(chunk)
        except ValueError as error:
            raise refusals.stream_damaged(self._where, str(error)) from error
        if self._running is None:
            self._waiting += [bytes(piece) for piece in passed]
            if self._scanner.begin is None:
                return
            self._running = self._begin(self._scanner.begin)
            passed, self._waiting = list(self._waiting), []
        if self._running.child is not None:
            for piece in passed:
                self._running.write(piece, self.waiting)

    def _begin(self, begin: Begin) -> HeldReceive:
        """Check that the stream is the announced one, prepare for it and start `zfs recv`."""
        request = self._request
        if str(begin.toguid) != request.snapshot.guid:
            raise refusals.stream_damaged(
                self._where,
                f"it has the snapshot {begin.toguid}, not the announced {request.snapshot.guid}",
            )
        if (str(begin.fromguid) if begin.fromguid else None) != request.base:
            raise refusals.stream_damaged(
                self._where,
                f"its base is {begin.fromguid or 'none'}, not {request.base or 'none'}",
            )
        if not self._present:
            self._clear_leftovers(begin)
        return self._start(begin)

    def _clear_leftovers(self, begin: Begin) -> None:
        """Resume from what an earlier transfer left, or discard it."""
        volume = self._place.here
        token = volume.token if volume else ""
        if begin.resuming and not token:
            raise CheckpointUseless(
                "there is no checkpoint to resume from",
                where=self._where,
                why="the partially received state of this snapshot no longer exists",
            )
        if begin.resuming:
            return
        if token:
            command.effect(
                "ZFS:RECEIVE:ABORT", ["zfs", "recv", "-A", self._place.location], self._where
            )
        elif volume is not None and volume.get("inconsistent") == "1":
            command.effect(
                "ZFS:RECEIVE:LEFTOVER", ["zfs", "destroy", self._place.location], self._where
            )

    def _start(self, begin: Begin) -> HeldReceive:
        transfer_record.write(self._place.location, self._request)
        early, self._early = self._early, None
        return early or self._launch(self._arguments(begin))

    def _launch(self, arguments: list[str]) -> HeldReceive:
        steps.reached("ZFS:RECEIVE:START")
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        if self._present:
            made = HeldReceive(self._where, arguments, None, errors, -1, self._lock)
            self._lock = -1
            return made
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writing, False)
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except PermissionError:
            pass  # over the user's limit: the default size is sufficient
        try:
            child = command.start(
                arguments,
                stdin=reading,
                stdout=programs.NO_INPUT,
                stderr=errors.fileno(),
                keep=(self._lock,),
            )
        except BaseException:
            os.close(writing)
            errors.close()
            raise
        finally:
            os.close(reading)
        made = HeldReceive(self._where, arguments, child, errors, writing, self._lock)
        self._lock = -1
        return made

    def _arguments(self, begin: Begin | None) -> list[str]:
        """`zfs recv` with the properties to set: a new dataset is read-only, is not mounted
        automatically, and never over files.
        """
        setting = {}
        if begin is not None and self._request.base is None and not begin.resuming:
            setting[marks.STAGING] = marks.staging_text(self._request)
            setting[marks.MARK] = Mark(role="mirror", mirror_id=self._mirror_id).text()
            setting["readonly"] = "on"
            if not begin.volume:
                setting |= {"canmount": "noauto", "overlay": "off"}
        words = [word for key, value in setting.items() for word in ("-o", f"{key}={value}")]
        return ["zfs", "recv", "-s", "-u", *words, self._target]

    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        if self._staging is not None:
            return self._staging
        if not self._scanner.ended:
            raise refusals.stream_damaged(self._where, "it is incomplete")
        assert self._running is not None
        if not self._running.drained(self.waiting):
            raise self._running.failure()
        request = self._request
        self._staging = Staging(
            request.transfer_id,
            request.base,
            request.snapshot,
            complete=True,
            received_bytes=self._scanner.stream_bytes,
        )
        self._running.staging = self._staging
        self._running.target, self._running.request = self._target, request
        self._running.end_record = self._scanner.end_record
        held_receive.keep(self._place.location, self._running)
        return self._staging

    def close(self) -> None:
        """See `Receiver.close`."""
        if self._closed:
            return
        self._closed = True
        if self._staging is None:
            listing_cache.drop(self._place.location)
        if self._staging is None and self._running is not None:
            self._running.close()
        if self._early is not None:
            self._early.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def target_name(listing: Listing | None, location: str, snapshot: Snapshot, where: str) -> str:
    """The full name a snapshot gets here: its own, unless another one already has that."""
    name = names.check_snapshot(snapshot.name, where)
    there = listing.named(name) if listing else None
    if there is not None and there.guid != snapshot.guid:
        name = f"{name}_{snapshot.guid[:8]}"
    return f"{location}@{name}"


def stagings(place: Place, listing: Listing) -> list[Staging]:
    """The staging of the last transfer, if its snapshot is not here. ZFS keeps one per dataset."""
    held = held_receive.kept(place.location)
    if held is not None and held.staging is not None:
        return [held.staging]
    request = begun(place)
    if request is None or listing.find(request.snapshot.guid):
        return []
    checkpoint, received_bytes = None, 0
    token = place.here.token if place.here else ""
    if token:
        found = decoded(token)
        if found is not None and str(found.toguid) == request.snapshot.guid:
            checkpoint, received_bytes = {TOKEN: token}, found.bytes
    return [
        Staging(
            request.transfer_id,
            request.base,
            request.snapshot,
            complete=False,
            checkpoint=checkpoint,
            received_bytes=received_bytes,
        )
    ]


def begun(place: Place) -> ReceiveRequest | None:
    """The last transfer into a MIRROR, which may be unfinished, or None."""
    if place.here is None or place.mark.role != "mirror":
        return None
    found = transfer_record.read(place.location)
    if found is None and place.here.get("inconsistent") == "1":
        return last(place)  # the first transfer: its properties still exist
    return found


def last(place: Place) -> ReceiveRequest | None:
    """The transfer of the newest snapshot of a MIRROR, when that is not marked yet: by its record,
    or by the property that the first transfer set.
    """
    if place.here is None or place.mark.role != "mirror":
        return None
    recorded = transfer_record.read(place.location)
    return recorded or marks.parse_staging(place.here.local(marks.STAGING))


def decoded(token: str) -> tokens.Token | None:
    """The content of a resume token, or None when it is damaged."""
    try:
        return tokens.decode(token)
    except ValueError:
        return None


def discard(place: Place, where: str) -> None:
    """Remove what a transfer left: the process, the received data, and the record."""
    held_receive.drop(place.location)
    lock, _waited = held_receive.receive_lock(place.location, where)
    try:
        place = look(place.location, where)
        volume = place.here
        if volume is not None and volume.token:
            command.effect("ZFS:DISCARD:ABORT", ["zfs", "recv", "-A", place.location], where)
        elif volume is not None and volume.get("inconsistent") == "1":
            command.effect("ZFS:DISCARD:DESTROY", ["zfs", "destroy", place.location], where)
        transfer_record.remove("ZFS:DISCARD:RECORD", place.location)
    finally:
        os.close(lock)


def later_snapshots_error(listing: Listing, base_guid: str, where: str) -> MirrordError | None:
    """The error when a stream from that base cannot be received: another program took snapshots of
    the copy after it. None: there are no later snapshots, or only received ones.
    """
    found = listing.find(base_guid)
    later = [one for one in listing.own() if found is None or one.order > found.order]
    theirs = [one.name for one in later if one.mark is None]
    if not theirs:
        return None
    error = refusals.base_missing(where, base_guid)
    error.what = "another program or user took snapshots of the destination"
    error.why = f"{format_few(theirs)}: ZFS receives only on top of the newest snapshot"
    error.hint = (
        f"Stop other tools from taking snapshots of {listing.dataset}, and destroy these: "
        f"zfs destroy {listing.dataset}@{theirs[0]}"
    )
    return error
