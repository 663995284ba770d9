"""A byte stream over file descriptors: pipes, sockets, standard input and output."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mirrord.transport.base import ByteStream

_PARTS_MAX = 64


class FdStream(ByteStream):
    """Reads from one descriptor and writes to another (or the same). Owns both.

    The descriptors are made non-blocking and polled together with an eventfd that `close` writes:
    closing a descriptor alone would not wake a thread that waits for it.
    """

    def __init__(self, reading: int, writing: int, peer: str) -> None:
        self.peer = peer
        self._reading, self._writing = reading, writing
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._guard = threading.Lock()
        self._writing_lock = threading.Lock()
        self._users = 0
        self._closed = False
        for descriptor in {reading, writing}:
            os.set_blocking(descriptor, False)

    def read(self, most: int) -> bytes:
        """See `ByteStream.read`."""
        try:
            with self._use():
                while True:
                    try:
                        return os.read(self._reading, most)
                    except BlockingIOError:
                        self._await(self._reading, select.POLLIN)
        except BrokenPipeError:
            return b""  # closed by this end

    def write(self, *parts: bytes | memoryview) -> None:
        """See `ByteStream.write`."""
        left = [memoryview(part) for part in parts if len(part)]
        with self._use(), self._writing_lock:
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

    def _await(self, descriptor: int, what: int) -> None:
        poll = select.poll()
        poll.register(descriptor, what)
        poll.register(self._wakeup, select.POLLIN)
        poll.poll()
        if self._closed:
            raise BrokenPipeError("closed by this end")

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._guard:
            if self._closed:
                raise BrokenPipeError("closed by this end")
            self._users += 1
        try:
            yield
        finally:
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

    def _release(self) -> None:
        if self._closed and not self._users and self._wakeup >= 0:
            for descriptor in {self._reading, self._writing, self._wakeup}:
                os.close(descriptor)
            self._wakeup = -1
