"""The members of a mirror in its definition: its pairs of volumes, or its [[member]] tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrord.config import strict
from mirrord.core.endpoint import KINDS, parse_endpoint
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.model import Definition, Endpoint, Member
from mirrord.core.names import check_name

#: The kind of a btrfs endpoint with its nested subvolumes.
NESTED = "btrfs-tree"

#: A member of a definition's file: its name, its volume at each site, and its pauser or "".
Table = tuple[str, Mapping[str, Endpoint], str]
_RESERVED = ("name", "pause")


def tables(value: Any) -> tuple[Table, ...]:
    """The members in the [[member]] tables."""
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ValueError("expected at least one [[member]] table")
    return tuple(_member(one) for one in value)


def _member(table: dict[str, Any]) -> Table:
    if "name" not in table:
        raise ValueError("each needs a name, and an endpoint for each site")
    ends = {key: _endpoint(key, value) for key, value in table.items() if key not in _RESERVED}
    name = check_name(strict.text(table["name"]), "a member")
    return name, ends, pauser(table["pause"]) if "pause" in table else ""


def pauser(value: Any) -> str:
    """A pauser as given; only validated here."""
    from mirrord.pausers.registry import checked  # few definitions have one

    return checked(strict.text(value))


def _endpoint(site: str, value: Any) -> Endpoint:
    return parse_endpoint(strict.text(value), what=f"endpoint at {site}")


#: Separates the ends of a member; a path may also contain "=".
_BETWEEN = re.compile(rf"=(?=(?:{'|'.join(KINDS)}):)")


def parse_pairs(texts: Sequence[str]) -> tuple[Member, ...]:
    """The members given as `SOURCE=DESTINATION`."""
    found = []
    for text in texts:
        ends = _BETWEEN.split(text)
        if len(ends) != 2:
            raise UsageError(
                f"'{text}' does not name the two volumes of a member",
                hint="Write it as SOURCE=DESTINATION: btrfs:/db/log=btrfs:/backup/log.",
            )
        source = parse_endpoint(ends[0], what="source")
        found.append((source, parse_endpoint(ends[1], what="destination")))
    return named(found)


def named(pairs: Sequence[tuple[Endpoint, Endpoint]]) -> tuple[Member, ...]:
    """Members of these volumes, each named by the last component of its source's location."""
    found: list[Member] = []
    for source, destination in pairs:
        name = check_name(source.location.rpartition("/")[2], "a member")
        taken = {one.name for one in found}
        free = (name, *(f"{name}-{number}" for number in range(2, len(found) + 3)))
        found.append(Member(next(n for n in free if n not in taken), source, destination))
    return tuple(found)


def nested_end(endpoint: Endpoint, where: str) -> Endpoint:
    """The endpoint with its nested subvolumes; `ConfigError` for kinds that have none."""
    if endpoint.kind not in ("btrfs", NESTED):
        raise ConfigError(
            f"a {endpoint.kind} volume has no nested subvolumes",
            where=where,
            hint="'nested' is for btrfs. For ZFS datasets there is 'recursive'.",
        )
    return endpoint._replace(kind=NESTED)


def check_tables(values: Mapping[str, Any], file: str) -> None:
    """`ConfigError` when the tables conflict with the rest of the file."""
    found: Sequence[Table] = values.get("member", ())
    if not found:
        return
    sites = values.get("site", {})
    for key in ("recursive", "nested"):
        if values.get(key):
            raise _table_conflict(key, file)
    for name, site in sites.items():
        for key in ("endpoint", "snapshots"):
            if site.get(key):
                raise _table_conflict(key, f"{file}, site.{name}")
    for member, ends, _pause in found:
        if set(ends) != set(sites):
            raise ConfigError(
                f"the member '{member}' needs an endpoint for each site",
                where=file,
                why=f"it has {', '.join(ends) or 'none'}; the sites are {', '.join(sites)}",
                hint='For example: [[member]] with name = "log", primary = "btrfs:/db/log" and '
                'secondary = "btrfs:/backup/log".',
            )


