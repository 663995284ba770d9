"""What the tests of all transports do: send much, get it back, and see who is alive."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from mirrord.transport.base import ByteStream
from tests.support.service import PATIENCE_S


def round_trip(stream: ByteStream, size: int) -> None:
    """Send `size` bytes to a peer that sends them back, and compare."""
    sent, got = os.urandom(size), hashlib.sha256()

    def send() -> None:
        view = memoryview(sent)
        for start in range(0, size, 1 << 20):
            part = view[start : start + (1 << 20)]
            stream.write(part[:17], part[17:])

    thread = threading.Thread(target=send)
    thread.start()
    left = size
    while left:
        part = stream.read(min(left, 1 << 18))
        assert part, "the stream ended before all came back"
        got.update(part)
        left -= len(part)
    thread.join()
    assert got.digest() == hashlib.sha256(sent).digest()


def read_all(stream: ByteStream) -> bytes:
    """All that comes until the end."""
    parts = []
    while part := stream.read(1 << 16):
        parts.append(part)
    return b"".join(parts)


def lives(number: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends_for_both(stream: ByteStream) -> None:
    """Closing it ends who reads and who writes, each in a thread, and nothing goes any more."""
    ended: list[str] = []

    def reads() -> None:
        try:
            assert stream.read(1) == b""
        except OSError:
            pass
        ended.append("read")

    def writes() -> None:
        with pytest.raises(OSError):
            for _ in range(1000):
                stream.write(bytes(1 << 20))
        ended.append("write")

    threads = [threading.Thread(target=work) for work in (reads, writes)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    stream.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ended) == ["read", "write"]
    with pytest.raises(OSError):
        stream.write(b"more")
    assert stream.read(1) == b""
