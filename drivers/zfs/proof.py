"""Proving that a place is what it was: `Driver.mark` and `Driver.is_marked`.

The total of `written` may be the same after a block was overwritten. So a live volume gets a
bookmark of this very moment: `written#BOOKMARK` is 0 exactly when no block was written since. A
bookmark holds no space, and is in the way of no transfer, rollback or deletion. A bookmark is made
of a snapshot, which is destroyed in the same breath.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from mirrord.core.errors import NoSpace
from mirrord.core.model import Role
from mirrord.drivers.zfs import command, compare, programs
from mirrord.drivers.zfs.place import Dataset

#: Begins the name of the bookmark, and of the snapshot that it is made of.
PREFIX = "mirrord-mark-"


def text(role: Role, state: object) -> str:
    """A mark. state: what must be the same, as far as JSON can say it."""
    return json.dumps([role.value, state])


def parse(mark: str) -> tuple[Role | None, object]:
    """The role and the state of a mark; no role when it is none of ours."""
    try:
        role, state = json.loads(mark)
        return Role(role), state
    except (TypeError, ValueError):
        return None, None


def live(volumes: Sequence[Dataset], where: str) -> list[str]:
    """The state of live volumes now; the bookmarks of an earlier one go."""
    name = f"{PREFIX}{secrets.token_hex(8)}"
    every = [one.name for one in volumes]
    compare.sync(volumes, where)
    try:
        if not programs.bookmark_now(every, name):
            remove(every, "", where)
            _one_by_one(every, name, where)
    except NoSpace:
        name = ""  # nothing proves anything: `is_marked` says no
    remove(every, name, where)
    return [name, *(one.guid for one in volumes)]


def holds(state: object, volumes: Sequence[Dataset], where: str) -> bool:
    """Whether live volumes are in that state still."""
    if not isinstance(state, list) or state[1:] != [one.guid for one in volumes] or not state[0]:
        return False
    compare.sync(volumes, where)
    asked = ["zfs", "get", "-Hp", "-o", "value", f"written#{state[0]}"]
    done = command.result([*asked, *(one.name for one in volumes)])
    return done.status == 0 and done.output.split() == ["0"] * len(volumes)


def remove(datasets: Sequence[str], but: str, where: str) -> None:
    """Destroy the bookmarks of all marks but that one, and what an interrupted one left."""
    listed = ["zfs", "list", "-H", "-d", "1", "-t", "bookmark,snapshot", "-o", "name", *datasets]
    for full in command.run(listed, where).splitlines():
        name = full.replace("#", "@").partition("@")[2]
        if name.startswith(PREFIX) and name != but:
            words = ["zfs", "destroy", full]
            command.lenient("ZFS:MARK:REMOVE", words, where, "does not exist", "could not find")


def _one_by_one(datasets: Sequence[str], name: str, where: str) -> None:
    """Command by command. What is written meanwhile counts as written since."""
    taken = [f"{dataset}@{name}" for dataset in datasets]
    command.effect("ZFS:MARK:SNAPSHOT", ["zfs", "snapshot", *taken], where)
    for dataset, full in zip(datasets, taken, strict=True):
        words = ["zfs", "bookmark", full, f"{dataset}#{name}"]
        command.effect("ZFS:MARK:BOOKMARK", words, where)
        command.effect("ZFS:MARK:DESTROY", ["zfs", "destroy", full], where)
