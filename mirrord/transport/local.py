"""Byte streams on this host: a unix socket, and standard input and output of a child process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirrord.core.errors import PermissionMissing, Unreachable
from mirrord.system import command, sockets
from mirrord.transport.fds import FdStream

#: How much of the remote program's standard error is kept: the end of it.
STDERR_BYTES_MAX = 8 << 10

#: How long `stderr_tail` waits for the rest of it after the stream has ended, seconds.
_STDERR_WAIT_S = 0.5


class ProcessStream(FdStream):
    """Standard input and output of a program; its standard error is kept for `stderr_tail`."""

    def __init__(self, ours: socket.socket, process: command.Process, peer: str) -> None:
        descriptor = ours.detach()
        super().__init__(descriptor, descriptor, peer)
        self._process = process
        self._closing = threading.Lock()
        self._kept = bytearray()
        self._listener = threading.Thread(target=self._listen, name=f"stderr {peer}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while part := os.read(pipe.fileno(), 4096):
                self._kept += part
                del self._kept[:-STDERR_BYTES_MAX]

    def stderr_tail(self) -> str:
        """The end of its standard error."""
        if self.status() is not None:
            self._listener.join(_STDERR_WAIT_S)
        return bytes(self._kept).decode(errors="replace").strip()

    def status(self, *, wait_s: float = 0.0) -> int | None:
        """The program's exit status (negative: the signal that ended it), None while it runs."""
        return command.ended(self._process, timeout_s=wait_s)

    def close(self) -> None:
        """Close it immediately, and end the program with all its children."""
        with self._closing:
            if self._closed:
                return
            command.end_session(self._process)
            super().close()
        self._listener.join(_STDERR_WAIT_S)


def open_unix(path: str | Path, *, name: str = "", timeout_s: float = 10.0) -> FdStream:
    """A connection to the unix socket at `path`; `Unreachable`, `PermissionMissing`. name: of the
    other end, for messages.
    """
    try:
        connected = sockets.connected(Path(path), timeout_s=timeout_s)
    except PermissionError as error:
        raise PermissionMissing(
            f"no permission to use the socket {path}",
            where=name,
            why=error.strerror or str(error),
            hint="Run it as root, or as the user of the program that listens there.",
        ) from None
    except OSError as error:
        is_busy = isinstance(error, TimeoutError)
        raise Unreachable(
            f"the program at the socket {path} does not respond"
            if is_busy
            else f"nothing listens on the socket {path}",
            where=name,
            why=error.strerror or str(error),
            hint="Start the program that listens there, or correct the address in hosts.d.",
        ) from None
    descriptor = connected.detach()
    return FdStream(descriptor, descriptor, name or str(path))


def spawn(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, hint: str
) -> tuple[socket.socket, command.Process]:
    """Start a program; the socket that is its standard input and output, and its process."""
    program = command.find(arguments[0], hint=hint)
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = command.start(
                [program, *arguments[1:]],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=command.PIPE,
                environment=environment,
            )
    except BaseException:
        ours.close()
        raise
    return ours, process
