"""A peer that sends what no mirrord would: measured in memory, descriptors, threads and time."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mirrord
from mirrord.core.errors import Busy, LinkLost, MirrordError, ProtocolError
from mirrord.core.model import Endpoint, ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.format import BLOCK_BYTES, Pointer, Root, SegmentMap, sum_of
from mirrord.drivers.block.rootrecord import Entry, content_digest
from mirrord.drivers.block.stream import HEADER, RUN, RUNS, done_frame, head_frame
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.live import Live
from mirrord.link import hello as greeting
from mirrord.link import lane as lanes
from mirrord.link.driver import RemoteDriver
from mirrord.link.exchange import WINDOW_BYTES
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.lane import Lane
from mirrord.link.session import CALLS_MAX, Session
from mirrord.system.native import StreamChecksum
from mirrord.transport.fds import FdStream
from mirrord.wire.frames import CHUNK_BYTES, Type, control, header
from mirrord.wire.methods import METHODS, PeerPause
from tests.security.sentences import breaks
from tests.support.agents import Agents, agents
from tests.support.calls import CALLS
from tests.support.service import PATIENCE_S, until

MIB = 1 << 20
_PIECE = struct.Struct("<IIB3x")


class Watched:
    """An agent, and what it takes."""

    def __init__(self, home: Path, *arguments: str, token: str = "") -> None:
        self.agents = Agents(home, *arguments)
        self.lane = greeting.new_lane(self.agents.stream())
        token = token or secrets.token_hex(16)
        greeting.say(self.lane, Hello(mirrord.__version__, VERSIONS, token, 0, os.getpid()))
        greeting.expect(self.lane, timeout_s=PATIENCE_S)
        self.process = self.agents.processes[0]
        self.before = self._rss_bytes("VmRSS"), self.descriptors()

    def _rss_bytes(self, field: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith(field))
        return int(line.split()[1]) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def grown_bytes(self) -> int:
        """The most that it ever took, beyond what it had at first."""
        return self._rss_bytes("VmHWM") - self.before[0]

    def say(self, *parts: bytes) -> bool:
        """Whether it still takes that."""
        try:
            self.lane.stream.write(*parts)
        except OSError:
            return False
        return True

    def is_ended(self) -> None:
        """It has hung up, sooner than by silence."""
        assert self.process.wait(11) is not None


@contextmanager
def watched(home: Path, *arguments: str, token: str = "") -> Iterator[Watched]:
    made = Watched(home, *arguments, token=token)
    try:
        yield made
    finally:
        made.lane.close()
        made.process.wait(PATIENCE_S)


def frame(kind: Type, stream: int, body: bytes) -> bytes:
    return header(kind, stream, body) + body


def piece(number: int, data: bytes) -> bytes:
    return _PIECE.pack(number, len(data), 0) + data


class Sampled(threading.Thread):
    """The most that a process takes while it is attacked: it may be gone afterwards."""

    def __init__(self, agent: Watched) -> None:
        super().__init__(daemon=True)
        self.agent, self.grown, self.descriptors = agent, 0, 0

    def run(self) -> None:
        try:
            while self.agent.process.poll() is None:
                self.grown = max(self.grown, self.agent.grown_bytes())
                self.descriptors = max(self.descriptors, self.agent.descriptors())
                time.sleep(0.01)
        except (OSError, StopIteration):
            return


def empty_maps(count: int) -> bytes:
    """A call whose words are that many empty maps: a byte each on the way, 64 in memory."""
    return b"\x92\xa4ping\xdd" + struct.pack(">I", count) + b"\x80" * count


def nested(depth: int) -> bytes:
    return b"\x92\xa4ping" + b"\x91" * depth + b"\x90"


def in_parts(body: bytes) -> Iterator[bytes]:
    """The frames of one call, however long it is."""
    for at in range(0, len(body), CHUNK_BYTES):
        last = at + CHUNK_BYTES >= len(body)
        yield frame(Type.CALL if last else Type.PART, 1, body[at : at + CHUNK_BYTES])


def early_data() -> Iterator[bytes]:
    data = os.urandom(500_000)
    for stream in range(1, CALLS_MAX + 1):
        for number in range(WINDOW_BYTES // len(data)):
            yield frame(Type.DATA, stream, piece(number, data))


def streams_of_parts() -> Iterator[bytes]:
    for stream in range(1, 3_000_000):
        yield frame(Type.PART, stream, b"")


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "data without a call": early_data,
    "parts that only open streams": streams_of_parts,
    "256 MiB of empty maps": lambda: in_parts(empty_maps(256 * MIB - 64)),
    "a MiB of empty maps": lambda: in_parts(empty_maps(MIB - 64)),
    "nested arrays": lambda: in_parts(nested(500_000)),
    "arrays that claim more than there is": lambda: in_parts(b"\xdd\xff\xff\xff\xff" * 1000),
    "answers": lambda: iter([frame(Type.RETURN, 1, b"\x90")]),
}


@breaks("L4")
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_sent_takes_little_memory_and_ends_the_session(tmp_path: Path, attack: str) -> None:
    with watched(tmp_path) as agent:
        sampled = Sampled(agent)
        sampled.start()
        for part in ATTACKS[attack]():
            if not agent.say(part):
                break
        agent.is_ended()
        sampled.join()
        assert sampled.grown < 48 * MIB, f"{sampled.grown / MIB:.0f} MiB"
        assert sampled.descriptors <= agent.before[1] + 4


@breaks("L4")
def test_calls_far_above_the_limit_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    """Whose answers nobody reads: the agent stands still, and goes on when they are read."""
    with watched(tmp_path) as agent:
        calls = 20_000
        word = "x" * 4000

        def flood() -> None:
            for number in range(1, calls + 1):
                if not agent.say(*control(Type.CALL, number, ["facts", [1, word]])):
                    return

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        time.sleep(2)
        assert agent.grown_bytes() < 64 * MIB
        answered = 0
        while answered < calls:
            answered += sum(frame.type is Type.ERROR for frame in agent.lane.read())
        thread.join()
        assert agent.grown_bytes() < 64 * MIB
        assert agent.descriptors() <= agent.before[1] + 4


@breaks("L4")
def test_buffers_of_calls_that_take_no_data_are_counted(tmp_path: Path) -> None:
    """Data for calls that never read them: each has a window, and all together a bound."""
    volume = tmp_path / "v"
    Volume.create(volume, MIB).close()
    with watched(tmp_path / "home") as agent:
        agent.say(*control(Type.CALL, 1, ["open", ["block", str(volume)]]))
        agent.lane.read()
        data = os.urandom(500_000)
        for call in range(2, 40):
            agent.say(*control(Type.CALL, call, ["facts", [1]]))
            for number in range(WINDOW_BYTES // len(data)):
                if not agent.say(frame(Type.DATA, call, piece(number, data))):
                    break
        assert agent.grown_bytes() < 96 * MIB


@breaks("L4")
def test_the_client_is_bounded_too() -> None:
    """An agent that was taken over: answers that are small on the way and large in memory."""
    ours, theirs = socket.socketpair()
    mine, evil = (
        greeting.new_lane(FdStream(end.fileno(), end.detach(), "there")) for end in (ours, theirs)
    )
    greeting.say(evil, Hello("1.0", VERSIONS))
    greeting.expect(mine, timeout_s=PATIENCE_S)
    client = Session(mine)
    client.start()
    call = client.begin("snapshots", 1)
    body = b"\xdd" + struct.pack(">I", 16 * MIB) + b"\x80" * (16 * MIB)
    for at in range(0, len(body), CHUNK_BYTES):
        last = at + CHUNK_BYTES >= len(body)
        evil.stream.write(
            frame(Type.RETURN if last else Type.PART, call.number, body[at : at + CHUNK_BYTES])
        )
    ended = client.wait()
    assert isinstance(ended, ProtocolError) and "bytes of memory" in ended.why
    evil.close()


# Locks


#: Methods that look and change nothing, and those of the lock itself.
LOOKING = {
    "facts", "lock", "unlock", "snapshots", "own_snapshots", "base_left", "members",
    "changed_since", "delta", "changes", "send", "stagings", "writers", "is_marked",
    "relationships", "relationship", "in_use", "set_fence",
    "divergence", "verify_step", "verify_end", "verify_nodes", "verify_blocks", "verify_read",
}  # fmt: skip
#: A pause is made by a program of its own, which locks what it pauses.
LOOKING |= {name for name, method in METHODS.items() if method.role is PeerPause}
#: An image is changed by its own process, which alone knows its epoch, and holds the image's locks.
LOOKING |= {name for name, method in METHODS.items() if method.role is Live}


@breaks("S5")
@pytest.mark.parametrize("method", METHODS)
def test_nothing_changes_a_volume_that_another_has_locked(tmp_path: Path, method: str) -> None:
    assert METHODS[method].changes is (method not in LOOKING)
    if method in LOOKING:
        return
    volume = tmp_path / "v"
    Volume.create(volume, MIB).close()
    before = (volume / "root").read_bytes()
    with agents(tmp_path / "home") as others:
        session = others.session()
        number = session.call("open", "block", str(volume))[0]
        with BlockDriver(str(volume)).lock("mine"):
            with pytest.raises(Busy):
                session.call(method, number, *CALLS[method], timeout_s=PATIENCE_S)
            assert (volume / "root").read_bytes() == before
            assert not (volume / "staging").exists()


@breaks("S5")
def test_a_lock_that_is_given_back_in_the_middle_stays_to_the_end(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    request = ["t1", "m1", None, ["0" * 32, "s9", "reference", 1, 1]]
    with agents(tmp_path / "home") as others:
        session = others.session()
        number = session.call("open", "block", str(volume))[0]
        session.call("prepare", number, "m1", False)
        assert session.call("lock", number, "mine") is True
        exchange = session.begin("receive", number, request)
        exchange.await_opened()
        session.call("unlock", number)
        with pytest.raises(Busy), BlockDriver(str(volume)).lock("other"):
            pass
        exchange.cancel()
        until(lambda: _free(volume))
        session.forget(exchange)


def _free(volume: Path) -> bool:
    try:
        with BlockDriver(str(volume)).lock("other"):
            return True
    except Busy:
        return False


# Bugs of the native code


_PANICS = """
import sys
from mirrord.drivers.block.driver import BlockDriver
from mirrord.system.native import block_checksums
BlockDriver.facts = lambda self: block_checksums(b"x", 0)
sys.argv = ["mirrord", "agent"]
from mirrord.cli.main import main
sys.exit(main())
"""


@breaks("L5")
def test_a_panic_is_answered_and_the_session_goes_on(tmp_path: Path) -> None:
    import subprocess
    import sys

    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", _PANICS],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MIRRORD_HOME": str(tmp_path)},
    )
    theirs.close()
    descriptor = ours.detach()
    lane = greeting.new_lane(FdStream(descriptor, descriptor, "there"))
    greeting.say(lane, Hello(mirrord.__version__, VERSIONS, secrets.token_hex(16), 0, 1))
    greeting.expect(lane, timeout_s=PATIENCE_S)
    session = Session(lane)
    session.start()
    number = session.call("open", "block", str(tmp_path / "v"))[0]
    for _ in range(3):
        with pytest.raises(MirrordError, match="unexpected: PanicException"):
            session.call("facts", number, timeout_s=20)
    assert session.probe(20)
    session.close()
    process.wait(PATIENCE_S)


# Block streams


def entry_of(guid: str, **changes: Any) -> Entry:
    """A snapshot's entry as a stream announces it."""
    said: dict[str, Any] = {"segment": 0, "height": 0, "allocated": 3, "high": 5, **changes}
    segments = changes.pop("segments", 1)
    maps = tuple(
        SegmentMap(
            said["segment"] + n, Pointer(1, 7), said["height"], said["allocated"], said["high"]
        )
        for n in range(segments)
    )
    root = Root(changes.get("size_bytes", MIB), Pointer(2, 9), maps)
    return Entry(guid, "s1", SnapshotKind.REFERENCE, 1, root, content_digest(guid, root), 1)


