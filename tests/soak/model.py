"""What must hold: every acknowledged line is somewhere, and a mirrored destination shows one
state of its source.
"""

from __future__ import annotations

import enum
import os
import re
import time
from pathlib import Path

from tests.soak.disks import Disk
from tests.soak.history import Violation
from tests.soak.people import PREFIX, Line, People
from tests.support import files

_STORE = ".mirrord"
_TOKEN = re.compile(rb"^(" + PREFIX.encode() + rb"\d+(?:-\d+)+)\.+$", re.MULTILINE)
#: What was moved while it was looked for is found by one of these looks.
_LOOKS = 4
_SHOWN = 12


class Place(enum.Flag):
    """Where a line is found. Staging does not count: it is deleted without a word."""

    NONE = 0
    KEPT = enum.auto()  # in a live volume, one that was set aside, or a diverged snapshot
    REFERENCE = enum.auto()  # in a snapshot that retention deletes one day


class Model:
    """The acknowledged lines of a seed, and the states of its source."""

    def __init__(self, people: People, disks: tuple[Disk, ...]) -> None:
        self._people, self._disks = people, disks
        #: Where each line was at the last look.
        self._last: dict[str, Place] = {}
        #: Lines that were in reference snapshots only, and then pruned with them: by then no owner
        #: had them in a volume, as one that was dropped was equal to that snapshot.
        self.retired: set[str] = set()
        self._digests: dict[str, str] = {}
        self._seen: dict[int, str] = {}

    def check_lines(self) -> int:
        """Each acknowledged line is somewhere; returns how many there are."""
        lines = list(self._people.lines)
        for look in range(_LOOKS):
            found = self.look()
            missing = [
                line for line in lines if line.token not in found and line.token not in self.retired
            ]
            aged = [one for one in missing if self._last.get(one.token) == Place.REFERENCE]
            lost = [one for one in missing if self._last.get(one.token) != Place.REFERENCE]
            if not lost:
                break
            time.sleep(0.5 * (look + 1))
        else:
            raise Violation("LOST", _describe(lost, self._last))
        self.retired.update(one.token for one in aged)
        self._last = found
        return len(lines)

    def look(self, *disks: Disk) -> dict[str, Place]:
        """Where each line is."""
        found: dict[str, Place] = {}
        for disk in disks or self._disks:
            for folder, _folders, names in os.walk(disk.mount):
                mine = [name for name in names if name.startswith(PREFIX)]
                if not mine:
                    continue
                place = _place(Path(folder).relative_to(disk.mount).parts)
                if place is Place.NONE:
                    continue
                for name in mine:
                    for token in _tokens(os.path.join(folder, name)):
                        found[token] = found.get(token, Place.NONE) | place
        return found

    def check_snapshots(self) -> None:
        """A reference snapshot holds one content for ever, and the same at both ends."""
        for disk in self._disks:
            for store in disk.mount.glob(f"**/{_STORE}/*"):
                for path in sorted((store / "snapshots").glob("mirrord.*/mirrord.*")):
                    self._check_snapshot(path)

    def _check_snapshot(self, path: Path) -> None:
        identity = os.statvfs(path).f_fsid
        if self._seen.get(identity) == path.name:
            return
        try:
            digest = files.digest(path)
        except FileNotFoundError:  # deleted meanwhile by a prune of the daemon's
            return
        first = self._digests.setdefault(path.name, digest)
        if digest != first:
            raise Violation("content", f"{path} differs from the first snapshot of that name")
        self._seen[identity] = path.name

    def check_view(self, view: Path) -> None:
        """A mirrored destination shows a state that the source had, as a link to a snapshot."""
        if not view.is_symlink():
            raise Violation("view", f"{view} is not a link to a snapshot, but status says mirrored")
        shown = view.resolve()
        if not shown.is_dir():
            raise Violation("view", f"{view} points to {shown}, which is not there")
        digest = self._digests.get(shown.name)
        if digest is None or files.digest(view) != digest:
            raise Violation("view", f"{view} shows {shown.name}, which is no state of the source")

    def check_leftovers(self, stores: list[Path]) -> None:
        """After a verb that went well in peace, nothing half done lies about."""
        for store in stores:
            for folder in ("staging", "swap"):
                present = os.listdir(store / folder) if (store / folder).is_dir() else []
                # (the next comparison takes the place of one that was interrupted)
                if left := [name for name in present if name != "divergence"]:
                    raise Violation("leftover", f"{store / folder} has {', '.join(sorted(left))}")


def _place(parts: tuple[str, ...]) -> Place:
    if _STORE not in parts:
        return Place.KEPT
    inside = parts[parts.index(_STORE) + 2 :]
    kind = inside[0] if inside else ""
    if kind == "snapshots":
        # (the snapshots of people are theirs; those of mirrord have its name in front)
        return Place.REFERENCE
    return Place.NONE if kind in ("staging", "checkpoints") else Place.KEPT


def _tokens(path: str) -> list[str]:
    for _attempt in range(3):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a path as text, from os.walk
                return [token.decode() for token in _TOKEN.findall(file.read())]
        except FileNotFoundError:  # replaced by its writer just now
            continue
        except OSError:
            break
    return []


def _describe(lost: list[Line], last: dict[str, Place]) -> str:
    lines = [f"{len(lost)} acknowledged lines are nowhere:"]
    for one in lost[:_SHOWN]:
        before = last.get(one.token)
        where = "never looked for before" if before is None else f"last in {before}"
        lines.append(f"  {one.token} ({one.kind}, written below {one.volume}, {where})")
    if len(lost) > _SHOWN:
        lines.append(f"  … and {len(lost) - _SHOWN} more")
    return "\n".join(lines)
