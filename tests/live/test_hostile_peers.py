"""The other end has the right credentials, and sends what no end of a mirror would."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import peers
from tests.live.lab import VOLUME, End, wait_until
from tests.live.peers import Peer, Replica, begin, connected, frame, hello

MIB = 1 << 20
HUGE = (1 << 64) - 1


class _Consistent(End):
    """An end of a pair that is equal from the beginning."""

    def create(self, role: str) -> None:
        self._run("create", "--role", role, "--volume", VOLUME, "--in-sync")


@pytest.fixture
def secondary(program: Path, tmp_path: Path) -> Iterator[End]:
    end = _Consistent(program, tmp_path / "s", "secondary", 8 * MIB)
    end.options = ["--buffers", str(16 * MIB), "--log", str(80 * MIB)]
    end.start()
    yield end
    end.kill()


@pytest.fixture
def primary(program: Path, tmp_path: Path) -> Iterator[tuple[End, Replica]]:
    end = _Consistent(program, tmp_path / "p", "primary", 8 * MIB)
    replica = Replica()
    end.peer = f"127.0.0.1:{replica.port}"
    end.start()
    yield end, replica
    end.kill()
    replica.listener.close()


@contextlib.contextmanager
def _session(end: End, kind: int = peers.PUSH, value: int = 0) -> Iterator[Peer]:
    with connected(end.link_port) as peer:
        peer.send(hello(peers.PRIMARY), begin(kind, value))
        peer.await_frame(peers.BEGUN)
        yield peer


def _asked(end: End) -> dict[str, object]:
    status = end.status()
    assert status is not None, "the process ended"
    return status


def test_what_a_resync_announces_reserves_no_more_than_the_image(secondary: End) -> None:
    with _session(secondary, peers.RESYNC, 1 << 30):
        side = (secondary.state / "side").stat()
        assert side.st_blocks * 512 < 16 * MIB


@pytest.mark.parametrize("how", ["greeting", "begin"])
def test_an_epoch_that_cannot_be_is_not_taken_over(secondary: End, how: str) -> None:
    """After it there would be none: a break would begin again with epoch 0."""
    with connected(secondary.link_port) as peer:
        if how == "greeting":
            peer.send(hello(peers.PRIMARY, epoch=HUGE))
        peer.send(hello(peers.PRIMARY), begin(peers.RESUME, epoch=HUGE))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            peer.await_frame(peers.BEGUN)
    assert secondary.ask("break") == {"ok": True}
    wait_until(lambda: _asked(secondary)["role"] == "primary", "the break")
    assert _asked(secondary)["epoch"] == 2


def test_no_epoch_that_cannot_be_fences_a_primary(primary: tuple[End, Replica]) -> None:
    end, replica = primary
    with connected(end.link_port) as stranger:
        stranger.send(hello(peers.PRIMARY, epoch=HUGE))
        stranger.await_frame(peers.HELLO)
    with replica.accepted() as peer:
        peer.await_frame(peers.HELLO)
        peer.send(hello(peers.SECONDARY, epoch=HUGE))
        time.sleep(0.3)
    assert _asked(end)["role"] == "primary"


@pytest.mark.parametrize("kind", [peers.SETTLE, peers.COMMIT])
def test_counts_that_cannot_be_are_not_taken_over(secondary: End, kind: int) -> None:
    """A primary would find an older copy of itself for ever."""
    with _session(secondary) as peer:
        payload = b"\xff" * 8 if kind == peers.COMMIT else b""
        peer.send(frame(kind, sequence=1, offset=HUGE, payload=payload))
        with contextlib.suppress(ConnectionResetError):
            peer.await_frame(peers.SETTLED)
    with connected(secondary.link_port) as peer:
        peer.send(hello(peers.PRIMARY))
        answer = peer.await_frame(peers.HELLO)
    assert b"\xff" * 8 not in answer


def test_data_that_the_primary_does_not_read_is_bounded(secondary: End) -> None:
    fetches = [frame(peers.FETCH, offset=n % 32 * (256 << 10), length=256 << 10) for n in range(64)]
    with _session(secondary) as peer:
        peer.socket.settimeout(2)
        with contextlib.suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
            for _ in range(64):
                peer.send(*fetches)
        time.sleep(1)
        assert secondary.memory("VmHWM") < 80 * MIB
    wait_until(lambda: secondary.memory() < 40 * MIB, "the memory to be free again")


@pytest.mark.parametrize("kind", [peers.FETCH, peers.MAP_REQUEST, peers.HELLO])
def test_answers_are_read_by_a_primary_that_asks_for_much(secondary: End, kind: int) -> None:
    """What waits is answered once there is room."""
    asked = hello(peers.PRIMARY) if kind == peers.HELLO else frame(kind, length=4096)
    with _session(secondary) as peer:
        for _ in range(20):
            peer.send(*[asked] * 20)
            peer.await_frame({peers.FETCH: peers.DATA, peers.HELLO: kind}.get(kind, peers.MAP))


def test_a_reason_of_the_other_end_is_shown_as_one_short_line(
    primary: tuple[End, Replica],
) -> None:
    end, replica = primary
    text = b"no\n\x1b[2Jforged line\n" + bytes(MIB)
    with replica.accepted() as peer:
        peer.await_frame(peers.HELLO)
        refusal = frame(peers.REFUSE, payload=text)
        peer.send(refusal, hello(peers.SECONDARY))
        peer.await_frame(peers.BEGIN)
        peer.send(*[refusal] * 30)
        wait_until(lambda: "the replica refused: no" in str(_asked(end)["reason"]), "the reason")
    log = (end.folder / "log").read_bytes()
    assert len(log) < 10_000 and b"\x1b" not in log and b"\nforged" not in log
    assert log.count(b"the replica refused") <= 2


def test_greetings_that_nobody_asked_for_are_not_answered(primary: tuple[End, Replica]) -> None:
    end, replica = primary
    with replica.accepted() as peer:
        peer.await_frame(peers.HELLO)
        for _ in range(100):
            peer.send(hello(peers.SECONDARY))
            time.sleep(0.003)
        peer.socket.settimeout(0.3)
        seen = []
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while True:
                seen.append(peer.receive()[0])
    assert seen.count(peers.BEGIN) == 1
    assert _asked(end)["role"] == "primary"


def test_a_stranger_that_reads_nothing_is_disconnected(primary: tuple[End, Replica]) -> None:
    end, _ = primary
    with socket.create_connection(("127.0.0.1", end.link_port), timeout=5) as stranger:
        greetings = hello(peers.PRIMARY) * 100
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(3000):
                stranger.sendall(greetings)
                time.sleep(0.002)


def test_a_map_names_each_block_once(program: Path, tmp_path: Path) -> None:
    end = End(program, tmp_path / "p", "primary", 1 << 42)
    replica = Replica()
    end.peer = f"127.0.0.1:{replica.port}"
    end.start(60)
    try:
        run = (0).to_bytes(8, "little") + (1 << 30).to_bytes(8, "little")
        greeting = hello(peers.SECONDARY, 1 << 42, generation=0, diverged=1)
        answer = frame(peers.MAP, payload=run * 2000)
        with replica.accepted() as peer:
            peer.await_frame(peers.HELLO)
            peer.send(greeting)
            peer.await_frame(peers.MAP_REQUEST)
            peer.send(answer)
            begun = time.monotonic()
            assert _asked(end)["role"] == "primary"
            assert time.monotonic() - begun < 10
    finally:
        end.kill()
        replica.listener.close()


def test_strangers_do_not_fill_the_log(secondary: End) -> None:
    sound = frame(peers.HELLO)
    for version in range(2, 202):
        head = sound[:6] + version.to_bytes(2, "little") + sound[8 : peers.HEADER - 4]
        with connected(secondary.link_port) as stranger:
            stranger.send(head + peers.crc32c(head).to_bytes(4, "little"))
            with pytest.raises(ConnectionResetError):
                stranger.receive()
    assert (secondary.folder / "log").read_text().count("speaks version") in range(1, 20)
    assert len(secondary.ask("events 0")) < 20
