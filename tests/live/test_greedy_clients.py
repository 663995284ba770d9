"""NBD clients that ask for much at a time, or take long: the others are served meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.lab import Client, Pair, stamp, wait_until

MIB = 1 << 20


def _request(kind: int, cookie: int, offset: int, length: int) -> bytes:
    return struct.pack(">IHHQQI", 0x25609513, 0, kind, cookie, offset, length)


@contextlib.contextmanager
def _sending(client: Client, data: bytes) -> Iterator[None]:
    """Sends without reading; an answer is thrown away."""
    client.socket.settimeout(120)

    def send() -> None:
        with contextlib.suppress(OSError):
            client.socket.sendall(data)

    def drain() -> None:
        with contextlib.suppress(OSError):
            while client.socket.recv(1 << 16):
                pass

    threads = [threading.Thread(target=each, daemon=True) for each in (send, drain)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_RDWR)
        for each in threads:
            each.join(30)


def test_reads_that_wait_take_no_more_memory_than_the_bound(pair: Pair) -> None:
    pair.primary.options = ["--buffers", str(16 * MIB)]
    pair.start()
    pair.stop()
    pair.primary.start()
    assert pair.primary.is_state("holding")
    with Client(pair.primary) as client:
        client.socket.sendall(b"".join(_request(0, n, 0, 8 * MIB) for n in range(60)))
        time.sleep(0.2)
        pair.secondary.start()
        pair.wait_in_sync()
        time.sleep(1)
        assert pair.primary.memory("VmHWM") < 80 * MIB
        for _ in range(60):
            assert struct.unpack(">IIQ", client._read(16))[1] == 0
            client._read(8 * MIB)


def test_small_writes_of_one_client_leave_time_for_the_others(pair: Pair) -> None:
    pair.start()
    data = b"".join(_request(1, n, 0, 1) + b"x" for n in range(60_000))
    with Client(pair.primary) as busy, Client(pair.primary) as other, _sending(busy, data):
        for number in range(40):
            begun = time.monotonic()
            assert other.write(2 * 4096, stamp(2, number)) == 0
            assert time.monotonic() - begun < 3
            time.sleep(0.05)
    status = pair.primary.status()
    assert status is not None and status["left_sync"] == 0
    pair.assert_equal()


def test_the_memory_of_a_large_write_is_not_kept(pair: Pair) -> None:
    pair.start()
    before = pair.primary.memory()
    with contextlib.ExitStack() as clients:
        for _ in range(20):
            client = clients.enter_context(Client(pair.primary))
            assert client.write(0, bytes(8 * MIB)) == 0
        wait_until(lambda: pair.primary.memory() < before + 40 * MIB, "free memory")


@pytest.mark.nightly
def test_a_client_that_sends_a_byte_a_second_gives_way(pair: Pair) -> None:
    pair.primary.options = ["--buffers", str(16 * MIB)]
    pair.start()
    with Client(pair.primary) as slow, Client(pair.primary) as other:
        slow.socket.sendall(_request(1, 1, 0, 8 * MIB) + bytes(4 * MIB))
        is_over = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not is_over.wait(1):
                    slow.socket.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        time.sleep(0.5)
        other.socket.settimeout(60)
        try:
            assert other.write(0, bytes(8 * MIB)) == 0
        finally:
            is_over.set()
            thread.join()


def test_holes_are_not_told_while_data_may_come_from_the_replica(
    pair: Pair, tmp_path: Path
) -> None:
    """A program that copies data only would take what a power cut has lost for holes."""
    pair.start()
    with Client(pair.primary) as client:
        for block in range(64):
            assert client.write(block * 4096, stamp(block, 1)) == 0
    pair.stop()
    os.truncate(pair.primary.image, 0)
    os.truncate(pair.primary.image, 8 * MIB)
    pair.primary.boot = f"{5:032x}"
    pair.primary.start()
    wait_until(lambda: pair.primary.is_state("waiting-for-replica"), "the wait")
    uri = f"nbd+unix:///?socket={pair.primary.nbd}"
    with subprocess.Popen(["nbdcopy", uri, str(tmp_path / "copy")]) as copy:
        time.sleep(1)
        pair.secondary.start()
        assert copy.wait(60) == 0
    pair.wait_in_sync()
    assert (tmp_path / "copy").read_bytes() == pair.secondary.bytes()
