"""Stands in the agent's place at the other end of an SSH connection, and does not behave.

liar.py WORD            says what no agent says (see `ODD`)
liar.py flip up|down N COMMAND…   is the agent, but one bit of its N-th byte is turned
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from mirrord.wire.frames import HEADER, MAGIC, Type, control, header


def put(*parts: bytes) -> None:
    data: bytes = b"".join(parts)
    while data:
        data = data[os.write(1, data) :]


def hello(software: str = "1.0", versions: tuple[int, ...] = (1,)) -> None:
    os.read(0, 1 << 16)
    put(*control(Type.HELLO, 0, {"software": software, "versions": list(versions), "pid": 1}))


def garbage() -> None:
    with contextlib.suppress(OSError):
        while True:
            put(os.urandom(1 << 16))


def later_garbage() -> None:
    hello()
    os.read(0, 1 << 16)
    garbage()


def huge() -> None:
    """A frame of 4 GiB is announced."""
    hello()
    os.read(0, 1 << 16)
    put(HEADER.pack(MAGIC, 1, Type.RETURN, 1, 0xFFFFFFFF, 0))
    garbage()


def nothing() -> None:
    while os.read(0, 1 << 16):
        pass


def nothing_more() -> None:
    """Greets, and says nothing more."""
    hello()
    nothing()


def trickle() -> None:
    """Greets, and then takes a day for an answer."""
    hello()
    with contextlib.suppress(OSError):
        put(header(Type.RETURN, 1, b"x" * 100_000))
        while True:
            put(b"x")
            time.sleep(0.2)


def nonsense() -> None:
    """Well-formed frames that mean nothing."""
    hello()
    os.read(0, 1 << 16)
    put(*control(Type.RETURN, 1, {"what": ["is", "this"]}))
    nothing()


def bomb() -> None:
    """An answer nested deeper than anybody can follow."""
    hello()
    os.read(0, 1 << 16)
    body = b"\x91" * 500_000 + b"\xc0"
    put(header(Type.RETURN, 1, body), body)
    nothing()


ODD = {
    "garbage": garbage, "later-garbage": later_garbage, "huge": huge, "nothing": nothing,
    "nothing-more": nothing_more, "trickle": trickle, "nonsense": nonsense, "bomb": bomb,
    "newer": lambda: hello("9.1.0", (7, 8)), "older": lambda: hello("0.0.1", (0,)),
}  # fmt: skip


def flip(way: str, at: int, command: list[str]) -> None:
    """Be in the middle between the connection and the agent."""
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None and agent.stdout is not None
    up = (0, agent.stdin.fileno(), at if way == "up" else None)
    down = (agent.stdout.fileno(), 1, at if way == "down" else None)
    thread = threading.Thread(target=_pass, args=up, daemon=True)
    thread.start()
    _pass(*down)
    agent.wait()
    os._exit(0)


def _pass(source: int, target: int, at: int | None) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := os.read(source, 1 << 16):
            if at is not None and passed <= at < passed + len(data):
                spoilt = bytearray(data)
                spoilt[at - passed] ^= 0x04
                data = bytes(spoilt)
            passed += len(data)
            while data:
                data = data[os.write(target, data) :]
    with contextlib.suppress(OSError):
        os.close(target)


if __name__ == "__main__":
    if sys.argv[1] == "flip":
        flip(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        odd: Callable[[], None] = ODD[sys.argv[1]]
        odd()
