"""A byte stream over file descriptors: pipes, sockets, standard input and output."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from mirrord.transport.base import ByteStream

_PARTS_MAX = 64


class FdStream(ByteStream):
    """Reads from one descriptor and writes to another (or the same). Owns both.

    The descriptors are made non-blocking and polled together with an eventfd that `close` writes:
    closing a descriptor alone would not wake a thread that waits for it.
    """

    def __init__(
        self, reading: int, writing: int, peer: str, *, on_close: Callable[[], None] | None = None
    ) -> None:
        self.peer = peer
        self._reading, self._writing = reading, writing
        self._on_close = on_close
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._guard = threading.Lock()
        self._writing_lock = threading.Lock()
        self._users = 0
        self._closed = False
        for descriptor in {reading, writing}:
            os.set_blocking(descriptor, False)

    def read(self, most: int) -> bytes:
        """See `ByteStream.read`."""
        self._enter()
        try:
            while True:
                try:
                    return os.read(self._reading, most)
                except BlockingIOError:
                    self._await(self._reading, select.POLLIN)
        finally:
            self._leave()

    def write(self, *parts: bytes | memoryview) -> None:
        """See `ByteStream.write`."""
        left = [memoryview(part) for part in parts if len(part)]
        self._enter()
        try:
            with self._writing_lock:
                while left:
                    try:
                        done = os.writev(self._writing, left[:_PARTS_MAX])
                    except BlockingIOError:
                        self._await(self._writing, select.POLLOUT)
                        continue
                    while left and done >= len(left[0]):
                        done -= len(left.pop(0))
                    if left:
                        left[0] = left[0][done:]
        finally:
            self._leave()

    def _await(self, descriptor: int, what: int) -> None:
        poll = select.poll()
        poll.register(descriptor, what)
        poll.register(self._wakeup, select.POLLIN)
        poll.poll()
        if self._closed:
            raise BrokenPipeError("closed by this end")

    def _enter(self) -> None:
        with self._guard:
            if self._closed:
                raise BrokenPipeError("closed by this end")
            self._users += 1

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            self._release()

    def close(self) -> None:
        """See `ByteStream.close`. The descriptors are closed once no thread uses them."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wakeup, 1)
            self._release()
        if self._on_close is not None:
            self._on_close()

    def _release(self) -> None:
        if self._closed and not self._users and self._wakeup >= 0:
            for descriptor in {self._reading, self._writing, self._wakeup}:
                os.close(descriptor)
            self._wakeup = -1
