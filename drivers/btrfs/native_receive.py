"""Receiving with `mirrord-receive` (native/receive, docs/btrfs-receiver.md), which confines itself,
checks the stream, and takes checkpoints of what it has applied.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mirrord.core.errors import (
    CheckpointUseless,
    InvariantError,
    MirrordError,
    TransferFailed,
    Unsupported,
)
from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import checkpoints, layout, staged, staging
from mirrord.drivers.btrfs.alone import receive_lock
from mirrord.drivers.btrfs.ioctl import as_mirrord_error, guarded
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import make_pipe
from mirrord.drivers.streams import PipeSink, Receiver, SendStream
from mirrord.system import command, steps
from mirrord.system.native import receive_program

if TYPE_CHECKING:
    from subprocess import Popen  # noqa: TID251 - the type only

_ERROR_BYTES_MAX = 4096
#: How long the last checkpoint of an interrupted transfer may take.
_CLOSE_S = 20.0
_INTERRUPTED = 3
#: Follows a stream that is whole: without it the program takes a checkpoint of what it has. This
#: process may be killed when it has passed on everything, and nobody would record the snapshot.
_CONFIRMED = b"\n"
#: Failures of the file system, for which the stream is not to blame: what is applied is kept.
_ERRNO = {"no-space": errno.ENOSPC, "read-only": errno.EROFS, "io": errno.EIO}


class NativeReceiver(Receiver):
    """Takes one stream into `staging/<transfer>/<name>/<name>`."""

    def __init__(
        self, place: Layout, request: ReceiveRequest, base_here: SnapshotEntry | None, where: str
    ) -> None:
        super().__init__()
        self._place = place
        self._request = request
        self._base = base_here
        self._where = where
        self._child: Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._writing = self._receive_lock = self._own = -1
        self._complete = self._data_unusable = False
        self._folder = place.staging / layout.component(request.transfer_id, where)
        self._wrapper = self._folder / staging.wrapper_name(place, request.snapshot, where)
        self._checkpoints = checkpoints.path_of(place, request.transfer_id, where)
        self._received_bytes = 0
        try:
            self._begin()
        except BaseException as error:
            self._end_child(timeout_s=0)
            if isinstance(error, OSError):  # most likely no space: leave nothing half-made
                with contextlib.suppress(OSError):
                    staging.remove_staging(self._folder)
            raise

    def _begin(self) -> None:
        program = receive_program()
        self._receive_lock = receive_lock(self._place, self._where)
        staging.remove_staging(self._folder)
        request = self._request
        steps.reached("BTRFS:RECEIVE:STAGE")
        self._folder.mkdir(mode=0o700)
        self._wrapper.mkdir(mode=0o755)
        self._wrapper.chmod(0o755)  # users traverse it on the way to the view, whatever the umask
        record = Record(request.transfer_id, request.base, request.snapshot)
        # Outside the folder that the program can write to: what it writes there is not trusted.
        layout.write_record("BTRFS:RECEIVE:RECORD", self._folder, record, durable=False)
        words = [program, "--into", str(self._wrapper), "--name", self._wrapper.name]
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
        # In memory, without a name: the program prints only a line of errors.
        self._errors = os.fdopen(os.memfd_create("errors", os.MFD_CLOEXEC), "w+b")
        reading, self._writing = make_pipe()
        os.set_blocking(self._writing, False)
        try:
            self._child = command.start(
                words,
                stdin=reading,
                stdout=self._errors.fileno(),
                stderr=self._errors.fileno(),
                keep=[self._receive_lock],
            )
        finally:
            os.close(reading)

    def __str__(self) -> str:
        return self._where

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
        status = self._child.wait() if self._child else 0
        kind = why = ""
        if self._errors is not None:
            self._errors.seek(0)
            output = self._errors.read(_ERROR_BYTES_MAX).decode(errors="replace")
            kind, _, why = output.strip().partition("\t")
        error = explain(
            kind, why or staged.ending("mirrord-receive", status), self._where, self._request.base
        )
        self._data_unusable = bool(why) and kind not in _ERRNO
        return error

    @guarded
    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        if not self._complete:
            self._finish()
            checkpoints.remove("BTRFS:CHECKPOINT:REMOVE", self._checkpoints)
        request = self._request
        return Staging(
            request.transfer_id,
            request.base,
            request.snapshot,
            complete=True,
            received_bytes=self._received_bytes,
        )

    def _finish(self) -> None:
        try:
            self.waiting.write_all(self._writing, _CONFIRMED)
        except BrokenPipeError as error:
            raise self._failure() from error
        os.close(self._writing)
        self._writing = -1
        child = self._child
        assert child is not None
        self.waiting.until(lambda left_s: command.ended(child, timeout_s=left_s) is not None)
        if child.wait() == _INTERRUPTED:
            raise refusals.stream_damaged(self._where, "it is truncated")
        if child.wait() != 0:
            raise self._failure()
        # One that was resumed began as a snapshot of its checkpoint; the program verified both.
        place, request, lock = self._place, self._request, self._receive_lock
        staged.complete(place, request, None, self._wrapper, self._where, lock)
        self._complete = True

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

    def _end_child(self, *, timeout_s: float) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        child, self._child = self._child, None
        if child is not None:
            if timeout_s and not _is_stopped(child.pid):
                command.ended(child, timeout_s=timeout_s)
            if child.poll() is None:
                child.kill()
            child.wait()
        for descriptor in (self._receive_lock, self._own):
            if descriptor >= 0:
                os.close(descriptor)
        self._receive_lock = self._own = -1
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal: it would not end by itself."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] in "Tt"


def explain(kind: str, why: str, where: str, base_guid: str | None) -> MirrordError:
    """The error for a message of `mirrord-receive`."""
    if kind == "damaged":
        return refusals.stream_damaged(where, why)
    if kind == "permission":
        return refusals.permission_missing(where, why)
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
        return CheckpointUseless(
            "the transfer cannot be resumed where it was interrupted",
            where=where,
            why=why,
            hint="Run the same command again: it starts from the beginning.",
        )
    return TransferFailed(
        "the destination could not apply the stream",
        where=where,
        why=why,
        hint="Nothing was applied; run the same command again.",
    )
