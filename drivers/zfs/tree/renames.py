"""Planning the renames that bring the members of a tree to their paths.

Each rename is atomic, and the plan is made from the existing datasets: after an interruption, the
next plan continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from mirrord.core.errors import Refused
from mirrord.drivers.zfs.dataset import names
from mirrord.drivers.zfs.tree import layout


class Move(NamedTuple):
    """A rename of a dataset and its descendants. aside: out of the tree."""

    old: str
    new: str
    aside: bool = False


class Wanted(NamedTuple):
    """The wanted tree.

    paths: of each member, by its dataset's guid. ours: guids of the datasets that may be set
    aside. waiting: the name under which a member waits beside the root.
    """

    paths: Mapping[str, str]
    ours: Collection[str]
    waiting: Callable[[str], str]


def plan(root: str, here: Mapping[str, str], wanted: Wanted) -> list[Move]:
    """The renames that result in the wanted tree. here: the datasets' guids by name, including
    those beside the root.

    Raises `Refused` when a dataset not in `ours` is at the path of a member.
    """
    now, moves = dict(here), list[Move]()

    def move(old: str, new: str, *, aside: bool = False) -> None:
        moves.append(Move(old, new, aside))
        for name in [name for name in now if name == old or name.startswith(f"{old}/")]:
            now[new + name[len(old) :]] = now.pop(name)

    for guid, path in sorted(wanted.paths.items(), key=lambda each: (_depth(each[1]), each[1])):
        place = f"{root}/{path}" if path else root
        there = now.get(place, "")
        if there == guid:
            continue
        if there in wanted.paths:
            move(place, wanted.waiting(there))
        elif there in wanted.ours:
            move(place, names.set_aside(root, there), aside=True)
        elif there:
            raise _in_the_way(root, place)
        move(next(name for name, found in now.items() if found == guid), place)
    for name in sorted(now, key=lambda name: (name.count("/"), name)):
        guid = now.get(name, "")
        if layout.is_inside(root, name) and guid in wanted.ours and guid not in wanted.paths:
            move(name, names.set_aside(root, guid), aside=True)
    return moves


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0


def _in_the_way(root: str, place: str) -> Refused:
    return Refused(
        f"a dataset that mirrord did not create is at {place}",
        where=f"zfs:{root}",
        why="a dataset of the source must be received there",
        hint=f"Move it out of the tree: zfs rename {place} NEW",
    )
