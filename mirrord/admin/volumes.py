"""What can be asked of a block volume by its owner: `mirrord volume …`.

Paths and sizes come in as values; results are plain values. Raises `MirrordError` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from mirrord.core.errors import UsageError
from mirrord.core.text import can_name, escaped
from mirrord.drivers.registry import block_volumes
from mirrord.system.explain import explained

_PIECE = 4 << 20


def create(path: Path, size_bytes: int) -> dict[str, Any]:
    """An empty volume in a directory that is absent or empty."""
    with explained(), block_volumes().Volume.create(path, size_bytes) as volume:
        return dict(volume.info())


def info(path: Path) -> dict[str, Any]:
    """Facts of a volume; `content` changes when, and only when, its content was rewritten."""
    with _opened(path) as volume:
        return {**volume.info(), "content": f"{volume.record.live.data.checksum:016x}"}


def read(path: Path, offset: int, length: int | None, snapshot: str | None) -> Iterator[bytes]:
    """Content, piece by piece; length None: to the end."""
    with _opened(path) as volume:
        block = block_volumes()
        root = block.root_of(volume, _guid(volume, snapshot))
        end = root.size_bytes if length is None else offset + length
        _check_range(offset, end, root.size_bytes)
        while offset < end:
            piece = min(_PIECE, end - offset)
            yield block.read_image(volume, root, offset, piece)
            offset += piece


def write(path: Path, offset: int, stream: BinaryIO) -> int:
    """Write a stream from `offset` on, durably; returns its length in bytes."""
    with _opened(path, writable=True) as volume:
        _check_range(offset, offset, volume.size_bytes)
        length = int(block_volumes().import_stream(volume, stream, offset))
        volume.flush()
        return length


def trim(path: Path, offset: int, length: int) -> None:
    """Discard a range: it reads as zeroes and its space is freed."""
    with _opened(path, writable=True) as volume:
        _check_range(offset, offset + length, volume.size_bytes)
        volume.trim(offset, length)
        volume.flush()


def take_snapshot(path: Path, name: str) -> dict[str, Any]:
    """A snapshot of the owner's own."""
    if not can_name(name):
        raise UsageError(f"'{escaped(name)}' is not a valid name for a snapshot")
    with _opened(path, writable=True) as volume:
        return _snapshot_dict(volume.snapshot(name))


def snapshots(path: Path) -> list[dict[str, Any]]:
    """All snapshots, oldest first."""
    with _opened(path) as volume:
        return [_snapshot_dict(snapshot) for snapshot in volume.snapshots()]


def delete_snapshot(path: Path, name: str) -> None:
    """Delete a snapshot of the owner's own, also from a destination."""
    with explained():
        block_volumes().delete_snapshot(path, name)


def import_(path: Path, what: Path | BinaryIO, *, tar: bool) -> int:
    """A raw image or, with `tar` or from a folder, a tar stream; returns bytes."""
    block = block_volumes()
    with _opened(path, writable=True) as volume:
        if not isinstance(what, Path):
            work = block.import_tar if tar else block.import_stream
            length = work(volume, what)
        elif what.is_dir():
            length = block.import_folder(volume, what)
        elif tar:
            with what.open("rb") as stream:
                length = block.import_tar(volume, stream)
        else:
            length = block.import_image(volume, what)
        volume.flush()
        return int(length)


def export(path: Path, target: Path, *, snapshot: str | None, tar: bool) -> int:
    """A sparse raw image or, with `tar`, the stored tar stream; returns bytes."""
    block = block_volumes()
    with _opened(path) as volume:
        work = block.export_tar if tar else block.export_image
        return int(work(volume, _guid(volume, snapshot), target))


def promote(path: Path) -> None:
    """Make what a deleted mirror left a live volume."""
    with explained():
        block_volumes().promote(path)


def check(path: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """An fsck that changes nothing: images and blocks looked at, findings one line each."""
    with explained():
        found = block_volumes().check_volume(path, progress=progress)
        return {"images": found.images, "blocks": found.blocks, "findings": found.findings}


@contextmanager
def _opened(path: Path, *, writable: bool = False) -> Iterator[Any]:
    with explained(), block_volumes().Volume.open(path, writable) as volume:
        yield volume


def _guid(volume: Any, snapshot: str | None) -> str | None:
    return None if snapshot is None else str(block_volumes().find_snapshot(volume, snapshot).guid)


def _check_range(offset: int, end: int, size_bytes: int) -> None:
    if offset < 0 or end < offset or end > size_bytes:
        raise UsageError(
            f"bytes {offset} to {max(offset, end)} are not all within the volume",
            why=f"it has {size_bytes} bytes",
        )


def _snapshot_dict(snapshot: Any) -> dict[str, Any]:
    return {
        "name": snapshot.name,
        "guid": snapshot.guid,
        "kind": snapshot.kind.value,
        "taken_ns": snapshot.taken_at_ns,
        "intact": snapshot.intact,
    }
