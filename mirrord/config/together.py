"""Checks whether the ends of a mirror are compatible, and several mirrors with each other."""

from __future__ import annotations

from mirrord.config import live, members
from mirrord.config.reading import TREE
from mirrord.core.errors import ConfigError
from mirrord.core.model import Definition


def check_together(definitions: list[Definition]) -> None:
    """`ConfigError` when two definitions conflict."""
    by_destination: dict[str, Definition] = {}
    by_id: dict[str, Definition] = {}
    for definition in definitions:
        for pair in definition.pairs:
            _check_ends(definition._replace(source=pair.source, destination=pair.destination))
            # A dataset is the same location with and without its descendants.
            end = str(pair.destination).replace(f"{TREE}:", "zfs:", 1)
            other = by_destination.setdefault(end, definition)
            if other is not definition:
                raise ConfigError(
                    f"the mirrors '{other.name}' and '{definition.name}' have the same destination",
                    where=definition.file or definition.name,
                    why=str(pair.destination),
                    hint="Give each mirror a destination of its own.",
                )
        other = by_id.setdefault(definition.id, definition)
        if other is not definition:
            raise same_id(other.name, definition)
    members.check(definitions)


def same_id(other: str, definition: Definition) -> ConfigError:
    """Another file has the id of a definition."""
    return ConfigError(
        f"the mirrors '{other}' and '{definition.name}' have the same id",
        where=definition.file or definition.name,
        why=definition.id,
        hint="A copied definition needs its own id: change it to another one.",
    )


def _check_ends(definition: Definition) -> None:
    source, destination = definition.source, definition.destination
    where = definition.file or definition.name
    if {source.kind, destination.kind} == {"zfs", TREE}:
        raise ConfigError(
            "only one end is recursive",
            where=where,
            hint="Write both as zfs: and add 'recursive = true' (create: '--recursive').",
        )
    if {source.kind, destination.kind} == {"btrfs", members.NESTED}:
        raise ConfigError(
            "only one end includes nested subvolumes",
            where=where,
            hint="Write both as btrfs: and add 'nested = true' (create: '--nested').",
        )
    if source.kind != destination.kind:
        raise members.mixed(source, destination, where)
    live.check(definition, lambda _key: where)
    if source == destination:
        raise ConfigError("source and destination are the same", where=where, why=str(source))
    if source.host != destination.host:
        return
    inner, outer = destination.location + "/", source.location.rstrip("/") + "/"
    if inner.startswith(outer):
        raise ConfigError(
            "the destination is inside the source",
            where=where,
            why=f"{destination.location} is below {source.location}",
            hint="Give a destination outside of it, preferably on another disk.",
        )
    if outer.startswith(inner):
        raise ConfigError(
            "the source is inside the destination",
            where=where,
            why=f"{source.location} is below {destination.location}",
            hint="Give a destination outside of it, preferably on another disk.",
        )
