"""Proving that a place has not changed: `Driver.mark` and `Driver.is_marked`.

The total of `written` may be the same after a block was overwritten. So a live volume gets a
bookmark of its current state: `written#BOOKMARK` is 0 exactly when no block was written since. A
bookmark uses no space, and does not prevent any transfer, rollback or deletion. It is created from
a snapshot, which is destroyed immediately.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from mirrord.core.errors import NoSpace
from mirrord.core.model import Role
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset.place import Dataset
from mirrord.drivers.zfs.snapshots import compare, programs

#: The prefix of the names of the bookmark and of the snapshot that it is created from.
PREFIX = "mirrord-mark-"


def text(role: Role, state: object) -> str:
    """A mark. state: what must not change; JSON values."""
    return json.dumps([role.value, state])


def parse(mark: str) -> tuple[Role | None, object]:
    """The role and the state of a mark; None for both when it is malformed."""
    try:
        role, state = json.loads(mark)
        return Role(role), state
    except (TypeError, ValueError):
        return None, None


def live(volumes: Sequence[Dataset], where: str) -> list[str]:
    """The current state of live volumes; the bookmarks of earlier marks are destroyed."""
    name = f"{PREFIX}{secrets.token_hex(8)}"
    every = [one.name for one in volumes]
    compare.sync(volumes, where)
    try:
        if not programs.bookmark_now(every, name):
            remove(every, "", where)
            _one_by_one(every, name, where)
    except NoSpace:
        name = ""  # without a proof `is_marked` returns False
    remove(every, name, where)
    return [name, *(one.guid for one in volumes)]


def holds(state: object, volumes: Sequence[Dataset], where: str) -> bool:
    """Whether live volumes are still in that state."""
    if not isinstance(state, list) or state[1:] != [one.guid for one in volumes] or not state[0]:
        return False
    compare.sync(volumes, where)
    asked = ["zfs", "get", "-Hp", "-o", "value", f"written#{state[0]}"]
    done = command.result([*asked, *(one.name for one in volumes)])
    return done.status == 0 and done.output.split() == ["0"] * len(volumes)


def remove(datasets: Sequence[str], but: str, where: str) -> None:
    """Destroy the bookmarks of all marks but `but`, and what an interrupted mark left."""
    listed = ["zfs", "list", "-H", "-d", "1", "-t", "bookmark,snapshot", "-o", "name", *datasets]
    for full in command.run(listed, where).splitlines():
        name = full.replace("#", "@").partition("@")[2]
        if name.startswith(PREFIX) and name != but:
            words = ["zfs", "destroy", full]
            command.lenient("ZFS:MARK:REMOVE", words, where, "does not exist", "could not find")


def _one_by_one(datasets: Sequence[str], name: str, where: str) -> None:
    """Command by command. What is written meanwhile counts as written after the mark."""
    taken = [f"{dataset}@{name}" for dataset in datasets]
    command.effect("ZFS:MARK:SNAPSHOT", ["zfs", "snapshot", *taken], where)
    for dataset, full in zip(datasets, taken, strict=True):
        words = ["zfs", "bookmark", full, f"{dataset}#{name}"]
        command.effect("ZFS:MARK:BOOKMARK", words, where)
        command.effect("ZFS:MARK:DESTROY", ["zfs", "destroy", full], where)
