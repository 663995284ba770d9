"""Receiving: one `btrfs receive`, fed by a pipe, into a staging folder that only root can read.

`btrfs receive` accepts an end of file between two commands as the end of the stream, makes the
subvolume read-only and marks it received. Its result is therefore not relied on: a staging is
complete only when our own scanner saw the END command, the program exited with status 0, and the
subvolume has the announced identity and parent. Only then is its record marked complete.

It cannot resume in the middle of a stream either: an interrupted transfer starts over.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from mirrord.core.errors import CheckpointUseless, MirrordError, TransferFailed, Unsupported
from mirrord.core.model import ReceiveRequest
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import checkpoints, layout, staged, staging
from mirrord.drivers.btrfs.ioctl import guarded, quota_exceeded
from mirrord.drivers.btrfs.layout import Layout
from mirrord.drivers.btrfs.program import ProgramReceiver
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.system import command, steps
from mirrord.system.confine import start_confined
from mirrord.system.native import BtrfsStreamScanner, btrfs_rewrite_beginning

if TYPE_CHECKING:
    from subprocess import Popen  # noqa: TID251 - the type only

#: PATH_MAX of Linux, without the terminating zero.
_PATH_BYTES_MAX = 4095
_PROGS_HINT = "Install the package btrfs-progs (Debian: apt-get install btrfs-progs)."


@functools.cache
def _program() -> str:
    return command.find("btrfs", hint=_PROGS_HINT)


class BtrfsReceiver(ProgramReceiver):
    """See `ProgramReceiver`."""

    def __init__(
        self, place: Layout, request: ReceiveRequest, base_here: SnapshotEntry | None, where: str
    ) -> None:
        self._scanner = BtrfsStreamScanner()
        self._beginning: bytes | None = b""
        super().__init__(place, request, base_here, where)

    def _begin(self) -> None:
        self._refuse_checkpoint()
        self._make_staging()
        steps.reached("BTRFS:RECEIVE:START")
        mount = str(layout.mount_of(self._wrapper))
        reading, errors = self._open_pipe()
        try:
            self._child = start_confined(
                str(self._wrapper),
                mount,
                lambda: self._start(reading, errors, mount),
                program=_program(),
            )
        finally:
            os.close(reading)

    def _refuse_checkpoint(self) -> None:
        """What `mirrord-receive` has applied cannot be continued."""
        old = checkpoints.path_of(self._place, self._request.transfer_id, self._where)
        applied = checkpoints.look(old).stream_bytes
        checkpoints.remove("BTRFS:CHECKPOINT:REMOVE", old)
        if applied:
            raise CheckpointUseless(
                "'btrfs receive' cannot resume an interrupted transfer",
                where=self._where,
                why='receiver = "btrfs-progs" is set in mirrord.toml of that host',
                hint="Run the same command again: it starts from the beginning.",
            )

    def _start(self, reading: int, errors: int, mount: str) -> Popen[bytes]:
        """Start the program. It applies whatever a stream contains: it follows links and '..' and
        writes to devices. Therefore it runs where only the staging folder can be changed.
        """
        return command.start(
            [_program(), "-q", "receive", "-e", "-m", mount, str(self._wrapper)],
            stdin=reading,
            stdout=errors,  # no device can be opened there, nor /dev/null
            stderr=errors,
            keep=[self._receive_lock],
        )

    @guarded
    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        if self._writing < 0:
            raise TransferFailed("the receiver is closed", where=self._where)
        if self._beginning is not None:
            self._beginning += bytes(chunk)
            changed = self._changed_beginning(self._beginning)
            if changed is None:
                return
            self._beginning = None
            chunk = changed
        try:
            self._scanner.feed(chunk)
        except ValueError as error:
            raise refusals.stream_damaged(self._where, str(error)) from error
        try:
            self.waiting.write_all(self._writing, chunk)
        except BrokenPipeError as error:
            raise self._failure() from error

    def _changed_beginning(self, data: bytes) -> bytes | None:
        """The beginning of the stream with its first command changed: the snapshot gets its local
        name, and the base is given by the uuid of our own subvolume. Otherwise the program would
        use any subvolume with the same received UUID, wherever it is.
        """
        try:
            rewritten = btrfs_rewrite_beginning(data)
            if rewritten is None:
                return None
            self._check_announced(data)
            parent = bytes.fromhex(self._base.info.uuid) if self._base else None
            path = os.fsencode(self._wrapper.name)
            return btrfs_rewrite_beginning(data, path=path, parent_uuid=parent)
        except ValueError as error:
            raise refusals.stream_damaged(self._where, str(error)) from error

    def _check_announced(self, data: bytes) -> None:
        scanner = BtrfsStreamScanner()
        scanner.feed(data)
        assert scanner.beginning is not None
        uuid, ctransid, parent = scanner.beginning
        if f"{uuid}:{ctransid}" != self._request.snapshot.guid:
            raise refusals.stream_damaged(
                self._where,
                f"it holds the snapshot {uuid}:{ctransid}, not the announced "
                f"{self._request.snapshot.guid}",
            )
        if (parent is None) != (self._base is None):
            kind = "a full snapshot" if parent is None else "changes to another snapshot"
            raise refusals.stream_damaged(self._where, f"it holds {kind}, which was not announced")

    def _failure(self) -> MirrordError:
        """The reason why the program ended, in one line."""
        output, status = self._ended()
        lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines()]
        why = "; ".join(line for line in lines if line) or staged.ending("btrfs receive", status)
        return explain(why, self._where, self._request.base)

    def _finish(self) -> None:
        if not self._scanner.ended:
            raise refusals.stream_damaged(self._where, "it is truncated")
        if self._wait_for_end() != 0:
            raise self._failure()
        place, request, lock = self._place, self._request, self._receive_lock
        staged.complete(place, request, self._base, self._wrapper, self._where, lock)
        self._received_bytes = self._scanner.stream_bytes
        self._complete = True

    def close(self) -> None:
        """See `Receiver.close`: what is not finished is removed."""
        if self._child is None:
            return
        self._end_child(timeout_s=0)
        if not self._complete:
            staging.remove_staging(self._folder)


def explain(why: str, where: str, base_guid: str | None) -> MirrordError:
    """The error for a message of `btrfs receive`."""
    lower = why.lower()
    if "quota exceeded" in lower:
        return quota_exceeded(where, why)
    if "no space left" in lower:
        return refusals.no_space(where, why)
    if "operation not permitted" in lower or "permission denied" in lower:
        return refusals.permission_missing(where, why)
    unreachable = "not reachable from inside" in lower or "default subvolume" in lower
    if unreachable or "cannot find parent" in lower or "did not find source subvol" in lower:
        error = refusals.base_missing(where, base_guid or "")
        error.why = f"'btrfs receive' cannot reach it ({why})"
        if unreachable:
            error.why += "; the file system is mounted at a subvolume that does not contain it"
            error.hint = (
                "Mount the top level of the file system (or the destination's parent folder)."
            )
        return error
    if "cross-device link" in lower:
        return Unsupported(
            "this kernel cannot share data between two mounts of a file system",
            where=where,
            why=f"the stream has files that share data, which needs Linux 5.18 or newer ({why})",
            hint="Use a newer kernel at the destination; nothing was committed.",
        )
    if "stream version" in lower and "not supported" in lower:
        return Unsupported(
            "the installed btrfs-progs are too old for this stream",
            where=where,
            why=why,
            hint="Install btrfs-progs 6.0 or newer.",
        )
    if "path invalid" in lower or "name too long" in lower:
        return Unsupported(
            "a path in the volume is too long for 'btrfs receive'",
            where=where,
            why=f"with the path of the copy in front, the limit is {_PATH_BYTES_MAX} bytes: {why}",
            hint="Shorten the path at the source (rename a parent folder), or give the mirror a "
            "destination with a shorter path.",
        )
    if "crc32 mismatch" in lower or "unexpected eof" in lower or "invalid" in lower:
        return refusals.stream_damaged(where, why)
    return TransferFailed(
        "the destination could not apply the stream",
        where=where,
        why=why,
        hint="Nothing was committed. Run the same command again; if it fails again, check 'dmesg' "
        "at the destination.",
    )