def runs_frame(*runs: tuple[int, int]) -> bytes:
    body = b"".join(RUN.pack(*run) for run in runs)
    blocks = sum(count for _, count in runs)
    body += bytes(blocks * BLOCK_BYTES)
    return HEADER.pack(RUNS, len(runs), blocks, 0, sum_of(body)) + body


BAD_HEADS: dict[str, dict[str, Any]] = {
    "height": {"height": 10**9}, "negative height": {"height": -1},
    "segment": {"segment": 1 << 30}, "segments": {"segments": 20_000},
    "high": {"high": 1 << 60}, "allocated": {"allocated": 1 << 50},
    "size": {"size_bytes": 1 << 80}, "size of thousands of digits": {"size_bytes": 10**4000},
}  # fmt: skip
BAD_RUNS: dict[str, list[tuple[int, int]]] = {
    "another segment": [((n + 1) << 40 | 1, 1) for n in range(250)],
    "a number that the snapshot has not": [(1 << 39, 1)],
    "behind the end": [(4, 2)],
    "number 0": [(0, 1)],
}


@breaks("L6")
@pytest.mark.parametrize("what", [*BAD_HEADS, *BAD_RUNS])
def test_numbers_in_a_block_stream_size_nothing(tmp_path: Path, what: str) -> None:
    guid, volume = "ab" * 16, tmp_path / "v"
    entry = entry_of(guid, **BAD_HEADS.get(what, {}))
    snapshot = Snapshot(guid, "s1", SnapshotKind.REFERENCE, 1, 1)
    with agents(tmp_path / "home") as others:
        there = RemoteDriver.of(Endpoint("block", str(volume), "there"), others)
        there.prepare("m1")
        pid = others.processes[0].pid
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        began_s = time.monotonic()
        with (
            pytest.raises(MirrordError) as caught,
            there.receive(ReceiveRequest("t1", "m1", None, snapshot)) as receiver,
        ):
            head = head_frame("v", None, entry, 0)
            receiver.write(head)
            if what in BAD_RUNS:
                receiver.write(runs_frame(*BAD_RUNS[what]))
            checksum = StreamChecksum()
            checksum.update(head[: HEADER.size])
            receiver.write(done_frame(0, checksum.hexdigest()))
            receiver.finish()
        assert not isinstance(caught.value, LinkLost) and "unexpected" not in str(caught.value)
        assert time.monotonic() - began_s < 20
        assert len(os.listdir(f"/proc/{pid}/fd")) <= descriptors + 4
        assert [one.name for one in volume.glob("data.*")] == []
        sizes = [one.stat().st_size for one in volume.glob("data")]
        assert all(size < 16 * MIB for size in sizes)


