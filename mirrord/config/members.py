"""The members of a mirror in its definition: its pairs of volumes, or its [[member]] tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mirrord.config import strict
from mirrord.core.endpoint import KINDS, parse_endpoint
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.model import Definition, Endpoint, Member
from mirrord.core.names import check_name

_KEYS = ("name", "source", "destination")


def tables(value: Any) -> tuple[Member, ...]:
    """What the [[member]] tables say."""
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ValueError("at least one [[member]] table is needed")
    return tuple(_member(one) for one in value)


def _member(table: dict[str, Any]) -> Member:
    if set(table) != set(_KEYS):
        raise ValueError(f"each has the keys {', '.join(_KEYS)}, and no others")
    name, source, destination = (strict.text(table[key]) for key in _KEYS)
    return Member(
        check_name(name, "a member"),
        parse_endpoint(source, what="source"),
        parse_endpoint(destination, what="destination"),
    )


#: Between the ends of a member; a path may have "=" in it, too.
_BETWEEN = re.compile(rf"=(?=(?:{'|'.join(KINDS)}):)")


def parse_pairs(texts: Sequence[str]) -> tuple[Member, ...]:
    """The members that `SOURCE=DESTINATION` name, each; a member is called by the last part of its
    source.
    """
    found: list[Member] = []
    for text in texts:
        ends = _BETWEEN.split(text)
        if len(ends) != 2:
            raise UsageError(
                f"'{text}' does not name the two volumes of a member",
                hint="Write it as SOURCE=DESTINATION: btrfs:/db/log=btrfs:/backup/log.",
            )
        source = parse_endpoint(ends[0], what="source")
        destination = parse_endpoint(ends[1], what="destination")
        name = check_name(source.location.rpartition("/")[2], "a member")
        taken = {one.name for one in found}
        free = (name, *(f"{name}-{number}" for number in range(2, len(found) + 3)))
        found.append(Member(next(n for n in free if n not in taken), source, destination))
    return tuple(found)


def spread(values: dict[str, Any], file: str) -> None:
    """Put the first member's ends into the values, and all of them under `members`."""
    members = values.pop("member", ())
    for key in ("source", "destination", "recursive", "snapshots"):
        if members and values.get(key):
            raise ConfigError(
                f"there is '{key}' beside [[member]] tables", where=file, hint=_INSTEAD[key]
            )
    if members:
        values |= {"source": members[0].source, "destination": members[0].destination}
        values["members"] = members


_INSTEAD = {
    "source": "Give each volume a [[member]] table with a name, a source and a destination.",
    "destination": "Give each volume a [[member]] table with a name, a source and a destination.",
    "recursive": "A dataset and its descendants are one member: make a mirror of them.",
    "snapshots": "Snapshots that the owner takes of several volumes are not of one moment.",
}


def check(definitions: Sequence[Definition]) -> None:
    """`ConfigError` when the members of a mirror cannot be meant together."""
    for definition in definitions:
        _check_names(definition)
        _check_places(definition)
        _check_sources(definition, definitions)


def _check_names(definition: Definition) -> None:
    names = [one.name for one in definition.pairs]
    kinds = {one.source.kind for one in definition.pairs}
    where = definition.file or definition.name
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("two members have one name", where=where, why=name)
    if len(kinds) > 1:
        raise ConfigError(
            "the members are of different kinds", where=where, why=", ".join(sorted(kinds)),
            hint="Make a mirror for each kind of volume.",
        )  # fmt: skip


def _check_places(definition: Definition) -> None:
    """No volume twice, and none inside another one."""
    ends = [end for one in definition.pairs for end in (one.source, one.destination)]
    for number, end in enumerate(ends):
        for other in ends[:number]:
            inner, outer = sorted((end, other), key=lambda one: len(one.location), reverse=True)
            below = inner.location.startswith(outer.location.rstrip("/") + "/")
            if end.host == other.host and (end.location == other.location or below):
                raise ConfigError(
                    "two volumes of the members are one place, or one is inside the other",
                    where=definition.file or definition.name,
                    why=f"{other} and {end}",
                )


def _check_sources(definition: Definition, others: Sequence[Definition]) -> None:
    """What is mirrored on must be all members of the other mirror, in its order: its sets."""
    sources = [one.source for one in definition.pairs]
    for other in others:
        destinations = [one.destination for one in other.pairs]
        shared = [str(one) for one in sources if one in destinations]
        if shared and sources != destinations:
            raise ConfigError(
                "only some members of another mirror would be mirrored further",
                where=definition.file or definition.name,
                why=f"{', '.join(shared)}: destination of '{other.name}'",
                hint=f"Name all members of '{other.name}' as sources, in the same order.",
            )


def rendered(members: Sequence[Member], quoted: Any) -> list[str]:
    """The tables as lines of a definition; they stand at its end."""
    lines = []
    for one in members:
        lines += ["", "[[member]]"]
        lines += [f"{key} = {quoted(getattr(one, key))}" for key in _KEYS]
    return lines


def set_ends(text: str, key: str, ends: Sequence[str], file: str) -> str:
    """A definition's text with other values in the lines of that key, one for each member."""
    pattern = re.compile(rf"(?m)^[ \t]*([\"']?){key}\1[ \t]*=.*$")
    if len(pattern.findall(text)) != len(ends):
        raise ConfigError(
            f"the line of '{key}' was not found", where=file,
            hint=f'Write it as one line: {key} = "KIND:/PATH".',
        )  # fmt: skip
    left = iter(ends)
    return pattern.sub(lambda _found: f"{key} = {next(left)}", text)


def ends_of(members: Sequence[Member]) -> tuple[list[Endpoint], list[Endpoint]]:
    """All sources, all destinations."""
    return [one.source for one in members], [one.destination for one in members]


def mixed(source: Endpoint, destination: Endpoint, where: str) -> ConfigError:
    """Why two kinds of volume cannot be mirrored to each other."""
    error = ConfigError(
        f"a {source.kind} volume cannot be mirrored to a {destination.kind} volume",
        where=where,
        hint="Both ends of a mirror are of one kind.",
    )
    kinds = {source.kind, destination.kind}
    if kinds == {"btrfs", "zfs"}:
        error.why = (
            "what their file systems send is not made for each other: snapshots, permissions and "
            "shared blocks would get lost on the way"
        )
        error.hint += " Where both are images of disks (a zvol, a block volume) that will come."
    elif kinds == {"block", "zfs"}:
        error.why = "a dataset's stream cannot be applied to a block volume, or the other way round"
        error.hint += (
            " Where the dataset is a zvol, an image like the block volume, a later version of "
            "mirrord will be able to; a ZFS file system will not."
        )
    return error
