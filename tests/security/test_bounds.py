"""What a peer can make an agent take by numbers and lengths alone: memory, descriptors, time."""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mirrord
from mirrord.core.errors import Damaged, LinkLost, MirrordError
from mirrord.core.model import Endpoint, ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.block.format import BLOCK_BYTES, HOLE, Pointer, Root, SegmentMap, sum_of
from mirrord.drivers.block.rootrecord import Entry, content_digest
from mirrord.drivers.block.stream import HEADER as FRAME
from mirrord.drivers.block.stream import RUN, RUNS, done_frame, head_frame, text_frame
from mirrord.link import hello as greeting
from mirrord.link.driver import RemoteDriver
from mirrord.link.exchange import WINDOW_BYTES
from mirrord.link.hello import VERSIONS, Hello
from mirrord.system.native import StreamChecksum
from mirrord.transport.tls import OneTime, connect
from mirrord.wire.frames import BODY_BYTES_MAX, FORMAT, HEADER, MAGIC, Type, control, value_of
from tests.security.sentences import breaks
from tests.security.test_hostile import Sampled, frame, piece, watched
from tests.support.agents import Agents, agents
from tests.support.service import PATIENCE_S

MIB = 1 << 20
GUID = "ab" * 16


def frames_of(length: int, kind: int, body: int) -> Iterator[bytes]:
    """A header that announces so much, and so much of it."""
    yield HEADER.pack(MAGIC, FORMAT, kind, 1, length, 0)
    for _ in range(body // MIB):
        yield bytes(MIB)


def packed(number: int, raw_bytes: int, payload: bytes) -> bytes:
    return struct.pack("<IIB3x", number, raw_bytes, 1) + payload


def swollen() -> Iterator[bytes]:
    """zstd frames of some bytes that hold 512 MiB, for a call that takes data."""
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(512 * MIB))
    yield b"".join(control(Type.CALL, 1, ["ping", []]))
    for number in range(100):
        yield frame(Type.DATA, 1, packed(number, 512 << 10, bomb))


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a body of 4 GiB": lambda: frames_of((1 << 32) - 1, Type.CALL, 64 * MIB),
    "a body just too large": lambda: frames_of(BODY_BYTES_MAX + 1, Type.DATA, 64 * MIB),
    "a part that is too large": lambda: frames_of(1 << 31, Type.PART, 64 * MIB),
    "a large greeting": lambda: iter([frame(Type.HELLO, 0, b"\xc6" + bytes(MIB))]),
    "parts without an end": lambda: (frame(Type.PART, 1, bytes(MIB)) for _ in range(2000)),
    "parts of a byte": lambda: (frame(Type.PART, 1, b"x") for _ in range(1_000_000)),
    "credit that nobody used": lambda: (
        b"".join(control(Type.CREDIT, 1, 1 << 60)) for _ in range(100_000)
    ),
    "ends of streams that never began": lambda: (
        b"".join(control(Type.END, n, [1, 1, "0" * 64])) for n in range(1, 100_000)
    ),
    "noise": lambda: (os.urandom(MIB) for _ in range(64)),
}


@breaks("L1", "L4")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_peer_that_breaks_the_rules_is_hung_up_on(tmp_path: Path, attack: str) -> None:
    with watched(tmp_path) as agent:
        sampled = Sampled(agent)
        sampled.start()
        began_s = time.monotonic()
        for part in ATTACKS[attack]():
            if not agent.say(part):
                break
        agent.is_ended()
        sampled.join()
        assert time.monotonic() - began_s < 20
        assert sampled.grown < 32 * MIB, f"{sampled.grown / MIB:.0f} MiB"
        assert sampled.descriptors <= agent.before[1] + 4


@breaks("L4")
def test_data_that_is_larger_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    with watched(tmp_path) as agent:
        sampled = Sampled(agent)
        sampled.start()
        for part in swollen():
            if not agent.say(part):
                break
        agent.lane.close()
        agent.process.wait(PATIENCE_S)
        sampled.join()
        assert sampled.grown < 32 * MIB, f"{sampled.grown / MIB:.0f} MiB"


