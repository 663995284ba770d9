"""The first frames of every lane: software, protocol versions, and session of each end."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import mirrord
from mirrord.core.errors import (
    LinkLost,
    MirrordError,
    ProtocolError,
    Unreachable,
    unpack_error,
)
from mirrord.link.lane import DAMAGED_HINT, Lane
from mirrord.transport.base import ByteStream
from mirrord.wire.frames import MAGIC, FrameReader, Type, value_of
from mirrord.wire.values import printable

#: Supported versions of the protocol (the content of the frames), newest first.
#: Version 2 has relationship records and the fence (`Method.since`). From version 3 on a stream
#: ends with its XXH3-128, before that with its BLAKE3.
VERSIONS = (3, 2, 1)
CHECKSUM_SINCE = 3
#: Maximum output of a login shell before mirrord's greeting.
_STRAY_BYTES_MAX = 64 << 10
#: More are of no use, and errors name them all.
_VERSIONS_MAX = 100


class Hello(NamedTuple):
    """How an end introduces itself.

    software: the version of mirrord. versions: of the protocol. token: identifies the client's
    session, the same for all of its lanes and reconnections. lane: 0 for the first. pid: of its
    process. about: the peer's permissions at the agent, as text.
    """

    software: str
    versions: tuple[int, ...]
    token: str = ""
    lane: int = 0
    pid: int = 0
    about: str = ""


def _of(packed: Any, peer: str) -> Hello:
    if not isinstance(packed, dict):
        raise ProtocolError("malformed greeting from the other end")
    if isinstance(packed.get("error"), dict):
        refusal = unpack_error(packed["error"])
        if refusal.where:  # a path there
            refusal.where = f"{peer}: {refusal.where}"
        raise refusal
    versions = packed.get("versions")
    if not isinstance(versions, list) or not all(type(one) is int for one in versions):
        raise ProtocolError("malformed greeting from the other end")
    numbers = [packed.get(key, 0) for key in ("lane", "pid")]
    if not all(type(one) is int and 0 <= one < 1 << 31 for one in numbers):
        raise ProtocolError("malformed greeting from the other end")
    words = [str(packed.get(key, ""))[:200] for key in ("software", "token", "about")]
    return Hello(
        words[0], tuple(versions[:_VERSIONS_MAX]), words[1], numbers[0], numbers[1], words[2]
    )


def say(lane: Lane, hello: Hello) -> None:
    """Send a greeting."""
    lane.tell(Type.HELLO, 0, {**hello._asdict(), "versions": list(hello.versions)})


def refuse(lane: Lane, error: MirrordError) -> None:
    """Send a refusal instead of a greeting."""
    lane.tell(Type.HELLO, 0, {"error": error.as_dict()})


def expect(lane: Lane, *, timeout_s: float) -> Hello:
    """The other end's greeting, within the time; raises its refusal."""
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        lane.close()

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        frames = lane.read()
    except LinkLost as error:
        raise _no_greeting(lane, timeout_s if overdue.is_set() else None) from error
    except ProtocolError as error:
        error.where = lane.stream.peer
        stray = lane.reader.stray or lane.reader.pending()
        if stray.startswith(MAGIC):
            error.hint = error.hint or DAMAGED_HINT
            raise
        error.why = f"received {shown(stray)}"
        error.hint = (
            "Check that mirrord responds there. A login shell must not print anything when its "
            "output is not a terminal."
        )
        raise
    finally:
        timer.cancel()
    if len(frames) != 1 or frames[0].type is not Type.HELLO:
        raise ProtocolError(
            "the first frame of the other end is not a greeting", where=lane.stream.peer
        )
    try:
        return _of(printable(value_of(frames[0].body, Type.HELLO)), lane.stream.peer)
    except MirrordError as error:
        error.where = error.where or lane.stream.peer
        raise


def _no_greeting(lane: Lane, timeout_s: float | None) -> MirrordError:
    stray = lane.reader.pending()
    if timeout_s is not None and not stray:
        stderr = printable(lane.stream.stderr_tail()).strip().splitlines()
        nothing = f"no greeting within {timeout_s:g} s"
        return Unreachable(
            "the remote mirrord does not respond",
            where=lane.stream.peer,
            why=f"{nothing} ({stderr[-1]})" if stderr else nothing,
            hint="Log in there and check that 'mirrord agent --help' works. For a slow host, raise "
            'the timeout: connect = "30s" in its file in hosts.d.',
        )
    return lane.stream.failure(stray)


def shown(stray: bytes) -> str:
    """Received bytes, made safe to print."""
    text = stray[:60].decode("ascii", "replace")
    return repr("".join(letter if letter.isprintable() else "?" for letter in text))


def agree(ours: tuple[int, ...], theirs: Hello, where: str) -> int:
    """The newest version that both support; `ProtocolError` lists those of both."""
    common = set(ours) & set(theirs.versions)
    if not common:
        raise ProtocolError(
            "the two ends have no common version of the protocol",
            where=where,
            why=f"mirrord {mirrord.__version__} here supports {_listed(ours)}, mirrord "
            f"{theirs.software} there supports {_listed(theirs.versions)}",
            hint="Install the same version of mirrord at both ends.",
        )
    return max(common)


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(str(one) for one in versions) or "none"


def new_lane(stream: ByteStream) -> Lane:
    """A lane that skips output before the first greeting."""
    return Lane(stream, FrameReader(stray_bytes_max=_STRAY_BYTES_MAX))
