"""TCP ports for servers of the tests."""

from __future__ import annotations

import errno
import random
import socket

#: Below those that the kernel gives to connections (32768 to 60999): such a port would be taken by
#: one between the choice and the server's start.
_FIRST, _LAST = 10_000, 32_000
_CHOSEN = random.SystemRandom()


def free_port(address: str = "127.0.0.1") -> int:
    """A port on which nobody listens now."""
    while True:
        port = _CHOSEN.randint(_FIRST, _LAST)
        with socket.socket() as made:
            try:
                made.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
