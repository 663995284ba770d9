"""The two stream objects of the driver contract (contract.py): what `send` and `receive` return."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

from mirrord.core.model import Staging
from mirrord.system.waiting import Waiting

#: The largest chunk, in bytes, that `SendStream.read` returns and `Receiver.write` must take.
CHUNK_BYTES_MAX = 4 << 20


class SendStream(abc.ABC):
    """The bytes that turn base into incremental. A context manager; not thread-safe."""

    def __init__(self) -> None:
        #: How its methods wait for others; whoever opened it may set his own.
        self.waiting = Waiting()

    @abc.abstractmethod
    def read(self) -> bytes | memoryview:
        """The next chunk, 1 to CHUNK_BYTES_MAX bytes; empty at the end of a whole stream.

        A memoryview is valid until the next call. Raises `TransferFailed` when the source cannot
        go on, `Damaged` when what it reads fails its checksum; never ends silently short.
        """

    def skip(self) -> bool:
        """Make the stream again up to the checkpoint that it goes on from, for about a second at
        most; False when it is there. `read` does what is left of it, but cannot be interrupted.

        Raises what `read` raises.
        """
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream at once, whole or not. May be called twice."""

    def __enter__(self) -> Self:
        """The stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class Receiver(abc.ABC):
    """Takes a stream into the staging place. A context manager; not thread-safe."""

    def __init__(self) -> None:
        #: How its methods wait for others; whoever opened it may set his own.
        self.waiting = Waiting()

    @abc.abstractmethod
    def write(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk. Raises `NoSpace`, `Damaged`, `TransferFailed`; `CheckpointUseless`
        when what an earlier try had brought cannot be read again.
        """

    def catch_up(self) -> bool:
        """Apply what an earlier try had brought, for about a second at most; False when all of it
        is applied. `write` does what is left of it, but cannot be interrupted.

        Raises what `write` raises.
        """
        return False

    @abc.abstractmethod
    def finish(self) -> Staging:
        """The stream is whole: verify that the staged snapshot is the one that was announced
        (guid), make it durable and mark it complete. Raises `Damaged` when it is not.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End it at once. Not finished: with `Capability.RESUME` a checkpoint is kept, of all that
        was written (of a `resumable` one; others may keep less, or none). May be called twice, and
        after `finish`.
        """

    def __enter__(self) -> Self:
        """The receiver itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
