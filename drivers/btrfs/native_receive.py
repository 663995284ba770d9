"""Receiving with `mirrord-receive` (native/receive, docs/btrfs-receiver.md), which confines itself,
checks the stream, and takes checkpoints of what it has applied.
"""

from __future__ import annotations

import contextlib
import errno
import os

from mirrord.core.errors import (
    InvariantError,
    MirrordError,
    TransferFailed,
    Unsupported,
)
from mirrord.core.model import ReceiveRequest
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import checkpoints, staged, staging
from mirrord.drivers.btrfs.ioctl import as_mirrord_error, guarded, quota_exceeded
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.program import ProgramReceiver
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.streams import PipeSink, SendStream
from mirrord.system import command, steps
from mirrord.system.native import receive_program

#: How long the last checkpoint of an interrupted transfer may take.
_CLOSE_S = 20.0
_INTERRUPTED = 3
#: Follows a stream that is whole: without it the program takes a checkpoint of what it has. This
#: process may be killed when it has passed on everything, and nobody would record the snapshot.
_CONFIRMED = b"\n"
#: Failures of the file system, for which the stream is not to blame: what is applied is kept.
_ERRNO = {"no-space": errno.ENOSPC, "read-only": errno.EROFS, "io": errno.EIO}


class NativeReceiver(ProgramReceiver):
    """See `ProgramReceiver`."""

    def __init__(
        self, place: Layout, request: ReceiveRequest, base_here: SnapshotEntry | None, where: str
    ) -> None:
        self._program = receive_program()
        self._data_unusable = False
        self._checkpoints = checkpoints.path_of(place, request.transfer_id, where)
        super().__init__(place, request, base_here, where)

    def _begin(self) -> None:
        self._demand_position()
        self._make_staging()
        request = self._request
        words = [self._program, "--into", str(self._wrapper), "--name", self._wrapper.name]
        words += ["--snapshot", request.snapshot.guid, "--confirmed"]
        if self._base is not None:
            words += ["--base", str(self._base.path)]
        if request.resumable or self._checkpoints.is_dir():
            kept = checkpoints.prepare(self._place, request, self._where)
            words += ["--checkpoints", str(kept.snapshots), "--record", str(kept.record)]
            self._own = checkpoints.own(kept)
            self._received_bytes = kept.stream_bytes
            if kept.stream_bytes:
                words += ["--resume", str(kept.stream_bytes)]
        steps.reached("BTRFS:RECEIVE:START")
        reading, errors = self._open_pipe()
        try:
            self._child = command.start(
                words, stdin=reading, stdout=errors, stderr=errors, keep=[self._receive_lock]
            )
        finally:
            os.close(reading)

    def _demand_position(self) -> None:
        """`CheckpointUseless` when the stream does not begin where the checkpoint ends: a program
        that a killed mirrord process left may have taken another one since the sender asked.
        """
        request, found = self._request, checkpoints.look(self._checkpoints)
        same = (found.base, found.snapshot.guid) == (request.base, request.snapshot.guid)
        kept_bytes = found.stream_bytes if same else 0
        if request.resume_bytes in (None, kept_bytes):
            return
        error = refusals.checkpoint_useless(
            self._where,
            f"the checkpoint is now at {kept_bytes} bytes of the stream, "
            f"not {request.resume_bytes}",
        )
        error.data["shortened"] = True
        raise error

    @guarded
    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        if self._writing < 0:
            raise TransferFailed("the receiver is closed", where=self._where)
        try:
            self.waiting.write_all(self._writing, chunk)
        except BrokenPipeError as error:
            raise self._failure() from error
        self._received_bytes += len(chunk)

    def take_from(self, stream: SendStream, most: int) -> int | None:
        """See `Receiver.take_from`: the program verifies the stream."""
        if self._writing < 0:
            return None
        try:
            moved = stream.pass_on(PipeSink(self._writing, self.waiting), most)
        except BrokenPipeError as error:
            raise self._failure() from error
        self._received_bytes += moved or 0
        return moved

    def _failure(self) -> MirrordError:
        """The reason why the program ended. The same would happen again: unless the file system
        failed, what it has applied is not kept.
        """
        output, status = self._ended()
        kind, _, why = output.strip().partition("\t")
        error = explain(
            kind, why or staged.ending("mirrord-receive", status), self._where, self._request.base
        )
        self._data_unusable = bool(why) and kind not in _ERRNO
        return error

    def _finish(self) -> None:
        try:
            self.waiting.write_all(self._writing, _CONFIRMED)
        except BrokenPipeError as error:
            raise self._failure() from error
        status = self._wait_for_end()
        if status == _INTERRUPTED:
            raise refusals.stream_damaged(self._where, "it is truncated")
        if status != 0:
            raise self._failure()
        # One that was resumed began as a snapshot of its checkpoint; the program verified both.
        place, request, lock = self._place, self._request, self._receive_lock
        staged.complete(place, request, None, self._wrapper, self._where, lock)
        self._complete = True
        checkpoints.remove("BTRFS:CHECKPOINT:REMOVE", self._checkpoints)

    def close(self) -> None:
        """See `Receiver.close`: the program takes a checkpoint of all that was written."""
        if self._child is None:
            return
        keep = not self._complete and not self._data_unusable
        if keep and self._child.poll() is None:
            self._child.terminate()  # a stream that is complete by now is not finished all the same
        self._end_child(timeout_s=_CLOSE_S if keep else 0)
        # A file system that fails must not hide why: the next attempt removes it.
        with contextlib.suppress(OSError):
            if not self._complete:
                staging.remove_staging(self._folder)
            if not keep:
                checkpoints.remove("BTRFS:CHECKPOINT:REMOVE", self._checkpoints)


def explain(kind: str, why: str, where: str, base_guid: str | None) -> MirrordError:
    """The error for a message of `mirrord-receive`."""
    if kind == "damaged":
        return refusals.stream_damaged(where, why)
    if kind == "permission":
        return refusals.permission_missing(where, why)
    if kind == "no-space" and f"(os error {errno.EDQUOT})" in why:
        return quota_exceeded(where, why)
    if kind in _ERRNO:
        return as_mirrord_error(OSError(_ERRNO[kind], why), where)
    if kind == "bug":
        bug = InvariantError("the program that applies btrfs streams failed")
        bug.where, bug.why = where, why
        return bug
    if kind == "base":
        error = refusals.base_missing(where, base_guid or "")
        error.why = why
        return error
    if kind == "unsupported":
        return Unsupported(
            "the stream cannot be applied here",
            where=where,
            why=why,
            hint="Use a newer kernel; in a container, allow CAP_SYS_ADMIN.",
        )
    if kind == "checkpoint":
        return refusals.checkpoint_useless(where, why)
    return TransferFailed(
        "the destination could not apply the stream",
        where=where,
        why=why,
        hint="Nothing was applied; run the same command again.",
    )
