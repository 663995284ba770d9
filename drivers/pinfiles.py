"""Pins as files: one for each mirror, in a folder of the volume.

A change is one rename that is not synced to disk, as each update makes one at either end. After a
power failure the pins may be those of the previous update, whose snapshots still exist; or a file
is empty, and then nothing is deleted until its mirror has pinned again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from mirrord.core.errors import MIRROR, Damaged
from mirrord.core.sealed import sealed, unsealed
from mirrord.drivers import pins
from mirrord.drivers.pins import Pins
from mirrord.system import files, steps

NAME = "pins"
_SUFFIX = ".json"
_FORMAT = 1


def load(folder: Path, *, without: str = "") -> Pins:
    """All pins of a volume, or those of the other mirrors than `without`. `Damaged`: the pins of a
    mirror cannot be read.
    """
    names = (name for name in _mirrors(folder) if name != without)
    return {name: _read(folder / f"{name}{_SUFFIX}") for name in names}


def legible(folder: Path) -> Pins:
    """The same without the files that cannot be read: for a listing."""
    found = {}
    for name in _mirrors(folder):
        with contextlib.suppress(Damaged):
            found[name] = _read(folder / f"{name}{_SUFFIX}")
    return found


def guids(folder: Path) -> set[str]:
    """All snapshots that are pinned, of the files that can be read."""
    return {guid for pinned in legible(folder).values() for guid in pinned}


def _mirrors(folder: Path) -> list[str]:
    names = files.names_in(folder)
    wanted = (name for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
    return [name.removesuffix(_SUFFIX) for name in wanted]


def pin(folder: Path, op: str, mirror_id: str, guids: Sequence[str], where: str) -> None:
    """See `Volume.pin`."""
    before = legible(folder)
    after = pins.replaced(before, mirror_id, guids, where)
    path = folder / f"{mirror_id}{_SUFFIX}"
    if mirror_id not in after:
        files.beside(path).unlink(missing_ok=True)
        if path.exists():
            steps.reached(f"{op}:REMOVE")
            path.unlink()
    elif after != before:
        files.make_directory(f"{op}:FOLDER", folder, mode=0o700)
        document = sealed({"format": _FORMAT, "guids": list(after[mirror_id])})
        data = json.dumps(document).encode() + b"\n"
        files.write_atomic(op, path, data, mode=0o600, durable=False)


def _read(path: Path) -> tuple[str, ...]:
    try:
        document = unsealed(path.read_bytes())
        guids = document["guids"]
        if document["format"] == _FORMAT and all(isinstance(guid, str) for guid in guids):
            return tuple(guids)
        why = "its format is unknown, or a guid is not text"
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        why = str(error)
    raise Damaged(
        "a record of pinned snapshots is damaged",
        where=str(path),
        why=why,
        hint="The next update of its mirror writes it again. If that mirror no longer exists: "
        f"'mirrord prune {MIRROR} --unpin {path.stem}', with any mirror of this volume.",
    )
