"""Import and export of block volumes: raw images, and tar streams of folders."""

from __future__ import annotations

import contextlib
import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mirrord.core.errors import Damaged, IoFailed, UsageError
from mirrord.drivers.block import images
from mirrord.drivers.block.format import BLOCK_BYTES, ZERO_BLOCK
from mirrord.drivers.block.store import data_extents
from mirrord.drivers.block.volume import Volume
from mirrord.system import command, files

_PIECE = 4 << 20
#: Before a tar stream: magic, then its length in bytes.
_TAR_HEADER = struct.Struct("<16sQ")
_TAR_MAGIC = b"mirrord tar\0\0\0\0\0"


def import_stream(volume: Volume, stream: BinaryIO, offset: int = 0) -> int:
    """Write a stream from `offset` on; returns its length in bytes. Zero blocks become holes.

    `UsageError` when it is longer than the volume; the caller then discards unflushed writes.
    """
    at = offset
    while piece := _read_full(stream, _PIECE):
        if at + len(piece) > volume.size_bytes:
            raise UsageError(
                f"the content is larger than the volume of {volume.size_bytes} bytes",
                hint="Create a larger volume with 'mirrord volume create'.",
            )
        volume.write(at, piece)
        at += len(piece)
    return at - offset


def import_image(volume: Volume, path: Path) -> int:
    """Make the volume equal to a raw image; holes of a sparse file are kept."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size > volume.size_bytes:
            raise UsageError(
                f"'{path}' has {size} bytes, the volume only {volume.size_bytes}",
                hint="Create a larger volume with 'mirrord volume create'.",
            )
        end = 0
        for begin, stop in data_extents(file.fileno(), size):
            volume.trim(end, begin - end)
            file.seek(begin)
            at = begin
            while at < stop:
                piece = file.read(min(_PIECE, stop - at))
                volume.write(at, piece)
                at += len(piece)
            end = stop
        volume.trim(end, volume.size_bytes - end)
    return size


def export_image(volume: Volume, guid: str | None, path: Path) -> int:
    """Write an image (the live one, or a snapshot's) as a sparse raw file; returns its size.

    The file is written under a temporary name and renamed when complete.
    """
    root = images.root_of(volume, guid)
    with _atomic_file(path) as file:
        file.truncate(root.size_bytes)
        for offset, piece in images.pieces(volume, root):
            file.seek(offset)
            file.write(piece)
    return root.size_bytes


@contextlib.contextmanager
def _atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A temporary file next to `path`, which replaces it on success. `UsageError` when that is a
    device or a pipe: it is not to be replaced by a file.
    """
    files.check_target(path, "Export to a file, and copy that.")
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def import_tar(volume: Volume, stream: BinaryIO) -> int:
    """Store a tar stream at offset 0, after a header block with its length."""
    volume.trim(0, volume.size_bytes)
    length = import_stream(volume, stream, BLOCK_BYTES)
    header = _TAR_HEADER.pack(_TAR_MAGIC, length)
    volume.write(0, header + ZERO_BLOCK[len(header) :])
    return length


def import_folder(volume: Volume, folder: Path) -> int:
    """Store a folder as a tar stream; returns the stream's length in bytes."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import and rarely needed

    reading, writing = os.pipe()
    with (
        ThreadPoolExecutor(1) as pool,
        open(reading, "rb") as stream,  # noqa: PTH123 - a descriptor, not a path
    ):
        packed = pool.submit(_pack, folder, writing)
        length = import_tar(volume, stream)
    packed.result()
    return length


def _pack(folder: Path, descriptor: int) -> None:
    """Pack a folder into a pipe."""
    with (
        open(descriptor, "wb") as pipe,
        tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.add(folder, arcname=".")


def export_tar(volume: Volume, guid: str | None, target: Path) -> int:
    """The stored tar stream: unpacked into `target` when that is a folder, else as a file."""
    root = images.root_of(volume, guid)
    magic, length = _TAR_HEADER.unpack(images.read_image(volume, root, 0, _TAR_HEADER.size))
    if magic != _TAR_MAGIC or length > root.size_bytes - BLOCK_BYTES:
        raise Damaged(
            "no tar stream is stored in this volume",
            where=str(volume.path),
            hint="'mirrord volume import VOLUME FOLDER' stores one; without --tar the raw "
            "content is exported.",
        )
    stream = (
        images.read_image(volume, root, BLOCK_BYTES + at, min(_PIECE, length - at))
        for at in range(0, length, _PIECE)
    )
    if target.is_dir():
        _unpack(stream, target)
    else:
        with _atomic_file(target) as file:
            file.writelines(stream)
    return int(length)


def _unpack(stream: Iterator[bytes], target: Path) -> None:
    """Unpack with GNU tar, which lets no member escape from the folder, not even by a link.

    (Python's tarfile can refuse such members only since 3.11.4.)
    """
    tar = command.find("tar", hint="Install the package tar.")
    reading, writing = os.pipe()
    with os.fdopen(os.memfd_create("errors", os.MFD_CLOEXEC), "w+b") as errors:
        try:
            child = command.start(
                [tar, "--extract", "--file", "-", "--directory", str(target)],
                stdin=reading, stderr=errors.fileno(),
            )  # fmt: skip
        finally:
            os.close(reading)
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
            pipe.writelines(stream)
        if child.wait() != 0:
            errors.seek(0)
            messages = errors.read().decode(errors="replace").strip().splitlines()
            raise IoFailed(
                "the tar stream could not be unpacked",
                where=str(target),
                why=messages[0] if messages else f"tar exited with status {child.returncode}",
            )


def _read_full(stream: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes, fewer only at the end, so that blocks are complete."""
    parts, left = [], size
    while left and (piece := stream.read(left)):
        parts.append(piece)
        left -= len(piece)
    return b"".join(parts)
