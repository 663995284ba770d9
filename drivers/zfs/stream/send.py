"""The sending side: `zfs send`, and the check of resume tokens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mirrord.core.errors import CheckpointUseless, MirrordError, TransferFailed
from mirrord.drivers.streams import SendStream, Sink
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.stream import tokens
from mirrord.drivers.zfs.stream.records import ZfsScanner
from mirrord.system import command as programs

_CHUNK_BYTES = 1 << 20
_ERROR_BYTES_MAX = 16 << 10
#: Large, compressed and embedded blocks are sent as they are: nothing is decompressed.
_FLAGS = ("-L", "-c", "-e")
#: The name of the token in `Staging.checkpoint`.
TOKEN = "token"  # noqa: S105 - no secret: a place in a stream


class Sending(NamedTuple):
    """What to send. base: a snapshot or bookmark, or None; full names. raw: still encrypted. plain:
    decompressed, in blocks of at most 128 KiB.
    """

    base: str | None
    base_guid: str | None
    incremental: str
    guid: str
    raw: bool
    plain: bool = False

    def arguments(self, token: str | None) -> list[str]:
        """The arguments of `zfs`."""
        if token is not None:
            return ["zfs", "send", "-t", token]
        base = ["-i", self.base] if self.base is not None else []
        flags = () if self.plain else _FLAGS
        return ["zfs", "send", *flags, *(["-w"] if self.raw else []), *base, self.incremental]


def estimate(sending: Sending, where: str) -> int:
    """The size of the stream in bytes, as ZFS estimates it."""
    arguments = sending.arguments(None)
    arguments[2:2] = ["-n", "-v", "-P"]
    for line in command.run(arguments, where).splitlines():
        name, _, value = line.partition("\t")
        if name == "size" and value.isdigit():
            return int(value)
    raise TransferFailed("'zfs send' printed no estimate", where=where)


def check_token(
    checkpoint: Mapping[str, int | str] | None, sending: Sending, where: str
) -> str | None:
    """The resume token of a checkpoint, after a check that it belongs to this transfer.

    It comes from the other end, and `zfs send -t` sends whatever a token names (openzfs 14153): so
    its snapshot and its base must be the requested ones.
    """
    if not checkpoint:
        return None
    token = checkpoint.get(TOKEN)
    try:
        if not isinstance(token, str):
            raise ValueError("it has no resume token")
        found = tokens.decode(token)
        if str(found.toguid) != sending.guid or found.toname != sending.incremental:
            raise ValueError(f"it is for {found.toname} ({found.toguid})")
        if (str(found.fromguid) if found.fromguid else None) != sending.base_guid:
            raise ValueError(f"it has another base ({found.fromguid})")
        if found.raw != sending.raw:
            raise ValueError("one of the two is a raw send of encrypted data, the other is not")
    except ValueError as error:
        raise CheckpointUseless(
            "the checkpoint does not belong to this transfer", where=where, why=str(error)
        ) from error
    return token


class ZfsSendStream(SendStream):
    """The output of one `zfs send`. The guids in its first record must be the requested ones, as
    another snapshot may have been given the name.

    ended: called when all was sent. During the send the snapshot cannot be destroyed.
    """

    def __init__(
        self,
        sending: Sending,
        where: str,
        token: str | None,
        *,
        ended: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._sending = sending
        self._where = where
        self._token = token
        self._arguments = sending.arguments(token)
        #: Until the first record is known.
        self._scanner: ZfsScanner | None = ZfsScanner()
        #: Was read to be moved on, and is not moved.
        self._rest: bytes | memoryview = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the stream
        self._child: programs.Process | None = command.start(
            self._arguments,
            stdin=programs.NO_INPUT,
            stdout=programs.PIPE,
            stderr=self._errors.fileno(),
        )
        self._ended = ended

    def read(self) -> bytes | memoryview:
        """See `SendStream.read`."""
        if self._rest:
            chunk, self._rest = self._rest, b""
            return chunk
        _child, reading = self._running()
        self.waiting.readable(reading)
        read = os.read(reading, _CHUNK_BYTES)
        if not read:
            self._finish()
        elif self._scanner is not None:
            self._check(read)
        return read

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """See `SendStream.pass_on`: what follows the first record."""
        _child, reading = self._running()
        if self._scanner is not None or self._rest:
            return None
        moved, self._rest = sink.take(reading, most)
        if moved or self._rest:
            return moved or None
        self._finish()
        return 0

    def _running(self) -> tuple[programs.Process, int]:
        child = self._child
        if child is None or child.stdout is None:
            raise TransferFailed("the stream is closed", where=self._where)
        return child, child.stdout.fileno()

    def _finish(self) -> None:
        child, _reading = self._running()
        if child.wait() != 0:
            raise self._failure()
        if self._scanner is not None:
            raise TransferFailed("'zfs send' wrote no stream", where=self._where)
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def _check(self, chunk: bytes) -> None:
        assert self._scanner is not None
        try:
            self._scanner.feed(chunk)
        except ValueError as error:
            raise TransferFailed(
                "'zfs send' wrote an invalid stream", where=self._where, why=str(error)
            ) from error
        begin = self._scanner.begin
        if begin is None:
            return
        self._scanner = None
        wanted = int(self._sending.guid), int(self._sending.base_guid or 0)
        if (begin.toguid, begin.fromguid) != wanted:
            raise TransferFailed(
                "another snapshot now has the name of the requested one",
                where=self._where,
                why=f"{begin.toname} has the guid {begin.toguid} and the base {begin.fromguid}, "
                f"not {wanted[0]} and {wanted[1]}",
            )

    def _failure(self) -> MirrordError:
        self._errors.seek(0)
        said = self._errors.read(_ERROR_BYTES_MAX).decode(errors="replace")
        error = command.failure(self._where, self._arguments, said)
        if self._token is None:
            return error
        return CheckpointUseless(
            "the source cannot resume from the checkpoint", where=self._where, why=error.why
        )

    def close(self) -> None:
        """See `SendStream.close`."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdout is not None:
            child.stdout.close()
        if child.poll() is None:
            programs.end_session(child)
        child.wait()
        self._errors.close()
