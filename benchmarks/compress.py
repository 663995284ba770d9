"""Adaptive compression on links of several rates: against none, and against `zstd --adapt`.

Two network namespaces, a veth pair with a token bucket at the sending side, one TLS connection.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Row, folder, need, run
from mirrord.transport.tls import Listener, OneTime, connect
from mirrord.transport.tlsstream import TlsStream
from mirrord.wire.compress import Packer, unpack

CHUNK = 512 << 10
#: What to send over each link: name, bits per second (0: no limit), bytes.
LINKS = (
    ("10 Mbit/s", 10e6, 24 << 20), ("100 Mbit/s", 100e6, 160 << 20),
    ("1 Gbit/s", 1e9, 1 << 30), ("no limit", 0, 1 << 30),
)  # fmt: skip
_HEAD = struct.Struct("<II")
HERE, THERE = "10.203.7.1", "10.203.7.2"


def text(size: int) -> bytes:
    """Similar to a log or prose: words of a vocabulary, common ones more often, and numbers."""
    drawn = random.Random(7)
    words = [
        bytes(drawn.choices(b"etaoinshrdlucmfwypvbgk", k=drawn.randint(2, 11))) for _ in range(5000)
    ]
    weights = [1 / (place + 5) for place in range(len(words))]
    parts = []
    for number in range(size // 600 + 1):
        line = drawn.choices(words, weights, k=90)
        parts.append(b"%d %d " % (number, drawn.randrange(1 << 30)) + b" ".join(line) + b"\n")
    return b"".join(parts)[:size]


def send(stream: TlsStream, file: Path, size: int, way: str) -> None:
    """Send the first part of the file repeatedly until `size` bytes are sent, in one thread."""
    content = file.read_bytes()
    if way == "zstd --adapt":
        with subprocess.Popen(
            ["zstd", "-q", "--adapt", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if os.fork() == 0:
                for at in range(0, size, CHUNK):
                    process.stdin.write(_chunk(content, at))
                process.stdin.close()
                os._exit(0)
            process.stdin.close()
            while piece := process.stdout.read1(1 << 20):  # type: ignore[attr-defined]
                stream.write(_HEAD.pack(2, len(piece)), piece)
            os.wait()
    else:
        packer = Packer("auto" if way == "mirrord" else "off", now_s=time.monotonic)
        for at in range(0, size, CHUNK):
            flag, payload = packer.pack(_chunk(content, at))
            began_s = time.monotonic()
            stream.write(_HEAD.pack(flag, len(payload)), payload)
            packer.sent(len(payload), time.monotonic() - began_s)
    stream.write(_HEAD.pack(0, 0))
    assert stream.read(1) == b"k"


def _chunk(content: bytes, at: int) -> bytes:
    at %= len(content)
    return content[at : at + CHUNK]


def receive(stream: TlsStream, size: int) -> None:
    """Decompress everything and acknowledge it."""
    buffer = bytearray()

    def take(count: int) -> bytes:
        while len(buffer) < count:
            piece = stream.read(1 << 20)
            assert piece
            buffer.extend(piece)
        found = bytes(memoryview(buffer)[:count])
        del buffer[:count]
        return found

    came = 0
    process: subprocess.Popen[bytes] | None = None
    while True:
        flag, length = _HEAD.unpack(take(_HEAD.size))
        if not length:
            break
        if flag != 2:
            came += len(unpack(flag, take(length), CHUNK))
            continue
        if process is None:
            process = subprocess.Popen(
                ["zstd", "-dqc"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        assert process.stdin is not None
        process.stdin.write(take(length))
    if process is not None and process.stdin is not None:
        process.stdin.close()
        assert process.wait() == 0
        came = size
    assert came == size
    stream.write(b"k")


@contextmanager
def link(bits: float) -> Iterator[list[str]]:
    """Two namespaces with a link of that rate; the command prefix to run in the far one."""
    name = f"mrb{os.getpid()}"
    far, near = f"{name}f", f"{name}n"
    run("ip", "netns", "add", far)
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", "far0", "netns", far)
        run("ip", "addr", "add", f"{HERE}/24", "dev", near)
        run("ip", "link", "set", near, "up")
        inside = ["ip", "netns", "exec", far]
        run(*inside, "ip", "addr", "add", f"{THERE}/24", "dev", "far0")
        run(*inside, "ip", "link", "set", "far0", "up")
        if bits:
            burst = str(max(16_000, int(bits / 8 / 250)))
            rate = ["rate", f"{int(bits)}bit", "burst", burst, "latency", "50ms"]
            run("tc", "qdisc", "add", "dev", near, "root", "tbf", *rate)
        yield inside
    finally:
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)
        run("ip", "netns", "del", far)


def once(inside: list[str], file: Path, size: int, way: str) -> float:
    """Seconds to send `size` bytes in that way."""
    own, peer = OneTime.make(), OneTime.make()
    words = [*inside, sys.executable, "-m", "benchmarks.compress"]
    told = json.dumps([peer, own.certificate, size])
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(told + "\n")
        process.stdin.flush()
        port = int(process.stdout.readline())
        stream = connect(THERE, port, own, peer.certificate, 10)
        began_s = time.monotonic()
        send(stream, file, size, way)
        took_s = time.monotonic() - began_s
        stream.close()
    return took_s


def measure() -> list[Row]:
    """MB/s of each way over each link, of text and of noise; the best of two."""
    need("zstd", "zstd")
    need("ip", "iproute2")
    rows = []
    with folder() as inside:
        makes: dict[str, Callable[[int], bytes]] = {"text": text, "noise": os.urandom}
        for kind, make in makes.items():
            file = inside / kind
            file.write_bytes(make(48 << 20))
            for name, bits, most in LINKS:
                size = most if kind == "text" or not bits else min(most, int(bits / 8 * 6))
                size -= size % CHUNK
                with link(bits) as words:
                    speed = {
                        way: max(size / once(words, file, size, way) / 1e6 for _ in range(2))
                        for way in ("mirrord", "off", "zstd --adapt")
                    }
                # Without a limit the processor is measured, and that varies.
                target = 0.9 if not bits else 0.95 if kind == "noise" else 1.5
                note = f"zstd --adapt: {speed['zstd --adapt']:.4g} MB/s"
                rows.append(
                    Row(
                        f"{kind}, {name}",
                        speed["mirrord"],
                        "MB/s",
                        ">=",
                        target * speed["off"],
                        "off",
                        speed["off"],
                        note,
                    )
                )
    return rows


def _receiver() -> None:
    own, certificate, size = json.loads(sys.stdin.readline())
    listener = Listener(OneTime(*own), certificate, address=THERE)
    print(listener.port, flush=True)
    receive(listener.accept(20), size)


if __name__ == "__main__":
    _receiver()
