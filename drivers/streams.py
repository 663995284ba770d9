"""The two stream objects of the driver contract (contract.py): what `send` and `receive` return."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

from mirrord.core.model import Staging
from mirrord.system.waiting import Waiting

#: The largest chunk, in bytes, that `SendStream.read` returns and `Receiver.write` must take.
CHUNK_BYTES_MAX = 4 << 20


class _Stream(abc.ABC):
    """A context manager that closes itself; not thread-safe."""

    def __init__(self) -> None:
        #: How its methods wait for others; the caller that opened it may set another.
        self.waiting = Waiting()

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SendStream(_Stream):
    """The bytes that turn base into incremental. A context manager; not thread-safe."""

    @abc.abstractmethod
    def read(self) -> bytes | memoryview:
        """The next chunk, 1 to CHUNK_BYTES_MAX bytes; empty at the end of a complete stream.

        A memoryview is valid until the next call. Raises `TransferFailed` when the source cannot
        continue, `Damaged` when a checksum does not match; a stream never ends early silently.
        """

    def skip(self) -> bool:
        """Reproduce the stream up to the checkpoint from which it resumes, for about a second at
        most; False when it is reached. `read` does the rest, but cannot be interrupted.

        Raises what `read` raises.
        """
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream at once, complete or not. May be called twice."""


class Receiver(_Stream):
    """Receives a stream into the staging place. A context manager; not thread-safe."""

    @abc.abstractmethod
    def write(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk. Raises `NoSpace`, `Damaged`, `TransferFailed`; `CheckpointUseless`
        when what an earlier attempt received cannot be read again.
        """

    def catch_up(self) -> bool:
        """Apply what an earlier attempt received, for about a second at most; False when all of it
        is applied. `write` does the rest, but cannot be interrupted.

        Raises what `write` raises.
        """
        return False

    @abc.abstractmethod
    def finish(self) -> Staging:
        """The stream is complete: verify that the staged snapshot is the announced one (guid),
        make it durable and mark it complete. Raises `Damaged` when it is not.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End it at once. If it is not finished and has `Capability.RESUME`, a checkpoint of all
        that was written is kept (when `resumable`; otherwise perhaps less, or none). May be called
        twice, and after `finish`.
        """
