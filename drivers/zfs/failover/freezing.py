"""Freezing a live volume: `readonly=on`, with its previous state stored in the same `zfs set`.

`readonly=on` also stops processes that hold a file or a device open: a write fails with EROFS. The
property `mirrord:frozen` records the owner of the freeze and how to undo it, for recovery after a
crash or power failure. As a program (`python -m`) this module thaws what a killed process froze.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import mirrord
from mirrord.core.errors import Refused
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import names
from mirrord.drivers.zfs.dataset.marks import FROZEN
from mirrord.drivers.zfs.dataset.place import Dataset, look
from mirrord.drivers.zfs.snapshots import compare
from mirrord.system.deadman import Deadman

#: The owner of a freeze that outlasts its process: a rollback, which is finished or undone later.
_ROLLBACK = "rollback"


class Frozen(NamedTuple):
    """owner: of the freeze, "" when it is not frozen. before: the previous value of each property,
    None: inherited.
    """

    owner: str
    before: dict[str, str | None]

    def text(self) -> str:
        """As the property's value."""
        return json.dumps([self.owner, self.before], separators=(",", ":"))


#: The value after a completed rollback.
THAWED = Frozen("", {})


def of(volume: Dataset) -> Frozen | None:
    """How a volume is frozen, or None."""
    try:
        owner, before = json.loads(volume.local(FROZEN) or "")
        return Frozen(str(owner), dict(before)) if owner else None
    except (TypeError, ValueError):
        return None


class Freeze:
    """A freeze of some datasets of a pool, which ends at the latest when this process ends."""

    def __init__(self, volumes: Sequence[Dataset], where: str) -> None:
        """Freeze them, and write acknowledged data to disk. A dataset that is already frozen is
        owned by this freeze from now on.
        """
        every = [one.name for one in volumes]
        owner = secrets.token_hex(8)
        path = f"PYTHONPATH={Path(mirrord.__file__).parents[1]}"
        self._deadman = Deadman(["env", path, sys.executable, "-m", __name__, owner, *every])
        try:
            # Mapped pages are not written back once it is read-only.
            compare.sync(volumes, where)
            _set("ZFS:FREEZE:SET", owner, volumes, where)
            for pool in {names.pool_of(name) for name in every}:
                command.run(["zpool", "sync", pool], where)
        except BaseException:
            thaw(every, where)
            self._deadman.release()
            raise

    def release(self) -> None:
        """End the watch; the datasets stay as they are: they were thawed, or a rollback follows."""
        self._deadman.release()


class Freezable:
    """What may hold a freeze of its own datasets."""

    _freeze: Freeze | None = None

    def _unfreeze(self) -> None:
        """Release the freeze of this object: it was thawed, or a rollback has taken it over."""
        freeze, self._freeze = self._freeze, None
        if freeze is not None:
            freeze.release()


def for_rollback(volumes: Sequence[Dataset], where: str) -> None:
    """Freeze them until the rollback is done or undone, also when this process ends before that;
    they are not mounted at the next boot of the host.
    """
    loose = [one for one in volumes if not _done(one)]
    _set("ZFS:ROLLBACK:FREEZE", _ROLLBACK, loose, where)


def _done(volume: Dataset) -> bool:
    """Whether it was received like that, or an earlier attempt has frozen it."""
    now = of(volume)
    frozen = volume.local("readonly") == "on" and (now is None or now.owner == _ROLLBACK)
    return frozen and (volume.is_zvol or volume.local("canmount") == "noauto")


def _set(label: str, owner: str, volumes: Sequence[Dataset], where: str) -> None:
    """Make them read-only. While a file is open for writing the mount cannot be made read-only,
    which ZFS reports as an error; but then ZFS itself refuses every write.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in volumes:
        unmounted = owner == _ROLLBACK and not one.is_zvol
        state = Frozen(
            owner, _before(one, ("readonly", "canmount") if unmounted else ("readonly",))
        )
        values = ["readonly=on", f"{FROZEN}={state.text()}"]
        values += ["canmount=noauto"] if unmounted else []
        alike.setdefault(tuple(values), []).append(one.name)
    for settings, datasets in alike.items():
        words = ["zfs", "set", *settings, *datasets]
        command.lenient(label, words, where, "unable to remount")
        asked = ["zfs", "get", "-Hp", "-o", "value", "readonly", *datasets]
        if set(command.run(asked, where).split()) != {"on"}:
            raise Refused(
                "the volume cannot be made read-only",
                where=where,
                why=", ".join(datasets),
                hint=f"Check its properties: zfs get all {datasets[0]}",
            )


def thaw(datasets: Iterable[str], where: str, *, owner: str = "") -> None:
    """Restore their previous state; a dataset not frozen, or not by `owner`, is not changed."""
    for dataset in datasets:
        here = look(dataset, where).here
        state = of(here) if here is not None else None
        if state is None or owner not in ("", state.owner):
            continue
        for name, value in state.before.items():
            words = ["inherit", "-S", name] if value is None else ["set", f"{name}={value}"]
            command.effect("ZFS:THAW:SET", ["zfs", *words, dataset], where)
        command.effect("ZFS:THAW:END", ["zfs", "inherit", FROZEN, dataset], where)


def _before(volume: Dataset, names: Sequence[str]) -> dict[str, str | None]:
    """The values of these properties before any freeze; None: it was not set here."""
    now = of(volume)
    known = now.before if now is not None else {}
    every = dict.fromkeys((*names, *known))
    return {name: known[name] if name in known else volume.local(name) for name in every}


def main(owner: str, *datasets: str) -> None:
    """Thaw those that are still frozen by this owner."""
    thaw(datasets, f"zfs:{datasets[0]}", owner=owner)


if __name__ == "__main__":
    main(*sys.argv[1:])
