"""Sending: the kernel writes the stream into a pipe, in a thread of this process.

`btrfs send` is not used: this saves a process, and its exit cannot be mistaken for success. The
stream is checked command by command, because the kernel starts it again, in the middle, when the
sending thread is stopped and continued (SIGSTOP, a debugger, a suspended container).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from mirrord.core.errors import Damaged, MirrordError, TransferFailed
from mirrord.drivers.btrfs import ioctl
from mirrord.drivers.refusals import checkpoint_useless
from mirrord.drivers.streams import SendStream, Sink
from mirrord.system import clock
from mirrord.system.native import (
    BtrfsStreamScanner,
    StreamDigest,
    btrfs_rewrite_beginning,
    fill_from,
)

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_JOIN_S = 60.0
_SKIP_S = 0.5
#: Read at once. The kernel writes less at a time.
_CHUNK_BYTES = 1 << 20
#: How long what was read may wait for more.
_PATIENCE_S = 0.02


class Sending(NamedTuple):
    """What is sent.

    path: of the read-only subvolume. parent_root: id of the base, 0 for a full stream.
    shared: the receiver also has the base, so that data can be cloned from it. rewrite_ctransid:
    announce this transaction instead of the subvolume's own, because a received snapshot passes on
    its original identity, not its local one.
    """

    path: Path
    parent_root: int = 0
    shared: bool = False
    flags: int = 0
    version: int = 1
    rewrite_ctransid: int | None = None


class Checkpoint(NamedTuple):
    """How much of a stream the other end has: its length in bytes and BLAKE3 digest."""

    stream_bytes: int
    digest: str

    @classmethod
    def parse(cls, checkpoint: Mapping[str, int | str] | None, where: str) -> Self | None:
        """From a `Staging`; `CheckpointUseless` when this driver did not write it."""
        if not checkpoint:
            return None
        stream_bytes, digest = checkpoint.get("bytes"), checkpoint.get("digest")
        if not isinstance(stream_bytes, int) or not isinstance(digest, str) or stream_bytes < 1:
            raise checkpoint_useless(
                where, f"{dict(checkpoint)} is not a position in a btrfs stream"
            )
        return cls(stream_bytes, digest)


def make_pipe() -> tuple[int, int]:
    """A pipe with the largest possible buffer."""
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # limited for users other than root: only slower
        fcntl.fcntl(writing, _F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


class BtrfsSendStream(SendStream):
    """The stream of one snapshot. resume_from: resume after what the other end has."""

    def __init__(self, sending: Sending, where: str, resume_from: Checkpoint | None = None) -> None:
        super().__init__()
        self._sending = sending
        self._resume_from = resume_from
        self._left_bytes = resume_from.stream_bytes if resume_from else 0
        self._digest = StreamDigest()
        self._rest: bytes | memoryview = b""
        self._where = where
        self._scanner = BtrfsStreamScanner()
        self._error: OSError | None = None
        self._reading = -1
        self._ended = False
        #: Whether a part was moved on without looking at it: the other end verifies the stream.
        self._passed = False
        subvolume = os.open(sending.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reading, writing = make_pipe()
        except OSError:
            os.close(subvolume)
            raise
        self._thread = threading.Thread(
            target=self._send, args=(subvolume, writing), name="btrfs-send", daemon=True
        )
        # The thread inherits the signal mask when it starts.
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
                shared=sending.shared,
                flags=sending.flags,
                version=sending.version,
            )
        except OSError as error:
            self._error = error
        finally:
            os.close(writing)
            os.close(subvolume)

    def skip(self) -> bool:
        """See `SendStream.skip`."""
        until_s = clock.monotonic_s() + _SKIP_S
        while self._left_bytes:
            if clock.monotonic_s() > until_s:
                return True
            self._skip_chunk()
        return False

    def _skip_chunk(self) -> None:
        assert self._resume_from is not None
        chunk = self._read()
        if not chunk:
            raise checkpoint_useless(
                self._where, "the stream is shorter than the part already received"
            )
        known = memoryview(chunk)[: self._left_bytes]
        self._digest.update(known)
        self._left_bytes -= len(known)
        if self._left_bytes:
            return
        if self._digest.hexdigest() != self._resume_from.digest:
            raise checkpoint_useless(
                self._where,
                f"the first {self._resume_from.stream_bytes} bytes of the stream differ from what "
                "was received",
            )
        self._rest = memoryview(chunk)[len(known) :]

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        while self._left_bytes:
            self._skip_chunk()
        if self._rest:
            chunk, self._rest = self._rest, b""
            return chunk
        return self._read()

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """See `SendStream.pass_on`. A beginning that is changed is read."""
        if self._reading < 0 or self._left_bytes or self._rest:
            return None
        begun = self._passed or self._scanner.stream_bytes
        if self._sending.rewrite_ctransid is not None and not begun:
            return None
        if not self._ended:
            self._passed = True
            moved, self._rest = sink.take(self._reading, most)
            if moved or self._rest:
                return moved or None
            self._join()
            self._ended = True
        return 0

    def _read(self) -> bytes | memoryview:
        if self._reading < 0 or self._ended:
            return b""
        first = not self._passed and self._scanner.stream_bytes == 0
        if first and self._sending.rewrite_ctransid is not None:
            return self._checked(self._rewritten_beginning())
        self.waiting.readable(self._reading)
        return self._checked(memoryview(fill_from(self._reading, _CHUNK_BYTES, _PATIENCE_S)))

    def _rewritten_beginning(self) -> bytes:
        data = b""
        while True:
            self.waiting.readable(self._reading)
            chunk = os.read(self._reading, 4096)
            if not chunk:
                return data
            data += chunk
            try:
                changed = btrfs_rewrite_beginning(data, ctransid=self._sending.rewrite_ctransid)
            except ValueError as error:
                raise self._restarted(str(error)) from error
            if changed is not None:
                return changed

    def _checked(self, chunk: bytes | memoryview) -> bytes | memoryview:
        if not chunk:
            self._finish()
            return b""
        try:
            if not self._passed:
                self._scanner.feed(chunk)
        except ValueError as error:
            raise self._restarted(str(error)) from error
        return chunk

    def _restarted(self, why: str) -> MirrordError:
        return TransferFailed(
            "the kernel's send stream is malformed",
            where=self._where,
            why=why,
            hint="Nothing was applied; run the same command again.",
        )

    def _join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._explained(self._error) from self._error

    def _finish(self) -> None:
        self._join()
        if not (self._passed or self._scanner.ended):
            raise self._restarted("it is truncated")
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