@breaks("L4")
def test_early_data_on_another_lane_is_bounded(tmp_path: Path) -> None:
    """Where it may overtake its call: for four streams, a window each."""
    token = secrets.token_hex(16)
    with watched(tmp_path, token=token) as agent:
        own = OneTime.make()
        agent.say(*control(Type.CALL, 1, ["data_channel", [own.certificate]]))
        [answer] = [one for one in agent.lane.read() if one.type is Type.RETURN]
        port, certificate = value_of(answer.body)
        fast = greeting.new_lane(connect("127.0.0.1", port, own, certificate, PATIENCE_S))
        greeting.say(fast, Hello(mirrord.__version__, VERSIONS, token, 1, os.getpid()))
        greeting.expect(fast, timeout_s=PATIENCE_S)
        sampled = Sampled(agent)
        sampled.start()
        data = os.urandom(500_000)
        try:
            for stream in range(1000, 1010):
                for number in range(WINDOW_BYTES // len(data)):
                    fast.stream.write(frame(Type.DATA, stream, piece(number, data)))
        except (OSError, LinkLost):
            pass
        agent.is_ended()
        sampled.join()
        fast.close()
        assert sampled.grown < 4 * WINDOW_BYTES + 32 * MIB, f"{sampled.grown / MIB:.0f} MiB"
        assert sampled.descriptors <= agent.before[1] + 8


# Block streams


class Crafted:
    """A stream whose blocks are few and refer to one another: 256 times each, in five levels."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = [os.urandom(BLOCK_BYTES)]
        for number in range(1, 5):
            self.blocks.append(struct.pack("<QQ", number, sum_of(self.blocks[-1])) * 256)
        top = Pointer(5, sum_of(self.blocks[-1]))
        maps = (SegmentMap(0, HOLE, 4, 1 << 39, 1 << 40),)
        root = Root(16 << 40, top, maps)
        kind = SnapshotKind.REFERENCE
        self.entry = Entry(GUID, "s1", kind, 1, root, content_digest(GUID, root), 1)
        assert self.entry.intact

    def frames(self) -> Iterator[bytes]:
        head = head_frame("v", None, self.entry, 0)
        body = RUN.pack(1, 5) + b"".join(self.blocks)
        runs = FRAME.pack(RUNS, 1, 5, 0, sum_of(body)) + body
        checksum = StreamChecksum()
        checksum.update(head[: FRAME.size])
        checksum.update(runs[: FRAME.size])
        yield from (head, runs, done_frame(5, checksum.hexdigest()))


def heads() -> Iterator[bytes]:
    """The first frame again and again, each as long as it may be."""
    text = text_frame(b"HEAD", {"x": "y" * (1 << 19)})
    yield from [text] * 100


def nested_head() -> Iterator[bytes]:
    text = b"[" * 500_000
    yield FRAME.pack(b"HEAD", 0, 0, len(text), sum_of(text)) + text


def long_numbers() -> Iterator[bytes]:
    text = b'{"version": ' + b"9" * 500_000 + b"}"
    yield FRAME.pack(b"HEAD", 0, 0, len(text), sum_of(text)) + text


def lengths() -> Iterator[bytes]:
    yield FRAME.pack(RUNS, 256, 0xFFFFFFFF, 0, 0)
    yield from (bytes(MIB) for _ in range(100))


BLOCK_ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a tree of five blocks and a trillion leaves": lambda: Crafted().frames(),
    "long heads": heads,
    "a deeply nested head": nested_head,
    "a number of 500,000 digits": long_numbers,
    "a frame of 16 TiB": lengths,
}


@breaks("L6")
@pytest.mark.parametrize("attack", BLOCK_ATTACKS)
def test_a_block_stream_takes_what_its_blocks_take(tmp_path: Path, attack: str) -> None:
    volume = tmp_path / "v"
    snapshot = Snapshot(GUID, "s1", SnapshotKind.REFERENCE, 1, 1)
    with agents(tmp_path / "home") as others:
        there = RemoteDriver.of(Endpoint("block", str(volume), "there"), others)
        there.prepare("m1")
        before = taken(others)
        began_s = time.monotonic()
        with (
            pytest.raises(Damaged) as caught,
            there.receive(ReceiveRequest("t1", "m1", None, snapshot)) as receiver,
        ):
            for part in BLOCK_ATTACKS[attack]():
                receiver.write(part)
            receiver.waiting.hurry_s = 30
            receiver.finish()
        assert "damaged" in str(caught.value)
        assert time.monotonic() - began_s < 20
        after = taken(others)
        assert after[0] - before[0] < 48 * MIB, f"{(after[0] - before[0]) / MIB:.0f} MiB"
        assert after[1] <= before[1] + 4
        assert sum(one.stat().st_blocks for one in volume.glob("data*")) * 512 < MIB
        with pytest.raises(MirrordError):
            there.commit("t1", show=True)


def taken(others: Agents) -> tuple[int, int]:
    """The most memory that an agent has used, and its open files."""
    pid = others.processes[0].pid
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")]
    return peak, len(os.listdir(f"/proc/{pid}/fd"))
