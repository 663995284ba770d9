"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.system import clock

_PATH_BYTES_MAX = 107
_POLL_S = 0.01


@contextmanager
def address(path: Path) -> Iterator[str]:
    """How to bind or connect to the socket at `path`: the kernel takes at most 107 bytes, so a
    longer path is reached through an open descriptor of its folder.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= _PATH_BYTES_MAX:
        yield text
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connected(path: Path, *, timeout_s: float) -> socket.socket:
    """A connection to the socket at `path`; the timeout applies to its use, too."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        deadline_s = clock.monotonic_s() + timeout_s
        with address(path) as where:
            while True:
                try:
                    made.connect(where)
                    break
                except BlockingIOError:  # its queue is full: the kernel does not wait then
                    if clock.monotonic_s() >= deadline_s:
                        raise TimeoutError("it accepts no connection") from None
                    clock.sleep_s(_POLL_S)
    except BaseException:
        made.close()
        raise
    return made


def remove_abandoned(path: Path, *, timeout_s: float) -> None:
    """Remove a socket at which nobody listens: its program was killed."""
    if path.is_socket():
        try:
            connected(path, timeout_s=timeout_s).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            return  # it is gone, or in use: a program may not answer at once


def bind(made: socket.socket, path: Path) -> None:
    """Make the socket's file at `path`, at first for its owner only."""
    before = os.umask(0o177)
    try:
        with address(path) as where:
            made.bind(where)
    finally:
        os.umask(before)
