"""What every transport gives: a two-way stream of bytes to one peer."""

from __future__ import annotations

import abc
from collections.abc import Callable

from mirrord.core.errors import LinkLost, MirrordError

#: What a transport says to a person on its way ("the data port cannot be reached: …").
Say = Callable[[str], None]


class ByteStream(abc.ABC):
    """Bytes to and from a peer, in order. One thread may read while others write.

    Whatever breaks it (the peer is gone, the network is, somebody called `close`) makes `read`
    return b"" or raise `OSError`, and `write` raise `OSError`. Nothing waits for ever on a stream
    that was closed by another thread.
    """

    #: The other end for messages: a host's name.
    peer: str

    @abc.abstractmethod
    def read(self, most: int) -> bytes:
        """At least one byte and at most `most`; b"" at the end."""

    @abc.abstractmethod
    def write(self, *parts: bytes | memoryview) -> None:
        """All of the parts, one after another, not mixed with what other threads write. Waits as
        long as the peer does not take it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End it at once, from any thread; may be called again."""

    def said(self) -> str:
        """What the other end's program complained of on its way (its standard error), or ""."""
        return ""

    def failure(self, heard: bytes = b"") -> MirrordError:
        """Why the peer never spoke as mirrord's agent: it ended, or said `heard` instead."""
        said = self.said().strip().splitlines()
        why = f"it said {heard[:60].decode('ascii', 'replace')!r}" if heard else "it ended at once"
        return LinkLost(
            "mirrord does not answer there",
            where=self.peer,
            why=said[-1] if said else why,
            hint="See that mirrord runs there, and that nothing else listens in its place.",
        )
