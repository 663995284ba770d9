"""The relationship records of a dataset: a local user property for each mirror."""

from __future__ import annotations

import hashlib
import re

from mirrord.core import relationship
from mirrord.core.relationship import Relationship
from mirrord.drivers.zfs.commands import command

PREFIX = "mirrord:relationship:"


def read(dataset: str, where: str) -> dict[str, Relationship | None]:
    """See `Driver.relationships`."""
    found: dict[str, Relationship | None] = {}
    for name, value in stored(dataset, where).items():
        record = relationship.decode(value)
        if record is not None and property_of(record.mirror_id) == name:
            found[record.mirror_id] = record
        else:
            found[name.removeprefix(PREFIX)] = None
    return found


def stored(dataset: str, where: str) -> dict[str, str]:
    """The records as they are stored, by the name of the property."""
    asked = ["zfs", "get", "-Hp", "-s", "local", "-o", "property,value", "all", dataset]
    rows = (line.partition("\t") for line in command.run(asked, where).splitlines())
    return {name: value for name, _, value in rows if name.startswith(PREFIX)}


def write(dataset: str, record: Relationship, where: str) -> None:
    """One `zfs set`, which is one transaction."""
    value = f"{property_of(record.mirror_id)}={relationship.encode(record).decode()}"
    command.effect("ZFS:RELATE:SET", ["zfs", "set", value, dataset], where)


def remove(dataset: str, mirror_id: str, where: str) -> None:
    """Remove the property."""
    words = ["zfs", "inherit", property_of(mirror_id), dataset]
    command.effect("ZFS:UNRELATE:INHERIT", words, where)


def property_of(mirror_id: str) -> str:
    """The name of the property with a mirror's record; it may not have capital letters."""
    if re.fullmatch(r"[a-z0-9._-]{1,64}", mirror_id):
        return PREFIX + mirror_id
    return PREFIX + hashlib.sha256(mirror_id.encode()).hexdigest()[:32]
