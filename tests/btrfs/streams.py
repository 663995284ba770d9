"""Streams made by hand, command by command, and `mirrord-receive` without a driver around it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import IO, Any

from mirrord.system.native import receive_program

MAGIC = b"btrfs-stream\0"
SUBVOL, SNAPSHOT, MKFILE, MKDIR, MKNOD, MKFIFO, MKSOCK, SYMLINK, RENAME, LINK = range(1, 11)
UNLINK, RMDIR, SET_XATTR, REMOVE_XATTR, WRITE, CLONE, TRUNCATE, CHMOD, CHOWN = range(11, 20)
UTIMES, END, UPDATE_EXTENT, FALLOCATE, FILEATTR, ENCODED_WRITE, ENABLE_VERITY = range(20, 27)
UUID, CTRANSID, SIZE, MODE, UID, GID, RDEV, MTIME, ATIME = 1, 2, 4, 5, 6, 7, 8, 10, 11
XATTR_NAME, XATTR_DATA, PATH, PATH_TO, PATH_LINK, OFFSET, DATA = 13, 14, 15, 16, 17, 18, 19
CLONE_UUID, CLONE_CTRANSID, CLONE_PATH, CLONE_OFFSET, CLONE_LEN = range(20, 25)
OWN_UUID, BASE_UUID = b"\x07" * 16, b"\x08" * 16
INTERRUPTED = 3
HEADER_BYTES, COMMAND_BYTES = 17, 10


def _entry(value: int) -> int:
    for _bit in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(value) for value in range(256)]


def crc32c(data: bytes) -> int:
    """As btrfs uses it: seed 0, no inversions."""
    value = 0
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def command(kind: int, *attributes: tuple[int, bytes], damaged: bool = False) -> bytes:
    payload = b"".join(struct.pack("<HH", key, len(value)) + value for key, value in attributes)
    header = struct.pack("<IH", len(payload), kind)
    checksum = crc32c(header + bytes(4) + payload)
    return header + struct.pack("<I", checksum ^ damaged) + payload


def begin(version: int = 1, base: bytes | None = None) -> bytes:
    identity = (PATH, b"snap"), (UUID, OWN_UUID), (CTRANSID, number(9))
    of_base = ((CLONE_UUID, base), (CLONE_CTRANSID, number(5))) if base else ()
    first = command(SNAPSHOT if base else SUBVOL, *identity, *of_base)
    return MAGIC + struct.pack("<I", version) + first


def stream(
    *commands: bytes, version: int = 1, base: bytes | None = None, end: bool = True
) -> bytes:
    return begin(version, base) + b"".join(commands) + (command(END) if end else b"")


def write(path: bytes, data: bytes, at: int = 0) -> bytes:
    return command(WRITE, (PATH, path), (OFFSET, number(at)), (DATA, data))


def clone(path: bytes, uuid: bytes, source: bytes, length: int = 4096) -> bytes:
    return command(
        CLONE,
        (OFFSET, number(0)),
        (CLONE_LEN, number(length)),
        (PATH, path),
        (CLONE_UUID, uuid),
        (CLONE_CTRANSID, number(9)),
        (CLONE_PATH, source),
        (CLONE_OFFSET, number(0)),
    )


def boundaries(data: bytes) -> list[int]:
    """Where each command of a stream ends; the first: where the first command begins."""
    ends = [HEADER_BYTES]
    while ends[-1] < len(data):
        (length,) = struct.unpack_from("<I", data, ends[-1])
        ends.append(ends[-1] + COMMAND_BYTES + length)
    return ends


class Target:
    """A folder for one staged subvolume, and one for its checkpoints."""

    def __init__(self, folder: Path, base: Path | None = None) -> None:
        self.base = base
        self.into, self.checkpoints = folder / "into", folder / "checkpoints"
        self.record = folder / "record"
        for one in (self.into, self.checkpoints):
            one.mkdir(parents=True, exist_ok=True)
        self.subvolume = self.into / "snap"

    def words(self, *, kept: bool = False, resume: int | None = None) -> list[str]:
        words = [receive_program(), "--into", str(self.into), "--name", "snap"]
        words += ["--base", str(self.base)] if self.base else []
        if kept:
            words += ["--checkpoints", str(self.checkpoints), "--record", str(self.record)]
        return [*words, "--resume", str(resume)] if resume else words

    def start(self, source: IO[bytes] | int, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.words(**how), stdin=source, stderr=subprocess.PIPE)

    def receive(self, data: bytes, **how: Any) -> tuple[int, str]:
        """The exit status, and what it printed."""
        done = subprocess.run(self.words(**how), input=data, capture_output=True, check=False)
        return done.returncode, done.stderr.decode(errors="replace")

    def remove_staged(self) -> None:
        if self.subvolume.exists():
            subprocess.run(["btrfs", "-q", "subvolume", "delete", self.subvolume], check=True)

    def position(self) -> int:
        """Of the newest valid checkpoint; 0: there is none."""
        data = self.record.read_bytes() if self.record.exists() else b""
        found = [0]
        for slot in (data[:32768], data[32768:65536]):
            if slot[:8] == b"mrckpt1\0":
                sequence, position = struct.unpack_from("<Q", slot, 8)[0], slot[24:32]
                snapshot = self.checkpoints / str(sequence % 2)
                if snapshot.exists() and _uuid(snapshot) == slot[64:80]:
                    found.append(int.from_bytes(position, "little"))
        return max(found)


def _uuid(subvolume: Path) -> bytes:
    shown = subprocess.run(
        ["btrfs", "subvolume", "show", subvolume], check=True, capture_output=True, text=True
    ).stdout
    [line] = [line for line in shown.splitlines() if line.strip().startswith("UUID:")]
    return bytes.fromhex(line.split()[1].replace("-", ""))


def send(snapshot: Path, base: Path | None = None, *, version: int = 1) -> bytes:
    """The kernel's stream, by btrfs-progs."""
    words: list[str | Path] = ["btrfs", "send", "-q"]
    words += ["--proto", "2", "--compressed-data"] if version == 2 else []
    words += ["-p", base, "-c", base] if base else []
    return subprocess.run([*words, snapshot], check=True, capture_output=True).stdout


def snapshot(source: Path, target: Path) -> Path:
    words: list[str | Path] = ["btrfs", "-q", "subvolume", "snapshot", "-r", source, target]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return target