def _table_conflict(key: str, where: str) -> ConfigError:
    return ConfigError(
        f"'{key}' cannot be combined with [[member]] tables", where=where, hint=_INSTEAD[key]
    )


_INSTEAD = {
    "endpoint": "Give each volume a [[member]] table with a name, and its endpoint at each site.",
    "nested": "A subvolume and its nested ones are one member: create a mirror of them.",
    "recursive": "A dataset and its descendants are one member: create a mirror of them.",
    "snapshots": "User snapshots of several volumes are not taken at the same moment.",
}


def check(definitions: Sequence[Definition]) -> None:
    """`ConfigError` when the members of a mirror conflict with each other."""
    feeding = {pair.destination: one for one in definitions for pair in one.pairs}
    for definition in definitions:
        _check_names(definition)
        _check_places(definition)
        _check_sources(definition, feeding)


def _check_names(definition: Definition) -> None:
    names = [one.name for one in definition.pairs]
    kinds = {one.source.kind for one in definition.pairs}
    where = definition.file or definition.name
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("two members have the same name", where=where, why=name)
    if len(kinds) > 1:
        raise ConfigError(
            "the members are of different kinds",
            where=where,
            why=", ".join(sorted(kinds)),
            hint="Create a mirror for each kind of volume.",
        )


def _check_places(definition: Definition) -> None:
    """`ConfigError` when a volume is used twice, or is inside another one."""
    ends = [end for one in definition.pairs for end in (one.source, one.destination)]
    for number, end in enumerate(ends):
        for other in ends[:number]:
            inner, outer = sorted((end, other), key=lambda one: len(one.location), reverse=True)
            below = inner.location.startswith(outer.location.rstrip("/") + "/")
            if end.host == other.host and (end.location == other.location or below):
                raise ConfigError(
                    "two member volumes are the same, or one is inside the other",
                    where=definition.file or definition.name,
                    why=f"{other} and {end}",
                )


def _check_sources(definition: Definition, feeding: Mapping[Endpoint, Definition]) -> None:
    """A cascaded mirror must use all members of the first mirror, in its order: its sets.

    feeding: the mirror that has a volume as its destination.
    """
    sources = [one.source for one in definition.pairs]
    for other in filter(None, map(feeding.get, sources)):
        destinations = [one.destination for one in other.pairs]
        if sources != destinations:
            shared = [str(one) for one in sources if one in destinations]
            raise ConfigError(
                "only some members of another mirror's destination are sources of this one",
                where=definition.file or definition.name,
                why=f"{', '.join(shared)}: destination of '{other.name}'",
                hint=f"Name all members of '{other.name}' as sources, in the same order.",
            )


def rendered(definition: Definition, quoted: Callable[[object], str]) -> list[str]:
    """The tables as lines of a definition; they belong at its end."""
    lines = []
    for one in definition.members:
        ends = {definition.source_site: one.source, definition.destination_site: one.destination}
        lines += ["[[member]]", f"name = {quoted(one.name)}"]
        lines += [f"{site} = {quoted(ends[site])}" for site in definition.site_names]
        lines += [f"pause = {quoted(one.pause)}"] if one.pause else []
        lines.append("")
    return lines


def mixed(source: Endpoint, destination: Endpoint, where: str) -> ConfigError:
    """The error for two kinds of volume that cannot be mirrored to each other."""
    error = ConfigError(
        f"a {source.kind} volume cannot be mirrored to a {destination.kind} volume",
        where=where,
        hint="Both ends of a mirror must be of the same kind.",
    )
    kinds = {source.kind, destination.kind}
    if kinds == {"btrfs", "zfs"}:
        error.why = (
            "the send streams of the two file systems are incompatible: snapshots, permissions "
            "and shared blocks would be lost"
        )
        error.hint += (
            " Two disk images (a zvol, a block volume): a later version will support that."
        )
    elif kinds == {"block", "zfs"}:
        error.why = "a dataset's stream cannot be applied to a block volume, or vice versa"
        error.hint += (
            " A later version will support this for a zvol, which is a disk image like a block "
            "volume, but not for a ZFS file system."
        )
    return error
