"""What a recording must not leave behind: written down before it is made.

A recording that ends in order takes away all that it made. One that was killed leaves a journal,
and the next recording on this host takes away what that one says: by the names that were given out
for snapshots, as recovery does for mirrors, and by paths.
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
from mirrord.system import clock, files, locks

FOLDER = "recordings"
_LOCK_WAIT_S = 20.0
_POLL_S = 0.05


@dataclass(slots=True)
class Leavings:
    """volume: the endpoint of which snapshots are taken, or "". names: snapshots that may be
    there. files, folders: to be removed (of folders, only empty ones and those of tracefs).
    """

    volume: str = ""
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


class Journal:
    """The journal of one recording that runs. folder: where all journals of this host are."""

    def __init__(self, folder: Path, number: str) -> None:
        self.number = number
        self._path = folder / f"{number}.json"
        self._left = Leavings()

    @property
    def left(self) -> Leavings:
        """What may be there; call `save` after a change, and make it only then."""
        return self._left

    def save(self) -> None:
        """Durable on return."""
        text = json.dumps(asdict(self._left), sort_keys=True)
        files.write_atomic("RECORD:JOURNAL", self._path, text.encode(), mode=0o600)


@contextmanager
def journal(state: Path) -> Iterator[Journal]:
    """A journal for a new recording; it goes when the recording ends in order. state: the folder
    of this host's state, which is made if need be.
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
            if not made.left.names:  # what could not be taken away is for the next recording
                files.remove_file("RECORD:JOURNAL:REMOVE", folder / f"{number}.json")


@contextmanager
def _others_waiting(state: Path) -> Iterator[None]:
    """Nobody else begins a recording or cleans up meanwhile: a lock that is made must be held
    before anybody can take it for one that was left.
    """
    with waited_for(
        lambda: locks.exclusive(
            state / f"{FOLDER}.lock", "beginning a recording", what="the list of recordings"
        )
    ):
        yield


def clean_up(state: Path, opener: Callable[[str], Driver], tell: Callable[[str], None]) -> None:
    """Take away what recordings left that were killed. opener: gives the driver of an endpoint.
    What cannot be taken away now is told, and stays for the next time.
    """
    folder = state / FOLDER
    if not folder.is_dir():
        return
    with _others_waiting(state):
        for lock in sorted(folder.glob("*.lock")):
            with contextlib.suppress(Busy), ExitStack() as stack:  # busy: it runs
                what = f"recording {lock.stem}"
                stack.enter_context(locks.exclusive(lock, "cleaning up", what=what))
                _clean_up_one(lock, opener, tell)


def _clean_up_one(lock: Path, opener: Callable[[str], Driver], tell: Callable[[str], None]) -> None:
    path = lock.with_suffix(".json")
    try:
        if path.exists():
            _take_away(Leavings(**json.loads(path.read_bytes())), opener)
    except (MirrordError, OSError, ValueError, TypeError) as error:
        tell(f"What an earlier recording left cannot be taken away yet: {error}")
        return
    files.remove_file("RECORD:JOURNAL:REMOVE", path)
    files.remove_file("RECORD:JOURNAL:REMOVE", path.with_name(f".{path.name}.new"))
    files.remove_file("RECORD:JOURNAL:LOCK", lock)


def _take_away(left: Leavings, opener: Callable[[str], Driver]) -> None:
    if left.names:
        delete_named(opener(left.volume), left.names)
    for name in left.files:
        files.remove_file("RECORD:CLEAN:FILE", name)
    for name in left.folders:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name)


def delete_named(volume: Driver, names: list[str]) -> None:
    """Delete the reference snapshots of these names, which were given out to a recording."""
    with volume_locked(volume):
        for one in volume.snapshots():
            if one.kind is SnapshotKind.REFERENCE and one.name in names:
                volume.delete_snapshot(one.guid)


@contextmanager
def volume_locked(volume: Driver) -> Iterator[None]:
    """Hold the volume for a moment; waits up to 20 s for a mirror that has it. `Busy`."""
    with waited_for(lambda: volume.lock("mirrord trace record")):
        yield


@contextmanager
def waited_for(lock: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Hold a lock; waits up to 20 s for who has it. `Busy`."""
    deadline_s = clock.monotonic_s() + _LOCK_WAIT_S
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(lock())
            except Busy:
                if clock.monotonic_s() > deadline_s:
                    raise
                clock.sleep_s(_POLL_S)
                continue
            yield
            return
