"""The agent as a process: started wrongly, spoken to wrongly, left, cut off, killed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from mirrord.core.errors import Busy, LinkLost
from mirrord.core.model import Endpoint, ReceiveRequest
from mirrord.drivers.block.owner import Volume
from mirrord.drivers.registry import open_driver
from mirrord.link import hello as greeting
from mirrord.link.driver import RemoteDriver
from mirrord.link.hello import Hello
from mirrord.transport.fds import FdStream
from mirrord.wire.frames import Type, control
from tests.support.agents import Agents, agents
from tests.support.service import PATIENCE_S, until

AGENT = [sys.executable, "-m", "mirrord", "agent"]


def run(home: Path, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*AGENT, *arguments],
        input=data,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "MIRRORD_HOME": str(home)},
    )


def test_the_agent_explains_itself_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        AGENT,
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "MIRRORD_HOME": str(tmp_path)},
    )
    os.close(leader)
    os.close(follower)
    assert done.returncode == 2
    assert b"'mirrord agent' is not an interactive command" in done.stderr
    assert b"mirrord host add" in done.stderr


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello there\r\n",
        os.urandom(70_000),
        b"GET / HTTP/1.0\r\n\r\n",
        b"".join(control(Type(1), 0, "no map")),
        b"".join(control(Type(2), 1, ["facts", []])),
    ],
    ids=["nothing", "a word", "noise", "http", "no map", "a call first"],
)
def test_who_does_not_greet_is_left_in_a_line(tmp_path: Path, data: bytes) -> None:
    done = run(tmp_path, data)
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("error: ") and "unexpected" not in lines[0] and len(lines) <= 2


@pytest.mark.parametrize(
    "arguments",
    [["--allow", "x"], ["--data-ports", "x"], ["--data-ports", "9-3"], ["--compress", "99"]],
)
def test_a_wrong_argument_is_said_at_once(tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, b"", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(b"error: ")


def test_another_version_learns_ours(tmp_path: Path) -> None:
    made = Agents(tmp_path)
    lane = greeting.new_lane(made.stream())
    greeting.say(lane, Hello("99.0", (99,), "0" * 32))
    theirs = greeting.expect(lane, timeout_s=PATIENCE_S)
    assert theirs.versions == greeting.VERSIONS
    assert made.processes[0].wait(PATIENCE_S) == 1
    lane.close()


def block(folder: Path, name: str) -> Path:
    path = folder / name
    with Volume.create(path, 64 << 20) as volume:
        for at in range(0, 48 << 20, 1 << 20):
            volume.write(at, os.urandom(1 << 20))
    return path


def remote(others: Agents, path: Path) -> RemoteDriver:
    return RemoteDriver.of(Endpoint("block", str(path), "there"), others)


def test_the_agent_ends_with_its_client(tmp_path: Path) -> None:
    with agents(tmp_path / "home") as others:
        remote(others, tmp_path / "none").facts()
        process = others.processes[0]
        stream = others.session()._lanes[0].stream
        assert isinstance(stream, FdStream)
        stream.close()  # as when the client's host loses its power, and TCP says so
        assert process.wait(PATIENCE_S) in (0, 1)


def test_a_killed_agent_is_replaced_and_its_lock_taken_again(tmp_path: Path) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        with driver.lock("mirrord update x"):
            others.kill()
            current = others._current
            assert current is not None
            until(lambda: not current.alive)
            assert driver.facts().identity
            with pytest.raises(Busy), open_driver(Endpoint("block", str(path))).lock("other"):
                pass
        with open_driver(Endpoint("block", str(path))).lock("other"):
            pass


def test_a_deletion_whose_agent_is_killed_is_done_by_the_next_one(tmp_path: Path) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        with driver.lock("mirrord update x"):
            one = driver.take_snapshot("one")
            for _ in range(5):
                driver.facts()
            others.processes[0].send_signal(signal.SIGSTOP)
            finish = driver.begin_delete(one.guid)
            others.kill()
            assert [s.name for s in open_driver(Endpoint("block", str(path))).snapshots()]
            finish()
        assert not open_driver(Endpoint("block", str(path))).snapshots()
        session = others.session()
        assert not session._exchanges
        # A call of another mirror may have the number that the deletion had in the former session.
        others.processes[-1].send_signal(signal.SIGSTOP)
        calls = [session.begin("ping") for _ in range(8)]
        driver.detach()
        others.processes[-1].send_signal(signal.SIGCONT)
        for call in calls:
            call.result(PATIENCE_S)


def test_a_deletion_that_nobody_awaits_is_forgotten(tmp_path: Path) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        one = driver.take_snapshot("one")
        driver.begin_delete(one.guid)
        driver.detach()
        assert not others.session()._exchanges


@pytest.mark.parametrize("of", ["the volume", "the session"])
def test_a_lock_that_the_old_agent_still_holds_is_waited_for(tmp_path: Path, of: str) -> None:
    """A process that was killed ends when its disk has done what it waits for."""
    path, runtime = block(tmp_path, "v"), tmp_path / "home/run/agents"
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        with driver.lock("mirrord update x"), ExitStack() as stack:
            current = others._current
            assert current is not None
            [token] = [one for one in runtime.iterdir() if len(one.name) == 32]
            others.kill()
            until(lambda: not current.alive)
            locked = os.open(path / "lock" if of == "the volume" else token, os.O_RDWR)
            stack.callback(os.close, locked)
            fcntl.flock(locked, fcntl.LOCK_EX)
            # (A session's lock is waited for by the agent, too, for 10 s.)
            later = threading.Timer(13, lambda: fcntl.flock(locked, fcntl.LOCK_UN))
            stack.callback(later.join)
            later.start()
            assert driver.facts().identity
            assert not later.is_alive()
            with pytest.raises(Busy), open_driver(Endpoint("block", str(path))).lock("other"):
                pass


def test_a_client_that_comes_back_ends_its_old_agent_that_hangs(tmp_path: Path) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        with driver.lock("mirrord update x"):
            old = others.processes[0]
            old.send_signal(signal.SIGSTOP)  # a link that was cut without a word looks like this
            others._current = None
            began = time.monotonic()
            assert driver.facts().identity
            assert time.monotonic() - began < 60
            assert old.wait(PATIENCE_S) != 0
    assert not list((tmp_path / "home/run/agents").iterdir())


def test_a_client_that_comes_back_at_once_takes_over_quickly(tmp_path: Path) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as others:
        driver = remote(others, path)
        with driver.lock("mirrord update x"):
            others._current = None  # the old connection still stands, and its agent lives
            assert driver.facts().identity
            # It ended when it was asked to: nobody waited until it had to be killed.
            assert others.processes[0].wait(PATIENCE_S) != -signal.SIGKILL


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Path]:
    """The folder of an agent's files, on a file system on which no file can be created."""
    runtime = tmp_path / "home/run"
    runtime.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "nr_inodes=5", "none"]
    subprocess.run([*words, str(runtime)], check=True)
    try:
        (runtime / "agents").mkdir(mode=0o700)
        with suppress(OSError):
            for number in range(9):
                (runtime / str(number)).touch()
        yield runtime / "agents"
    finally:
        subprocess.run(["umount", "-l", str(runtime)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_clients_do_not_shut_each_other_out_where_no_file_can_be_created(
    tmp_path: Path, crowded: Path
) -> None:
    path = block(tmp_path, "v")
    with agents(tmp_path / "home") as one, agents(tmp_path / "home") as other:
        first, second = remote(one, path), remote(other, path)
        with first.lock("mirrord update x"):
            assert second.facts().identity == first.facts().identity
            with pytest.raises(Busy), second.lock("mirrord update y"):
                pass
        with second.lock("mirrord update y"):
            pass
        (crowded.parent / "0").unlink()
        (crowded.parent / "1").unlink()
        one.session().close()  # it comes back, and its agent can have a file now
        assert first.facts().identity == second.facts().identity
        assert len(list(crowded.iterdir())) == 1


def test_the_file_of_an_agent_that_was_killed_is_removed_later(tmp_path: Path) -> None:
    runtime = tmp_path / "home/run/agents"
    with agents(tmp_path / "home") as killed, agents(tmp_path / "home") as living:
        remote(killed, tmp_path / "none").facts()
        remote(living, tmp_path / "none").facts()
        killed.kill()
        for file in runtime.iterdir():
            os.utime(file, (time.time() - 7200,) * 2)
        with agents(tmp_path / "home") as third:
            remote(third, tmp_path / "none").facts()
            names = {file.name for file in runtime.iterdir()}
            assert names == {living._token, third._token}
        # A client that comes back is not hindered by its own old file.
        assert remote(killed, tmp_path / "none").facts()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_kill_in_the_middle_costs_no_more_than_a_checkpoint(tmp_path: Path, share: float) -> None:
    source = open_driver(Endpoint("block", str(block(tmp_path, "v"))))
    snapshot = source.take_snapshot("s")
    whole = source.delta(None, snapshot.guid).send_bytes
    with agents(tmp_path / "home") as others:
        there = remote(others, tmp_path / "copy")
        there.prepare("m")
        request = ReceiveRequest("t", "m", None, snapshot)
        sent = 0
        with (
            pytest.raises(LinkLost),
            source.send(None, snapshot.guid) as stream,
            there.receive(request) as receiver,
        ):
            while chunk := stream.read():
                receiver.write(chunk)
                sent += len(chunk)
                if sent > share * whole:
                    others.kill()
        [staging] = there.stagings()
        assert not staging.complete
        # What had not been told to be there is sent again: a checkpoint, and what was under way.
        assert sent - staging.received_bytes <= 24 << 20
        checkpoint = dict(staging.checkpoint) if staging.checkpoint else None
        with (
            there.receive(request) as receiver,
            source.send(None, snapshot.guid, checkpoint=checkpoint) as stream,
        ):
            while chunk := stream.read():
                receiver.write(chunk)
            assert receiver.finish().complete
        there.commit("t", show=True)
        assert there.facts().shown == snapshot.guid
