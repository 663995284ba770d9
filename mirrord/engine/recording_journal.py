"""The journal of what a recording must not leave behind, written before that is created.

A recording that ends normally removes everything that it created. One that was killed leaves its
journal, and the next recording on this host removes what that lists: by the names that were
reserved for snapshots, as recovery does for mirrors, and by paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mirrord.core.errors import Busy, MirrordError
from mirrord.core.model import SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.system import files, locks

FOLDER = "recordings"
_LOCK_WAIT_S = 20.0


@dataclass(slots=True)
class Leavings:
    """volume: the endpoint of which snapshots are taken, or "". names: snapshots that may exist.
    files, folders: to be removed (of folders, only empty ones and those of tracefs).
    """

    volume: str = ""
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


class Journal:
    """The journal of one running recording. folder: where all journals of this host are."""

    def __init__(self, folder: Path, number: str) -> None:
        self.number = number
        self._path = folder / f"{number}.json"
        #: What may exist; call `save` after a change, before creating anything that it lists.
        self.left = Leavings()

    def save(self) -> None:
        """Durable on return."""
        text = json.dumps(asdict(self.left), sort_keys=True)
        files.write_atomic("RECORD:JOURNAL", self._path, text.encode(), mode=0o600)


@contextmanager
def journal(state: Path) -> Iterator[Journal]:
    """A journal for a new recording; it is removed when the recording ends normally. state: the
    folder of this host's state, which is created if necessary.
    """
    folder = state / FOLDER
    files.make_directory("RECORD:FOLDER", folder, mode=0o700)
    number = secrets.token_hex(4)
    lock = folder / f"{number}.lock"
    with ExitStack() as stack:
        stack.callback(files.remove_file, "RECORD:JOURNAL:LOCK", lock)
        with _others_waiting(state):
            stack.enter_context(locks.exclusive(lock, "recording", what=f"recording {number}"))
        made = Journal(folder, number)
        made.save()
        try:
            yield made
        finally:
            if not made.left.names:  # what could not be removed is left to the next recording
                files.remove_file("RECORD:JOURNAL:REMOVE", folder / f"{number}.json")


def _others_waiting(state: Path) -> AbstractContextManager[object]:
    """No other process begins a recording or cleans up meanwhile: a new lock must be held before it
    can be mistaken for one that was left behind.
    """
    path, what = state / f"{FOLDER}.lock", "the list of recordings"
    return locks.waited_for(
        lambda: locks.exclusive(path, "beginning a recording", what=what), _LOCK_WAIT_S
    )


def clean_up(state: Path, opener: Callable[[str], Driver], tell: Callable[[str], None]) -> None:
    """Remove what killed recordings left behind. opener: gives the driver of an endpoint. What
    cannot be removed now is reported, and left for the next time.
    """
    folder = state / FOLDER
    if not folder.is_dir():
        return
    with _others_waiting(state):
        for lock in sorted(folder.glob("*.lock")):
            with contextlib.suppress(Busy), ExitStack() as stack:  # busy: it is running
                what = f"recording {lock.stem}"
                stack.enter_context(locks.exclusive(lock, "cleaning up", what=what))
                _clean_up_one(lock, opener, tell)


def _clean_up_one(lock: Path, opener: Callable[[str], Driver], tell: Callable[[str], None]) -> None:
    path = lock.with_suffix(".json")
    try:
        if path.exists():
            _remove(Leavings(**json.loads(path.read_bytes())), opener)
    except (MirrordError, OSError, ValueError, TypeError) as error:
        tell(f"What an earlier recording left behind cannot be removed yet: {error}")
        return
    files.remove_file("RECORD:JOURNAL:REMOVE", path)
    files.remove_file("RECORD:JOURNAL:REMOVE", path.with_name(f".{path.name}.new"))
    files.remove_file("RECORD:JOURNAL:LOCK", lock)


def _remove(left: Leavings, opener: Callable[[str], Driver]) -> None:
    if left.names:
        delete_named(opener(left.volume), left.names)
    for name in left.files:
        files.remove_file("RECORD:CLEAN:FILE", name)
    for name in left.folders:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name)


def delete_named(volume: Driver, names: list[str]) -> None:
    """Delete the reference snapshots of these names, which were reserved for a recording."""
    with volume_locked(volume):
        for one in volume.snapshots():
            if one.kind is SnapshotKind.REFERENCE and one.name in names:
                volume.delete_snapshot(one.guid)


def volume_locked(volume: Driver) -> AbstractContextManager[None]:
    """Hold the volume for a moment; waits up to 20 s for a mirror that holds it. `Busy`."""
    return locks.waited_for(lambda: volume.lock("mirrord trace record"), _LOCK_WAIT_S)
