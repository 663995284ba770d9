"""The interface of every transport: a bidirectional byte stream to one peer."""

from __future__ import annotations

import abc
from collections.abc import Callable

from mirrord.core.errors import LinkLost, MirrordError

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

    @abc.abstractmethod
    def write(self, *parts: bytes | memoryview) -> None:
        """Write all of the parts in order, not interleaved with writes of other threads. Blocks
        until the peer accepts them.
        """

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
