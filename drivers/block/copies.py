"""The writable copy of what a destination shows, for testing: a separate volume.

Its data files share their blocks with the mirror's where the file system can (btrfs, XFS), and are
copied where it cannot. Hard links are not possible, because the mirror continues to write to its
files. The file `copy` in the mirror's folder records the path, and is written first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

from mirrord.core.errors import Refused
from mirrord.core.model import Role
from mirrord.core.sealed import sealed, unsealed
from mirrord.drivers import refusals
from mirrord.drivers.block import rootrecord
from mirrord.drivers.block.place import foreign_content, is_volume
from mirrord.drivers.block.rootrecord import RootRecord
from mirrord.drivers.block.store import data_extents, io_errors
from mirrord.system import files, steps

NAME = "copy"
#: See ioctl_ficlone(2).
_FICLONE = 0x40049409
_PIECE_BYTES = 16 << 20


def begin(path: Path, record: RootRecord, segment: int, wanted: str, where: str) -> Path:
    """See `Driver.begin_test`. record: the mirror's; segment: a new one for the copy to allocate
    in. Returns the copy's folder.
    """
    there = find(path)
    if there is not None and wanted in ("", str(there)):
        return there
    if there is not None:
        raise refusals.other_copy(where, str(there))
    entry = record.entry(record.shown) if record.shown else None
    if entry is None:
        raise refusals.nothing_shown(where)
    copy = Path(wanted) if wanted else path.with_name(f"{path.name}-test")
    if _unfinished(path) == copy:
        _remove(copy)
    found = foreign_content(copy)
    if found is not None:
        raise refusals.not_empty(str(copy), f"it holds {found}")
    identity = uuid.uuid4().hex
    _write(path, copy, identity)
    made = replace(
        record,
        identity=identity,
        role=Role.LIVE,
        live=entry.root,
        segment=segment,
        chunk=0,
        grown=0,
        mirror_id="",
        shown=None,
        origin=entry.guid,
        snapshots=(entry,),
    )
    files.make_directory("BLOCK:COPY:DIRECTORY", copy)
    for data in sorted(path.glob("data*")):
        steps.reached("BLOCK:COPY:DATA")
        with io_errors(where, "copying a data file"):
            _copy(data, copy / data.name, where)
    rootrecord.store("BLOCK:COPY:ROOT", copy, made)
    return copy


def _copy(source: Path, target: Path, where: str) -> None:
    """Share the blocks, or copy the allocated ones; durable."""
    with source.open("rb") as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError:
            size, used = os.fstat(old.fileno()).st_size, os.fstat(old.fileno()).st_blocks * 512
            free = shutil.disk_usage(target.parent).free
            if used > free:
                raise refusals.no_space(
                    where, f"the copy needs {used} bytes, {free} are free"
                ) from None
            _copy_blocks(old.fileno(), new.fileno(), size)
        os.fsync(new.fileno())


def _copy_blocks(old: int, new: int, size: int) -> None:
    os.ftruncate(new, size)
    for start, end in data_extents(old, size):
        while start < end:
            piece = os.pread(old, min(_PIECE_BYTES, end - start), start)
            os.pwrite(new, piece, start)
            start += len(piece)


def end(path: Path) -> bool:
    """See `Driver.end_test`. Called with the copy locked against its users."""
    copy = find(path)
    if copy is not None:
        own = [one.name for one in rootrecord.load(copy).snapshots[1:]]
        if own:
            raise Refused(
                f"the copy has its own snapshot '{own[0]}'",
                where=str(copy),
                hint="Delete the snapshot first, or keep the copy: it is an ordinary volume.",
            )
        _remove(copy)
    if (path / NAME).exists():
        files.remove_file("BLOCK:COPY:FORGET", path / NAME)
    return copy is not None


def _remove(copy: Path) -> None:
    """Remove the copy, the root record last: without it the rest could not be identified."""
    for one in sorted(copy.iterdir(), key=lambda one: one.name == rootrecord.NAME):
        if one.is_dir():
            shutil.rmtree(one)
        else:
            files.remove_file("BLOCK:COPY:REMOVE", one)
    files.remove_directory("BLOCK:COPY:REMOVE", copy)


def find(path: Path) -> Path | None:
    """The path of the copy; None when there is none, or another volume is there now."""
    found = _read(path)
    if found is None or not (found[0] / rootrecord.NAME).is_file() or not is_volume(found[0]):
        return None
    return found[0] if rootrecord.load(found[0]).identity == found[1] else None


def _unfinished(path: Path) -> Path | None:
    """The folder of an unfinished copy, which has no root record yet."""
    found = _read(path)
    if found is None or not found[0].is_dir() or (found[0] / rootrecord.NAME).exists():
        return None
    left = {one.name for one in found[0].iterdir()}
    return (
        found[0] if all(name.startswith(("data", f".{rootrecord.NAME}")) for name in left) else None
    )


def _read(path: Path) -> tuple[Path, str] | None:
    try:
        found = unsealed((path / NAME).read_bytes())
        return Path(found["path"]), str(found["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, copy: Path, identity: str) -> None:
    text = json.dumps(sealed({"path": str(copy), "identity": identity}))
    files.write_atomic("BLOCK:COPY:RECORD", path / NAME, text.encode())