@breaks("L6")
def test_a_stream_that_comes_byte_by_byte_costs_no_more(tmp_path: Path) -> None:
    """Each byte was copied with all that was waiting before it."""
    guid, volume = "ab" * 16, tmp_path / "v"
    snapshot = Snapshot(guid, "s1", SnapshotKind.REFERENCE, 1, 1)
    driver = BlockDriver(str(volume))
    driver.prepare("m1")
    entry = entry_of(guid, high=400, allocated=300)
    with driver.receive(ReceiveRequest("t1", "m1", None, snapshot)) as receiver:
        receiver.write(head_frame("v", None, entry, 0))
        data = runs_frame((1, 256))
        began_s = time.process_time()
        for at in range(len(data) - 1):
            receiver.write(data[at : at + 1])
        assert time.process_time() - began_s < 20


# A peer that reads nothing


@breaks("L7")
def test_a_full_socket_does_not_keep_silence_from_being_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "SILENCE_S", 2.0)
    monkeypatch.setattr(lanes, "BEAT_S", 0.2)
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = ours.detach()
        with pytest.raises(BlockingIOError):
            os.set_blocking(descriptor, False)
            while True:
                os.write(descriptor, bytes(4096))
        lane = Lane(FdStream(descriptor, descriptor, "there"))
        client = Session(lane)
        began_s = time.monotonic()
        client.start()
        assert client._over.wait(20), "nobody looks"
        assert time.monotonic() - began_s < 12
