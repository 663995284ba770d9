"""Receiving: one `btrfs receive`, fed by a pipe, into a staging folder that only root can read.

`btrfs receive` accepts an end of file between two commands as the end of the stream, makes the
subvolume read-only and marks it received. Its result is therefore not relied on: a staging is
complete only when our own scanner saw the END command, the program exited with status 0, and the
subvolume has the announced identity and parent. Only then is its record marked complete.

It cannot resume in the middle of a stream either. A transfer that may be interrupted is therefore
also kept in a spool (spool.py), and applied again from there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from mirrord.core.errors import Busy, Damaged, MirrordError, TransferFailed, Unsupported
from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers import refusals
from mirrord.drivers.btrfs import layout, spool, staging, store, subvolume
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.spool import Spool
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import make_pipe
from mirrord.drivers.streams import Receiver
from mirrord.system import clock, command, files, steps
from mirrord.system.confine import start_confined
from mirrord.system.native import BtrfsStreamScanner, btrfs_rewrite_beginning
from mirrord.system.waiting import Waiting

if TYPE_CHECKING:
    from subprocess import Popen  # noqa: TID251 - the type only

_ERROR_BYTES_MAX = 4096
#: PATH_MAX of Linux, without the terminating zero.
_PATH_BYTES_MAX = 4095
_CATCH_UP_S = 0.2
#: How long to wait for a 'btrfs receive' that a killed mirrord process left running.
_LOCK_WAIT_S = 20.0
_LOCK_POLL_S = 0.02
_PROGS_HINT = "Install the package btrfs-progs (Debian: apt-get install btrfs-progs)."


@functools.cache
def _program() -> str:
    return command.find("btrfs", hint=_PROGS_HINT)


class BtrfsReceiver(Receiver):
    """Takes one stream into `staging/<transfer>/<name>/<name>`."""

    def __init__(
        self, place: Layout, request: ReceiveRequest, base_here: SnapshotEntry | None, where: str
    ) -> None:
        super().__init__()
        self._place = place
        self._request = request
        self._base = base_here
        self._where = where
        self._scanner = BtrfsStreamScanner()
        self._beginning: bytes | None = b""
        self._complete = False
        self._child: Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._writing = self._receive_lock = -1
        self._folder = place.staging / layout.component(request.transfer_id, where)
        self._wrapper = self._folder / staging.wrapper_name(place, request.snapshot, where)
        self._subvolume = self._wrapper / self._wrapper.name
        self._spool = self._open_spool()
        self._replaying: threading.Thread | None = None
        self._replay_error: BaseException | None = None
        self._stopped = False
        self._data_unusable = False
        try:
            self._begin()
        except BaseException as error:
            self._end_child()
            if isinstance(error, OSError):  # most likely no space: leave nothing half-made
                with contextlib.suppress(OSError):
                    staging.remove_staging(self._folder)
            raise

    def _begin(self) -> None:
        self._receive_lock = _receive_lock(self._place, self._where)
        staging.remove_staging(self._folder)
        steps.reached("BTRFS:RECEIVE:STAGE")
        self._folder.mkdir(mode=0o700)
        self._wrapper.mkdir(mode=0o755)
        self._wrapper.chmod(0o755)  # users traverse it on the way to the view, whatever the umask
        request = self._request
        record = Record(request.transfer_id, request.base, request.snapshot)
        # Outside the folder that the program can write to: what it writes there is not trusted.
        layout.write_record("BTRFS:RECEIVE:RECORD", self._folder, record, durable=False)
        steps.reached("BTRFS:RECEIVE:START")
        # In memory, without a name: the program prints only a line or two of errors.
        self._errors = os.fdopen(os.memfd_create("errors", os.MFD_CLOEXEC), "w+b")
        mount = str(layout.mount_of(self._wrapper))
        reading, self._writing = make_pipe()
        os.set_blocking(self._writing, False)
        try:
            self._child = start_confined(
                str(self._wrapper), mount, lambda: self._start(reading, mount), program=_program()
            )
        finally:
            os.close(reading)
        if self._spool is not None and self._spool.stream_bytes:
            # It is applied while the source produces the stream again.
            self._replaying = threading.Thread(
                target=self._replay, args=(self._spool,), name="btrfs-replay", daemon=True
            )
            self._replaying.start()

    def _start(self, reading: int, mount: str) -> Popen[bytes]:
        """Start the program. It applies whatever a stream contains: it follows links and '..' and
        writes to devices. Therefore it runs where only the staging folder can be changed.
        """
        assert self._errors is not None
        return command.start(
            [_program(), "-q", "receive", "-e", "-m", mount, str(self._wrapper)],
            stdin=reading,
            stdout=self._errors.fileno(),  # no device can be opened there, nor /dev/null
            stderr=self._errors.fileno(),
            keep=[self._receive_lock],
        )

    def _open_spool(self) -> Spool | None:
        """The spool of an earlier attempt, or a new one for this stream."""
        request = self._request
        path = spool.path_of(self._place, request.transfer_id, self._where)
        if not request.resumable and not path.exists():
            return None
        return Spool(path, request, self._place, self._where, writing=request.resumable)

    def __str__(self) -> str:
        return self._where

    def _replay(self, kept: Spool) -> None:
        """The thread: apply what is in the spool. Not cancellable: it ends with the program."""
        patient = Waiting()
        try:
            for piece in kept.replay():
                if self._stopped:
                    return
                self._apply(piece, patient)
        except BaseException as error:
            self._replay_error = error

    @guarded
    def catch_up(self) -> bool:
        """See `Receiver.catch_up`."""
        with self._judge_errors():
            return self._catch_up(_CATCH_UP_S)

    def _catch_up(self, wait_s: float | None) -> bool:
        if self._replaying is None:
            return False
        if wait_s is None:
            self.waiting.joined(self._replaying)
        else:
            self._replaying.join(wait_s)
        if self._replaying.is_alive():
            return True
        self._replaying = None
        if self._replay_error is not None:
            raise self._replay_error
        return False

    @contextlib.contextmanager
    def _judge_errors(self) -> Iterator[None]:
        """Decide whether the received data is usable after an error: not if it would recur."""
        try:
            yield
        except MirrordError as error:
            self._data_unusable = not error.retryable
            raise
        except OSError:
            self._data_unusable = True
            raise

    @guarded
    def write(self, chunk: bytes | memoryview) -> None:
        """See `Receiver.write`."""
        if self._writing < 0:
            raise TransferFailed("the receiver is closed", where=self._where)
        if self._spool is None:
            self._apply(chunk, self.waiting)
            return
        with self._judge_errors():
            self._catch_up(None)
            self._spool.append(chunk, self.waiting)
            self._apply(chunk, self.waiting)

    def _apply(self, chunk: bytes | memoryview, waiting: Waiting) -> None:
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
            waiting.write_all(self._writing, chunk)
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
        status = self._child.wait() if self._child else 0
        output = ""
        if self._errors is not None:
            self._errors.seek(0)
            output = self._errors.read(_ERROR_BYTES_MAX).decode(errors="replace")
        lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines()]
        why = "; ".join(line for line in lines if line) or _ending(status)
        return explain(why, self._where, self._request.base)

    @guarded
    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        if self._complete:
            return self._staging()
        with self._judge_errors():
            self._finish()
        if self._spool is not None:
            self._spool.close(keep=False)
        return self._staging()

    def _finish(self) -> None:
        self._catch_up(None)
        if not self._scanner.ended:
            raise refusals.stream_damaged(self._where, "it is truncated")
        os.close(self._writing)
        self._writing = -1
        child = self._child
        assert child is not None
        self.waiting.until(lambda left_s: command.ended(child, timeout_s=left_s) is not None)
        if child.wait() != 0:
            raise self._failure()
        info = self._verified()
        files.sync_filesystem("BTRFS:FINISH:SYNC", self._wrapper)
        # Read again: data that was still in memory counted as a change until now.
        info = subvolume.info(self._subvolume)
        request = self._request
        record = Record(request.transfer_id, request.base, request.snapshot, True, info.ctransid)
        layout.write_record("BTRFS:FINISH:RECORD", self._folder, record)
        self._complete = True

    def _verified(self) -> subvolume.Info:
        if os.listdir(self._wrapper) != [self._wrapper.name]:
            raise refusals.stream_damaged(self._where, "it did not create the announced snapshot")
        try:
            info = subvolume.info(self._subvolume)
        except OSError as error:
            raise refusals.stream_damaged(self._where, "it created no snapshot") from error
        if info.guid != self._request.snapshot.guid or not info.read_only:
            raise refusals.stream_damaged(
                self._where, f"what arrived is {info.guid}, not {self._request.snapshot.guid}"
            )
        if (
            self._base is not None
            and info.parent_uuid != self._base.info.uuid
            and info.parent_uuid != store.taken_for(self._place, self._base, self._where).uuid
        ):
            raise Damaged(
                "the update was applied to a snapshot other than its base",
                where=self._where,
                why=f"it started from {info.parent_uuid}, not from {self._base.path}",
                hint="The view is unchanged; run the same command again.",
            )
        return info

    def _staging(self) -> Staging:
        request = self._request
        return Staging(
            request.transfer_id,
            request.base,
            request.snapshot,
            complete=True,
            received_bytes=self._scanner.stream_bytes,
        )

    def close(self) -> None:
        """See `Receiver.close`: what is not finished is removed; its spool is kept."""
        if self._child is None:
            return
        self._stopped = True
        self._end_child()
        try:
            if self._spool is not None:
                self._spool.close(keep=not self._complete and not self._data_unusable)
        finally:
            if not self._complete:
                staging.remove_staging(self._folder)

    def _end_child(self) -> None:
        if self._replaying is not None:
            assert self._child is not None
            self._child.kill()
            self._replaying.join()  # its next write fails, as nothing reads the pipe any more
            self._replaying = None
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        if self._child is not None:
            if self._child.poll() is None:
                self._child.kill()
            self._child.wait()
            self._child = None
        if self._receive_lock >= 0:
            os.close(self._receive_lock)
            self._receive_lock = -1
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _receive_lock(place: Layout, where: str) -> int:
    """A locked descriptor, which 'btrfs receive' inherits and so keeps locked until it exits.

    A 'btrfs receive' whose parent was killed may still write to what a new one creates under the
    same name; `Busy` when it does not exit in time.
    """
    descriptor = os.open(place.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until_s = clock.monotonic_s() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or clock.monotonic_s() > until_s:
                os.close(descriptor)
                if error.errno != errno.EWOULDBLOCK:
                    raise
                raise Busy(
                    "the 'btrfs receive' process of an earlier transfer is still running",
                    where=where,
                    why="its mirrord process was killed, and the disk is slow or hangs",
                    hint="Run the same command again when it has ended ('pgrep -af btrfs').",
                ) from None
            clock.sleep_s(_LOCK_POLL_S)


def _ending(status: int) -> str:
    if status < 0:
        return f"'btrfs receive' was killed by signal {-status}"
    return f"'btrfs receive' exited with status {status}"


def explain(why: str, where: str, base_guid: str | None) -> MirrordError:
    """The error for a message of `btrfs receive`."""
    lower = why.lower()
    if "no space left" in lower or "quota exceeded" in lower:
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
