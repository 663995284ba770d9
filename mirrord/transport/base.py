"""The interface of every transport: a bidirectional byte stream to one peer."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mirrord.core.errors import LinkLost, MirrordError
from mirrord.system.native import FrameSplitter, TlsSession

_READ_BYTES = 256 << 10
#: Writes a log line of a transport.
Say = Callable[[str], None]


class ByteStream(abc.ABC):
    """Bytes to and from a peer, in order. One thread may read while others write.

    When it breaks (the peer or the network is gone, or `close` was called), `read` returns b"" or
    raises `OSError`, and `write` raises `OSError`. No call blocks forever on a stream that was
    closed by another thread.
    """

    #: Host name of the other end, for messages.
    peer: str

    @abc.abstractmethod
    def read(self, most: int) -> bytes:
        """At least one byte and at most `most`; b"" at the end."""

    def read_frames(self, splitter: FrameSplitter) -> tuple[int, Sequence[tuple[int, int, Any]]]:
        """Read some bytes, at least one, and pass them to the splitter: their number, and the
        frames that are complete (type, stream, body). 0 bytes at the end.
        """
        data = self.read(_READ_BYTES)
        return len(data), splitter.feed(data)

    @abc.abstractmethod
    def write(self, *parts: bytes | memoryview) -> None:
        """Write all of the parts in order, not interleaved with writes of other threads. Blocks
        until the peer accepts them.
        """

    def native(self) -> AbstractContextManager[tuple[TlsSession, int]] | None:
        """For native code that writes to the peer: the encryption, and the descriptor of the socket
        as long as the context is open. Entering it raises `OSError` when the stream was closed.
        None: not possible.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Close it immediately, from any thread; may be called again."""

    def stderr_tail(self) -> str:
        """What the remote program wrote to its standard error, or ""."""
        return ""

    def failure(self, heard: bytes = b"") -> MirrordError:
        """Why the peer did not respond as mirrord's agent: it ended, or sent `heard` instead."""
        stderr = self.stderr_tail().strip().splitlines()
        why = f"received {heard[:60].decode('ascii', 'replace')!r}" if heard else "it ended at once"
        return LinkLost(
            "the remote mirrord does not respond",
            where=self.peer,
            why=stderr[-1] if stderr else why,
            hint="Check that mirrord runs there, and that no other program listens in its place.",
        )
