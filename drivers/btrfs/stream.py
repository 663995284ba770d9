"""Sending: the kernel writes the stream into a pipe, in a thread of this process.

No `btrfs send` is started: a process less, and its end cannot be mistaken for success. Whatever
passes is checked command by command, because the kernel begins the stream again, in the middle of
it, when the sending thread is stopped and continued (SIGSTOP, a debugger, a suspended container).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import Damaged, MirrordError, TransferFailed
from mirrord.drivers.base import SendStream
from mirrord.drivers.btrfs import ioctl
from mirrord.system.native import BtrfsStreamScanner, btrfs_rewrite_beginning

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_JOIN_S = 60.0


class Sending(NamedTuple):
    """What is sent.

    path: of the read-only subvolume. parent_root: id of the base, 0 for a whole stream.
    clone_sources: ids of subvolumes that the receiver has, too. rewrite_ctransid: announce this
    transaction in place of the subvolume's own: a received snapshot passes on the identity that
    it came with, not its local one.
    """

    path: Path
    parent_root: int = 0
    clone_sources: Sequence[int] = ()
    flags: int = 0
    version: int = 1
    rewrite_ctransid: int | None = None


def make_pipe() -> tuple[int, int]:
    """A pipe, as long as may be."""
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # limited for users other than root: only slower
        fcntl.fcntl(writing, _F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


class BtrfsSendStream(SendStream):
    """The stream of one snapshot."""

    def __init__(self, sending: Sending, where: str) -> None:
        self._sending = sending
        self._where = where
        self._scanner = BtrfsStreamScanner()
        self._buffer = bytearray(PIPE_BYTES)
        self._view = memoryview(self._buffer)
        self._error: OSError | None = None
        self._reading = -1
        self._ended = False
        subvolume = os.open(sending.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reading, writing = make_pipe()
        except OSError:
            os.close(subvolume)
            raise
        self._thread = threading.Thread(
            target=self._send, args=(subvolume, writing), name="btrfs-send", daemon=True
        )
        # The thread inherits the mask from its first moment on.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _send(self, subvolume: int, writing: int) -> None:
        sending = self._sending
        try:
            ioctl.send(
                subvolume,
                writing,
                parent_root=sending.parent_root,
                clone_sources=sending.clone_sources,
                flags=sending.flags,
                version=sending.version,
            )
        except OSError as error:
            self._error = error
        finally:
            os.close(writing)
            os.close(subvolume)

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        if self._reading < 0 or self._ended:
            return b""
        first = self._scanner.stream_bytes == 0
        if first and self._sending.rewrite_ctransid is not None:
            return self._checked(self._rewritten_beginning())
        return self._checked(self._view[: os.readv(self._reading, [self._buffer])])

    def _rewritten_beginning(self) -> bytes:
        data = b""
        while chunk := os.read(self._reading, 4096):
            data += chunk
            try:
                changed = btrfs_rewrite_beginning(data, ctransid=self._sending.rewrite_ctransid)
            except ValueError as error:
                raise self._restarted(str(error)) from error
            if changed is not None:
                return changed
        return data

    def _checked(self, chunk: bytes | memoryview) -> bytes | memoryview:
        if not chunk:
            self._finish()
            return b""
        try:
            self._scanner.feed(chunk)
        except ValueError as error:
            raise self._restarted(str(error)) from error
        return chunk

    def _restarted(self, why: str) -> MirrordError:
        return TransferFailed(
            "the kernel's stream makes no sense",
            where=self._where,
            why=why,
            hint="Nothing was applied; run the same command again.",
        )

    def _finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._explained(self._error) from self._error
        if not self._scanner.ended:
            raise self._restarted("it ends in its middle")
        self._ended = True

    def _explained(self, error: OSError) -> MirrordError:
        if error.errno == errno.EIO:
            return Damaged(
                "the source cannot be read",
                where=self._where,
                why="the file system found damaged data or metadata (EIO)",
                hint="See dmesg, and 'btrfs scrub start' on the source.",
            )
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            return ioctl.as_mirrord_error(error, self._where)
        return TransferFailed(
            "the source stopped sending", where=self._where, why=error.strerror or str(error)
        )

    def close(self) -> None:
        """See `SendStream.close`: without a reader, the kernel stops at its next write."""
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
            self._thread.join(_JOIN_S)
