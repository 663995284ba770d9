"""`mirrord-receive` and streams that no kernel sends: nothing outside its folder changes, no memory
is taken because a stream says so, and the message names the command.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator

import pytest

from tests.btrfs.history import state
from tests.btrfs.streams import (
    ATIME,
    BASE_UUID,
    CHMOD,
    CHOWN,
    CLONE_UUID,
    CTRANSID,
    DATA,
    ENABLE_VERITY,
    ENCODED_WRITE,
    END,
    FALLOCATE,
    GID,
    INTERRUPTED,
    LINK,
    MAGIC,
    MKDIR,
    MKFIFO,
    MKFILE,
    MKNOD,
    MKSOCK,
    MODE,
    MTIME,
    OFFSET,
    OWN_UUID,
    PATH,
    PATH_LINK,
    PATH_TO,
    RDEV,
    REMOVE_XATTR,
    RENAME,
    RMDIR,
    SET_XATTR,
    SIZE,
    SNAPSHOT,
    SUBVOL,
    SYMLINK,
    TRUNCATE,
    UID,
    UNLINK,
    UPDATE_EXTENT,
    UTIMES,
    UUID,
    WRITE,
    XATTR_DATA,
    XATTR_NAME,
    Target,
    begin,
    boundaries,
    clone,
    command,
    number,
    stream,
    write,
)
from tests.support import btrfs

_TIMES = ((ATIME, struct.pack("<QI", 5, 6)), (MTIME, struct.pack("<QI", 7, 8)))
_FILE = command(MKFILE, (PATH, b"f"))
_MAX = (1 << 63) - 1


@pytest.fixture
def target() -> Iterator[Target]:
    """With a file next to its folder, which no stream may change."""
    with btrfs.folders() as (_here, there):
        (there / "victim").write_bytes(b"untouched")
        (there / "victim").chmod(0o640)
        os.utime(there / "victim", ns=(1, 2))
        before = os.stat(there / "victim")
        yield Target(there / "t")
        after = os.stat(there / "victim")
        assert (there / "victim").read_bytes() == b"untouched"
        assert (
            after.st_mode,
            after.st_uid,
            after.st_mtime_ns,
            after.st_nlink,
            after.st_ctime_ns,
        ) == (before.st_mode, 0, 2, 1, before.st_ctime_ns)


def _every_command(path: bytes) -> list[bytes]:
    """Each command that has a path, with this one."""
    xattr = (XATTR_NAME, b"user.x")
    return [
        command(MKFILE, (PATH, path)),
        command(MKDIR, (PATH, path)),
        command(MKFIFO, (PATH, path)),
        command(MKSOCK, (PATH, path)),
        command(MKNOD, (PATH, path), (MODE, number(0o20600)), (RDEV, number(0x103))),
        command(SYMLINK, (PATH, path), (PATH_LINK, b"x")),
        command(RENAME, (PATH, path), (PATH_TO, b"to")),
        command(RENAME, (PATH, b"f"), (PATH_TO, path)),
        command(LINK, (PATH, path), (PATH_LINK, b"f")),
        command(LINK, (PATH, b"l"), (PATH_LINK, path)),
        command(UNLINK, (PATH, path)),
        command(RMDIR, (PATH, path)),
        command(SET_XATTR, (PATH, path), xattr, (XATTR_DATA, b"")),
        command(REMOVE_XATTR, (PATH, path), xattr),
        write(path, b"x"),
        clone(path, OWN_UUID, b"f"),
        clone(b"f", OWN_UUID, path),
        command(TRUNCATE, (PATH, path), (SIZE, number(0))),
        command(CHMOD, (PATH, path), (MODE, number(0o777))),
        command(CHOWN, (PATH, path), (UID, number(5)), (GID, number(5))),
        command(UTIMES, (PATH, path), *_TIMES),
    ]


_OUTSIDE = [
    b"../victim",
    b"../../victim",
    b"/etc/passwd",
    b"a/../../x",
    b"a//b",
    b"a/",
    b".",
    b"./a",
    b"a\0b",
    b"n" * 256,
    b"d/" * 2047 + b"dd",
]


@pytest.mark.parametrize("path", _OUTSIDE, ids=range(len(_OUTSIDE)))
def test_a_path_that_leaves_the_volume_is_refused_in_every_command(
    target: Target, path: bytes
) -> None:
    for one in _every_command(path):
        status, why = target.receive(stream(_FILE, one))
        assert status == 1 and why.startswith("damaged\t") and "path" in why
        target.remove_staged()


def test_a_path_over_a_symbolic_link_is_refused_in_every_command(target: Target) -> None:
    """A link that an earlier command made, in the middle of the path and at its end."""
    outside = os.fsencode(target.into.parent.parent)
    link = command(SYMLINK, (PATH, b"link"), (PATH_LINK, outside))
    file = command(SYMLINK, (PATH, b"victim"), (PATH_LINK, outside + b"/victim"))
    for one in _every_command(b"link/victim"):
        status, why = target.receive(stream(_FILE, link, one))
        assert status == 1 and why.startswith("failed\t"), why
        target.remove_staged()
    for one in _every_command(b"victim"):
        target.receive(stream(_FILE, file, one))  # some of them are about the link itself
        target.remove_staged()


def test_a_folder_that_becomes_a_link_is_not_entered_any_more(target: Target) -> None:
    """Its handle was open."""
    outside = os.fsencode(target.into.parent.parent)
    commands = [
        command(MKDIR, (PATH, b"d")),
        command(MKFILE, (PATH, b"d/a")),
        write(b"d/a", b"x"),
        command(RENAME, (PATH, b"d"), (PATH_TO, b"e")),
        command(SYMLINK, (PATH, b"d"), (PATH_LINK, outside)),
        write(b"d/victim", b"changed"),
    ]
    status, why = target.receive(stream(*commands))
    assert status == 1 and why.startswith("failed\t") and "'d'" in why
    assert (target.subvolume / "e" / "a").read_bytes() == b"x"


def test_data_is_written_to_files_only(target: Target) -> None:
    """Not to a FIFO, which would wait, nor to a device, nor through a link."""
    made = [
        command(MKFIFO, (PATH, b"p")),
        command(MKNOD, (PATH, b"p"), (MODE, number(0o20600)), (RDEV, number(0x103))),
        command(MKSOCK, (PATH, b"p")),
        command(MKDIR, (PATH, b"p")),
        command(SYMLINK, (PATH, b"p"), (PATH_LINK, b"f")),
    ]
    for one in made:
        status, why = target.receive(stream(_FILE, one, write(b"p", b"x")))
        assert status == 1 and why.split("\t")[0] in ("failed", "permission"), why
        target.remove_staged()


_ENCODED = [(PATH, b"f"), (OFFSET, number(0))]
_BAD = {
    "wrong checksum": (command(MKDIR, (PATH, b"d"), damaged=True), 1, "checksum"),
    "unknown command": (command(99), 1, "unknown type 99"),
    "command zero": (command(0), 1, "unknown type 0"),
    "command of version 2": (command(FALLOCATE), 1, "unknown type 23"),
    "command of version 3": (command(ENABLE_VERITY), 2, "unknown type 26"),
    "long in version 1": (struct.pack("<IHI", 1 << 16, WRITE, 0), 1, "claims"),
    "endless": (struct.pack("<IHI", 0xFFFFFFFF, WRITE, 0), 2, "claims"),
    "second beginning": (begin()[17:], 1, "not at its place"),
    "whole stream again": (begin(), 1, "begins again"),
    "no data": (command(UPDATE_EXTENT, (PATH, b"f")), 1, "without the data"),
    "missing attribute": (command(CHMOD, (PATH, b"f")), 1, "attribute 5 is missing"),
    "attribute twice": (command(UNLINK, (PATH, b"f"), (PATH, b"g")), 1, "twice"),
    "unknown attribute": (command(UNLINK, (PATH, b"f"), (77, b"")), 1, "unknown attribute"),
    "short number": (command(TRUNCATE, (PATH, b"f"), (SIZE, b"\1")), 1, "not a number"),
    "write at 2^63": (write(b"f", b"x", 1 << 63), 1, "largest file"),
    "write up to 2^63": (write(b"f", b"xx", _MAX - 1), 1, "largest file"),
    "write at 2^64": (write(b"f", b"xx", (1 << 64) - 1), 1, "largest file"),
    "size of 2^63": (command(TRUNCATE, (PATH, b"f"), (SIZE, number(1 << 63))), 1, "largest file"),
    "clone of 2^63": (clone(b"f", OWN_UUID, b"f", 1 << 63), 1, "largest file"),
    "clone from elsewhere": (clone(b"f", b"\x55" * 16, b"f"), 1, "neither"),
    "clone from no base": (clone(b"f", BASE_UUID, b"f"), 1, "neither"),
    "no owner": (
        command(CHOWN, (PATH, b"f"), (UID, number((1 << 32) - 1)), (GID, number(0))),
        1,
        "not an owner",
    ),
    "large owner": (
        command(CHOWN, (PATH, b"f"), (UID, number(1 << 32)), (GID, number(0))),
        1,
        "too large",
    ),
    "billion nanoseconds": (
        command(UTIMES, (PATH, b"f"), (ATIME, struct.pack("<QI", 0, 10**9)), (MTIME, bytes(12))),
        1,
        "not a time",
    ),
    "xattr without a name": (
        command(SET_XATTR, (PATH, b"f"), (XATTR_NAME, b""), (XATTR_DATA, b"")),
        1,
        "name of an extended attribute",
    ),
    "xattr with a long name": (
        command(SET_XATTR, (PATH, b"f"), (XATTR_NAME, b"user." + b"x" * 256), (XATTR_DATA, b"")),
        1,
        "name of an extended attribute",
    ),
    "link to nothing": (command(SYMLINK, (PATH, b"l"), (PATH_LINK, b"")), 1, "target"),
    "a file as a device": (
        command(MKNOD, (PATH, b"n"), (MODE, number(0o100600)), (RDEV, number(0))),
        1,
        "device",
    ),
    "encoded in nothing known": (
        command(
            ENCODED_WRITE,
            *_ENCODED,
            (27, number(1)),
            (28, number(1)),
            (29, number(0)),
            (30, struct.pack("<I", 9)),
        ),
        2,
        "unknown compression",
    ),
    "encoded in too much": (
        command(
            ENCODED_WRITE, *_ENCODED, (27, number(1 << 40)), (28, number(1 << 40)), (29, number(0))
        ),
        2,
        "not possible",
    ),
    "something after the end": (command(END) + b"x", 1, "follows its end"),
    "another end": (command(END), 1, "follows its end"),
}


@pytest.mark.parametrize("case", _BAD)
def test_what_is_not_valid_is_named(target: Target, case: str) -> None:
    bad, version, wanted = _BAD[case]
    status, why = target.receive(stream(_FILE, bad, version=version))
    assert status == 1 and why.split("\t")[0] in ("damaged", "failed") and wanted in why, why
    assert "\n" not in why.strip()
    info = subprocess.run(
        ["btrfs", "subvolume", "show", target.subvolume], capture_output=True, text=True, check=True
    ).stdout
    assert "readonly" not in info


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 100,
        MAGIC + struct.pack("<I", 0),
        MAGIC + struct.pack("<I", 4),
        MAGIC[:5],
        MAGIC + struct.pack("<I", 1) + command(MKDIR, (PATH, b"d")),
        MAGIC + struct.pack("<I", 1) + command(END),
        MAGIC
        + struct.pack("<I", 1)
        + command(SUBVOL, (PATH, b"s"), (UUID, b"short"), (CTRANSID, number(1))),
        MAGIC
        + struct.pack("<I", 1)
        + command(
            SNAPSHOT, (PATH, b"s"), (UUID, OWN_UUID), (CTRANSID, number(1)), (CLONE_UUID, b"")
        ),
        stream(base=BASE_UUID),
    ],
)
def test_a_beginning_that_is_none_creates_nothing(target: Target, data: bytes) -> None:
    status, why = target.receive(data)
    assert status == (1 if why else INTERRUPTED)
    assert os.listdir(target.into) == []


def test_a_stream_may_end_anywhere(target: Target) -> None:
    """Cut at every command and in the middle of each: it is never complete."""
    whole = stream(
        _FILE,
        write(b"f", b"data"),
        command(MKDIR, (PATH, b"d")),
        command(RENAME, (PATH, b"f"), (PATH_TO, b"d/g")),
    )
    for end in boundaries(whole)[:-1]:
        for cut in (end, end + 5):
            assert target.receive(whole[:cut]) == (INTERRUPTED, ""), cut
            target.remove_staged()
    assert target.receive(whole) == (0, "")


def test_many_small_commands_are_applied_as_well(target: Target) -> None:
    """The C library shrinks its heaps then, and looks at settings of the kernel for that."""
    times = command(UTIMES, (PATH, b"f"), *_TIMES)
    file = target.into.parent / "stream"
    body = (times * 20_000 + write(b"f", bytes(30_000)) * 40) * 6
    file.write_bytes(stream(_FILE, body, times))
    with file.open("rb") as source:  # in large pieces
        child = target.start(source)
        assert child.communicate()[1] == b"" and child.returncode == 0
    assert os.stat(target.subvolume / "f").st_mtime_ns == 7_000_000_008


def test_streams_in_another_order_or_with_repetitions_never_harm(target: Target) -> None:
    chance = random.Random(4)
    commands = [one for path in (b"a", b"b", b"a/c") for one in _every_command(path)]
    for _ in range(60):
        chosen = [chance.choice(commands) for _ in range(chance.randrange(1, 25))]
        status, why = target.receive(stream(_FILE, *chosen))
        assert status == 0 or why.count("\t") == 1, why
        target.remove_staged()


def test_flipped_bits_are_found_or_change_nothing(target: Target) -> None:
    whole = stream(_FILE, write(b"f", b"data"))
    chance = random.Random(5)
    for _ in range(60):
        bad = bytearray(whole)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        status, why = target.receive(bytes(bad))
        # (Another version of the same commands is no damage.)
        assert status in (1, INTERRUPTED) or bad[13] != whole[13], why
        target.remove_staged()


def test_a_full_file_system_is_named_as_such(target: Target) -> None:
    with btrfs.filesystem(size_mib=128) as small:
        full = Target(small / "t")
        # (The stream is made by a slow checksum: most of the space is taken without one.)
        with (small / "filler").open("wb") as filler:
            free = shutil.disk_usage(small).free
            os.posix_fallocate(filler.fileno(), 0, max(1, free - (16 << 20)))
        pieces = (write(b"f", os.urandom(48_000), at * 48_000) for at in range(700))
        first = command(MKFILE, (PATH, b"f"))
        status, why = full.receive(begin() + first + b"".join(pieces))
        assert status == 1 and why.startswith("no-space\t"), why


def test_a_base_that_was_made_writable_is_refused(target: Target) -> None:
    base = btrfs.make_subvolume(target.into.parent / "base")
    changed = Target(target.into.parent / "u", base)
    status, why = changed.receive(stream(base=BASE_UUID))
    assert status == 1 and why.startswith("base\t") and "writable" in why
    assert os.listdir(changed.into) == []


def test_the_base_cannot_be_changed(target: Target) -> None:
    """Nor anything else: '..' does not lead out of the mounts that it has."""
    first = Target(target.into.parent / "base")
    assert first.receive(stream(_FILE, write(b"f", bytes(8192)))) == (0, "")
    before = state(first.subvolume)
    second = Target(target.into.parent / "u", first.subvolume)
    commands = [
        command(MKFILE, (PATH, b"g")),
        clone(b"g", BASE_UUID, b"f", 8192),
        write(b"f", b"y" * 5000),
    ]
    assert second.receive(stream(*commands, base=BASE_UUID)) == (0, "")
    assert (second.subvolume / "g").read_bytes() == bytes(8192)
    assert state(first.subvolume) == before


def test_the_top_folder_keeps_its_times_unless_they_are_sent(target: Target) -> None:
    """Objects are in it under temporary names, of which the kernel tells nothing else."""
    first = Target(target.into.parent / "base")
    times = command(UTIMES, (PATH, b""), *_TIMES)
    assert first.receive(stream(command(MKDIR, (PATH, b"d")), times)) == (0, "")
    second = Target(target.into.parent / "u", first.subvolume)
    temporary = command(MKFILE, (PATH, b"o300-9-0")), write(b"o300-9-0", b"x")
    moved = command(RENAME, (PATH, b"o300-9-0"), (PATH_TO, b"d/f"))
    assert second.receive(stream(*temporary, moved, base=BASE_UUID)) == (0, "")
    facts = os.stat(second.subvolume)
    assert (facts.st_atime_ns, facts.st_mtime_ns) == (5_000_000_006, 7_000_000_008)


def test_a_file_whose_mode_is_not_sent_is_private(target: Target) -> None:
    """Although the one before it was not."""
    commands = [
        _FILE,
        command(CHMOD, (PATH, b"f"), (MODE, number(0o644))),
        command(MKFILE, (PATH, b"g")),
        write(b"g", b"x"),
    ]
    assert target.receive(stream(*commands)) == (0, "")
    modes = [os.stat(target.subvolume / name).st_mode & 0o777 for name in ("f", "g")]
    assert modes == [0o644, 0o600]


def test_a_special_file_gets_its_attributes_and_is_not_opened(target: Target) -> None:
    made = [command(MKNOD, (PATH, b"n"), (MODE, number(0o60600)), (RDEV, number(0x1FFF03)))]
    made += [command(CHMOD, (PATH, b"n"), (MODE, number(0o640)))]
    made += [command(CHOWN, (PATH, b"n"), (UID, number(7)), (GID, number(8)))]
    made += [command(UTIMES, (PATH, b"n"), *_TIMES)]
    assert target.receive(stream(*made)) == (0, "")
    facts = os.lstat(target.subvolume / "n")
    assert (facts.st_mode, facts.st_uid, facts.st_gid) == (0o60640, 7, 8)
    assert (os.major(facts.st_rdev), os.minor(facts.st_rdev)) == (0xFFF, 0x103)
    assert (facts.st_atime_ns, facts.st_mtime_ns) == (5_000_000_006, 7_000_000_008)


def test_data_follows_its_length_field_in_version_1_only(target: Target) -> None:
    """From version 2 on data is the last attribute, without a length."""
    payload = struct.pack("<HH", PATH, 1) + b"f" + struct.pack("<HH", OFFSET, 8) + number(0)
    payload += struct.pack("<H", DATA) + b"z" * 100_000
    from tests.btrfs.streams import crc32c

    header = struct.pack("<IH", len(payload), WRITE)
    unit = header + struct.pack("<I", crc32c(header + bytes(4) + payload)) + payload
    assert target.receive(stream(_FILE, unit, version=2)) == (0, "")
    assert (target.subvolume / "f").read_bytes() == b"z" * 100_000
