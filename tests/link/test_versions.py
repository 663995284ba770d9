"""An end that speaks an older version of the protocol: what one really said (`recorded`) is
played to the other end as it is now.
"""

from __future__ import annotations

import json
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.errors import Unsupported
from mirrord.core.model import Role
from mirrord.core.relationship import Fence
from mirrord.link import hello as greeting
from mirrord.link.driver import RemoteDriver
from mirrord.link.hello import VERSIONS, Hello
from mirrord.link.session import Session
from mirrord.system.waiting import Waiting
from mirrord.transport.base import ByteStream
from mirrord.wire.frames import HEADER, FrameReader, Type, value_of
from mirrord.wire.methods import METHODS
from mirrord.wire.values import unpack
from tests.link.recorded import record
from tests.support.agents import Agents

RECORDED = Path(__file__).parent / "recorded"
#: Every version before the present one.
OLDER = VERSIONS[1:]


def recorded(version: int) -> list[tuple[str, list[bytes], list[bytes]]]:
    """What was asked, the client's frames, and the agent's."""
    found = json.loads((RECORDED / f"version{version}.json").read_text())
    ends = ("client", "agent")
    return [(one["asked"], *([*frames(bytes.fromhex(one[end]))] for end in ends)) for one in found]


def frames(data: bytes) -> Iterator[bytes]:
    """All frames but the signs of life."""
    while data:
        length = HEADER.size + HEADER.unpack(data[: HEADER.size])[4]
        if data[3] != Type.BEAT:
            yield data[:length]
        data = data[length:]


def _head(frame: bytes) -> tuple[int, int]:
    """The type of a frame, and its stream."""
    _magic, _format, kind, stream, _length, _sum = HEADER.unpack(frame[: HEADER.size])
    return kind, stream


def value(frame: bytes) -> Any:
    """What a frame of a session that has begun says."""
    reader = FrameReader()
    reader.begun = True
    [found] = reader.feed(frame)
    assert found.type in (Type.HELLO, Type.CALL, Type.RETURN)
    return value_of(found.body, found.type)


@pytest.fixture
def places() -> Iterator[None]:
    record.volumes()
    yield
    shutil.rmtree(record.HOME)


@pytest.mark.parametrize("version", OLDER)
def test_there_is_a_recording_of_each_older_version(version: int) -> None:
    _asked, [client], [agent] = recorded(version)[0]
    supported = list(range(version, 0, -1))
    assert value(client)["versions"] == value(agent)["versions"] == supported


@pytest.mark.parametrize("version", OLDER)
def test_an_older_client_is_served(places: None, tmp_path: Path, version: int) -> None:
    agents = Agents(tmp_path)
    stream = agents.stream()
    reader, heard = FrameReader(), list[Any]()
    for asked, sent, answers in recorded(version):
        for frame, before in zip(sent, answers, strict=True):
            stream.write(frame)
            while not heard:
                heard += [one for one in reader.feed(stream.read(1 << 16)) if one.type != Type.BEAT]
            answer = heard.pop(0)
            assert (answer.type, answer.stream) == (
                before[3],
                int.from_bytes(before[4:8], "little"),
            )
        if asked == "hello":
            continue
        kind = METHODS[asked].result
        now = value_of(answer.body, answer.type)
        if kind is None:
            assert now is None
        elif asked == "facts":
            now, then = unpack(kind, now), unpack(kind, value(before))
            assert (now.role, now.kind, now.mirror_id) == (then.role, then.kind, then.mirror_id)
        else:
            # A client ignores the fields that it does not know.
            known = now[: len(value(before))] if hasattr(kind, "_fields") else now
            assert len(known) == len(value(before))
            unpack(kind, now)
    stream.close()
    agents.close()


class OlderAgent(ByteStream):
    """Answers each frame as the recorded agent did."""

    peer = "there"
    notes: tuple[str, ...] = ()

    def __init__(self, version: int) -> None:
        self._answers = [frame for _asked, _sent, answers in recorded(version) for frame in answers]
        self._heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.methods: list[str] = []
        self._session: Session | None = None

    def read(self, most: int) -> bytes:
        return self._heard.get()

    def write(self, *parts: bytes | memoryview) -> None:
        for frame in frames(b"".join(map(bytes, parts))):
            if frame[3] == Type.CALL:
                self.methods.append(value(frame)[0])
            if frame[3] in (Type.HELLO, Type.CALL):
                self._heard.put(self._answers.pop(0))

    def close(self) -> None:
        self._heard.put(b"")

    def session(self, _waiting: Waiting | None = None) -> Session:
        """As a link makes it."""
        if self._session is None:
            lane = greeting.new_lane(self)
            greeting.say(lane, Hello("now", VERSIONS, "0" * 32))
            theirs = greeting.expect(lane, timeout_s=60)
            version = greeting.agree(VERSIONS, theirs, self.peer)
            self._session = Session(lane, version=version)
            self._session.start()
        return self._session


@pytest.mark.parametrize("version", OLDER)
def test_an_older_agent_is_asked_for_nothing_that_it_does_not_have(version: int) -> None:
    agent = OlderAgent(version)
    made: list[RemoteDriver] = []

    def opened(end: Any) -> RemoteDriver:
        made.append(RemoteDriver.of(end, agent))
        if version == 1:
            made[-1].fence = Fence("m1", 7)
        return made[-1]

    results = [(name, call()) for name, call in record.script(opened)]
    roles = [found.role for name, found in results if name == "facts"]
    assert roles == [Role.LIVE, Role.ABSENT, Role.MIRROR]
    [taken] = [found for name, found in results if name == "take_snapshot"]
    assert taken.name == "one"
    assert {METHODS[name].since for name in agent.methods if name in METHODS} == {1}
    if version == 1:
        with pytest.raises(Unsupported, match="too old to inspect a volume"):
            made[1].relationship("m1")
    with pytest.raises(Unsupported, match="too old to verify snapshots"):
        made[1].verify_end()
    assert not agent._answers
    agent.session().close()
