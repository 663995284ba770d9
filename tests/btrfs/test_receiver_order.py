"""`mirrord-receive` and commands in an order, of a number, or with names that no kernel sends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.btrfs.streams import (
    CHMOD,
    INTERRUPTED,
    LINK,
    MKDIR,
    MKFIFO,
    MKFILE,
    MODE,
    OWN_UUID,
    PATH,
    PATH_LINK,
    PATH_TO,
    RENAME,
    SET_XATTR,
    SIZE,
    SYMLINK,
    TRUNCATE,
    UNLINK,
    XATTR_DATA,
    XATTR_NAME,
    Target,
    begin,
    clone,
    command,
    number,
    stream,
    write,
)
from tests.support import btrfs
from tests.support.service import processor_s

_FILE = command(MKFILE, (PATH, b"f"))
#: What a file system may be called by, though few people would.
_NAMES = [b"a\nb", b"\n", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3(", b"\t\x1b[2J", b"\\", b" ", b"-f"]


@pytest.fixture
def target() -> Iterator[Target]:
    with btrfs.folders() as (_here, there):
        yield Target(there / "t")


@pytest.mark.parametrize("name", [*_NAMES, b"n" * 255], ids=range(len(_NAMES) + 1))
def test_every_name_that_a_file_may_have_arrives(target: Target, name: bytes) -> None:
    """With messages about it in one line."""
    made = [
        command(MKDIR, (PATH, name)),
        command(MKFILE, (PATH, name + b"/" + name)),
        write(name + b"/" + name, b"data"),
        command(SYMLINK, (PATH, b"link"), (PATH_LINK, name)),
    ]
    assert target.receive(stream(*made)) == (0, "")
    top = os.fsencode(target.subvolume)
    assert sorted(os.listdir(top)) == sorted([name, b"link"])
    assert os.readlink(top + b"/link") == name
    assert Path(os.fsdecode(b"/".join((top, name, name)))).read_bytes() == b"data"
    target.remove_staged()
    status, why = target.receive(stream(command(UNLINK, (PATH, name))))
    assert status == 1 and why.startswith("failed\t") and why.endswith("\n")
    assert why[:-1].replace("\t", "", 1).isprintable() and len(why) < 400


def _commands() -> list[bytes]:
    """Of a valid stream."""
    return [
        _FILE,
        write(b"f", b"x" * 4096),
        command(MKDIR, (PATH, b"d")),
        command(RENAME, (PATH, b"f"), (PATH_TO, b"d/f")),
        command(LINK, (PATH, b"l"), (PATH_LINK, b"d/f")),
        command(MKFIFO, (PATH, b"p")),
        command(MKFILE, (PATH, b"g")),
        clone(b"g", OWN_UUID, b"l"),
        command(TRUNCATE, (PATH, b"g"), (SIZE, number(100))),
        command(CHMOD, (PATH, b"g"), (MODE, number(0o640))),
        command(SET_XATTR, (PATH, b"g"), (XATTR_NAME, b"user.x"), (XATTR_DATA, b"y")),
        command(UNLINK, (PATH, b"l")),
    ]


def _judged(target: Target, commands: list[bytes]) -> int:
    status, why = target.receive(stream(*commands))
    assert status == 0 or (status == 1 and why.startswith("failed\t") and why.count("\n") == 1), why
    target.remove_staged()
    return status


def test_each_command_may_come_twice(target: Target) -> None:
    """What is the same afterwards is accepted; creating and removing again is not."""
    commands = _commands()
    ends = [_judged(target, [*commands[: at + 1], *commands[at:]]) for at in range(len(commands))]
    assert ends == [1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1]


def test_each_two_commands_may_be_swapped_and_each_may_be_missing(target: Target) -> None:
    commands = _commands()
    assert _judged(target, commands) == 0
    for at in range(len(commands) - 1):
        one, other = commands[at : at + 2]
        _judged(target, [*commands[:at], other, one, *commands[at + 2 :]])
        _judged(target, [*commands[:at], *commands[at + 1 :]])
    assert _judged(target, commands[::-1]) == 1


def test_a_part_of_the_stream_may_be_missing_or_repeated(target: Target) -> None:
    """At any byte: a cut that is not between commands is found by the next checksum."""
    whole = stream(*_commands())
    for at in range(13, len(whole) - 11, 97):
        for without in (whole[:at] + whole[at + 11 :], whole[: at + 11] + whole[at:]):
            status, why = target.receive(without)
            assert status in (1, INTERRUPTED) and why.count("\n") <= 1, (at, why)
            target.remove_staged()


def test_a_file_that_becomes_a_link_is_not_written_to_any_more(target: Target) -> None:
    """It was open; the new name may lead to the old file, or out of the volume."""
    victim = target.into.parent / "victim"
    victim.write_bytes(b"untouched")
    for leads_to in (b"g", os.fsencode(victim)):
        commands = [
            _FILE,
            write(b"f", b"first"),
            command(RENAME, (PATH, b"f"), (PATH_TO, b"g")),
            command(SYMLINK, (PATH, b"f"), (PATH_LINK, leads_to)),
            write(b"f", b"changed"),
        ]
        status, why = target.receive(stream(*commands))
        assert status == 1 and "'f'" in why
        assert (target.subvolume / "g").read_bytes() == b"first"
        assert victim.read_bytes() == b"untouched"
        target.remove_staged()


def test_a_million_attributes_take_no_memory(target: Target) -> None:
    """50 times 20,000 of one file: the time for each is the same, and nothing is kept of them."""
    one = b"".join(
        command(SET_XATTR, (PATH, b"f"), (XATTR_NAME, b"user.%d" % at), (XATTR_DATA, b"value"))
        for at in range(20_000)
    )
    child = subprocess.Popen(target.words(), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdin is not None and child.stderr is not None
    child.stdin.write(begin() + _FILE + one)
    times_s = []
    for _ in range(49):
        began_s = processor_s(child.pid)
        child.stdin.write(one)
        times_s.append(processor_s(child.pid) - began_s)
    status = Path(f"/proc/{child.pid}/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    child.stdin.write(stream()[len(begin()) :])
    child.stdin.close()
    assert child.wait() == 0, child.stderr.read()
    child.stderr.close()
    assert peak < 24 << 10, f"{peak} KiB"
    assert sum(times_s[-10:]) < 4 * sum(times_s[5:15]) + 1
    for at in (0, 19_999):
        assert os.getxattr(target.subvolume / "f", f"user.{at}") == b"value"
