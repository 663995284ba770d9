"""Where the members of a tree have to go: renames only, planned from what is there.

Each rename is one step that ZFS does whole or not at all, and the plan is made anew from what is
there: an arrangement that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from mirrord.core.errors import Refused
from mirrord.drivers.zfs import names, tree_look


class Move(NamedTuple):
    """A rename of a dataset with all below it. aside: it is in the tree no more."""

    old: str
    new: str
    aside: bool = False


class Wanted(NamedTuple):
    """What the tree is to be.

    paths: of each member, by its dataset's guid. ours: guids of the datasets that may be set
    aside. waiting: the name under which a member waits beside the root.
    """

    paths: Mapping[str, str]
    ours: Collection[str]
    waiting: Callable[[str], str]


def plan(root: str, here: Mapping[str, str], wanted: Wanted) -> list[Move]:
    """The renames that make a tree of it. here: the datasets' guids by name, beside the root too.

    Raises `Refused` when a dataset that is not ours is where a member has to go.
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
        if tree_look.is_inside(root, name) and guid in wanted.ours and guid not in wanted.paths:
            move(name, names.set_aside(root, guid), aside=True)
    return moves


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0


def _in_the_way(root: str, place: str) -> Refused:
    return Refused(
        f"a dataset of somebody else's is at {place}",
        where=f"zfs:{root}",
        why="the source has one there, and mirrord did not make this",
        hint=f"Move it out of the tree: zfs rename {place} NEW",
    )
