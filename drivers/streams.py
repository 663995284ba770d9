"""The two stream objects of the driver contract (contract.py): what `send` and `receive` return."""

from __future__ import annotations

import abc
from typing import NamedTuple, Protocol, Self

from mirrord.core.model import Staging
from mirrord.system.native import StreamChecksum
from mirrord.system.waiting import Waiting

#: The largest chunk, in bytes, that `SendStream.read` returns and `Receiver.write` must take.
CHUNK_BYTES_MAX = 4 << 20


class Sink(Protocol):
    """Where a stream can be moved to without looking at it, because what is behind it verifies it:
    a pipe, or another host.
    """

    @property
    def pipe(self) -> int | None:
        """The descriptor of the pipe that it is, which does not block; None: it is no pipe."""

    def take(self, source: int, most: int) -> tuple[int, bytes | memoryview]:
        """Move 1 to `most` bytes from the pipe `source`: how many, and what was read in addition
        and not moved. (0, b""): the source has ended. `BrokenPipeError`: nobody reads the sink.
        """


class PipeSink(NamedTuple):
    """A pipe whose reader verifies the stream."""

    pipe: int
    waiting: Waiting

    def take(self, source: int, most: int) -> tuple[int, bytes | memoryview]:
        """See `Sink.take`. The kernel moves the bytes."""
        return self.waiting.pass_on(source, self.pipe, most), b""


class _Stream(abc.ABC):
    """A context manager that closes itself; not thread-safe."""

    def __init__(self) -> None:
        #: How its methods wait for others; the caller that opened it may set another.
        self.waiting = Waiting()

    @property
    def checksum(self) -> StreamChecksum | None:
        """The checksum of all that has passed, if the stream computes one in any case."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class SendStream(_Stream):
    """The bytes that turn base into incremental. A context manager; not thread-safe."""

    @abc.abstractmethod
    def read(self) -> bytes | memoryview:
        """The next chunk, 1 to CHUNK_BYTES_MAX bytes; empty at the end of a complete stream.

        Its content does not change as long as it is held. Raises `TransferFailed` when the source
        cannot continue, `Damaged` when a checksum does not match; a stream never ends early
        silently.
        """

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """Move 1 to `most` bytes into a sink, without looking at them; 0 at the end. None: not
        possible now, `read` is to be used.

        Raises what `read` and the sink raise; `BrokenPipeError` when nobody reads the sink.
        """
        return None

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

    def take_from(self, stream: SendStream, most: int) -> int | None:
        """Take 1 to `most` bytes directly from a stream; 0 at its end. None: not possible now,
        `write` is to be used. Raises what `SendStream.read` and `write` raise.
        """
        return None

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
