"""What is at a location: one `zfs get` for the dataset, its parent, and the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mirrord.drivers.pins import Pins
from mirrord.drivers.zfs.commands import command
from mirrord.drivers.zfs.dataset import marks, names
from mirrord.drivers.zfs.dataset.marks import Mark

_PROPERTIES = (
    "type",
    "guid",
    "objsetid",
    "mountpoint",
    "mounted",
    "readonly",
    "canmount",
    "overlay",
    "used",
    "available",
    "origin",
    "inconsistent",
    "volblocksize",
    "receive_resume_token",
    "encryption",
    "keystatus",
    marks.MARK,
    marks.STAGING,
    marks.FROZEN,
    marks.PINS,
)
_NOT_THERE = ("dataset does not exist", "no such pool", "no such dataset")


class Dataset(NamedTuple):
    """A dataset with its properties: name -> (value, source), "-" where it has none."""

    name: str
    properties: Mapping[str, tuple[str, str]]

    def get(self, name: str) -> str:
        """A property's value, "" when it has none."""
        value = self.properties.get(name, ("-", "-"))[0]
        return "" if value == "-" else value

    def local(self, name: str) -> str | None:
        """A property's value where it is set on this dataset itself, else None."""
        value, source = self.properties.get(name, ("-", "-"))
        return value if source == "local" and value != "-" else None

    @property
    def guid(self) -> str:
        """The dataset's identity on this pool."""
        return self.get("guid")

    @property
    def is_zvol(self) -> bool:
        """Whether it is a block device, not a file system."""
        return self.get("type") == "volume"

    @property
    def mounted(self) -> bool:
        """Whether it is mounted (a zvol: never)."""
        return self.get("mounted") == "yes"

    @property
    def mountpoint(self) -> str:
        """Where it is, or would be, mounted; "" for `none` and `legacy`."""
        found = self.get("mountpoint")
        return found if found.startswith("/") else ""

    @property
    def encrypted(self) -> bool:
        """Whether its blocks are encrypted."""
        return self.get("encryption") not in ("", "off")

    @property
    def token(self) -> str:
        """The resume token of an interrupted receive, or ""."""
        return self.get("receive_resume_token")

    @property
    def pins(self) -> Pins:
        """The pins of the mirrors."""
        return marks.parse_pins(self.local(marks.PINS))

    @property
    def mark(self) -> Mark | None:
        """The mark that mirrord set on it. If that is missing or damaged, but the record of the
        first receive exists, the mark of the mirror that it was received for.
        """
        found = marks.parse_mark(self.local(marks.MARK))
        if found is not None or self.local("readonly") != "on" or self.local(marks.FROZEN):
            return found
        request = marks.parse_staging(self.local(marks.STAGING))
        return Mark(role="mirror", mirror_id=request.mirror_id) if request else None


class Place(NamedTuple):
    """A location. here: the dataset at it; fresh: one that is about to take its place; above: its
    parent; pool: the pool's root. None: it does not exist.

    prepared: the mirror for which a missing dataset is going to be created, or "".
    """

    location: str
    here: Dataset | None
    fresh: Dataset | None
    above: Dataset | None
    pool: Dataset | None
    prepared: str

    @property
    def volume(self) -> Dataset | None:
        """The volume of the location: also the one that an interrupted swap left beside it."""
        return self.here or self.fresh

    @property
    def there(self) -> Dataset:
        """`here`, of a volume that is known to exist."""
        assert self.here is not None, self
        return self.here

    @property
    def mark(self) -> Mark:
        """The mark of the volume; an empty one when there is none."""
        found = self.volume.mark if self.volume else None
        return found or Mark()


def look(location: str, where: str, *more: str) -> Place:
    """Read all facts of a location by one command; more: additional properties. A missing dataset
    is no error.
    """
    parent, pool = names.parent_of(location), names.pool_of(location)
    fresh, prepared = names.fresh(location), names.prepared_property(location)
    asked = [location, fresh] if parent else [location]
    asked += [name for name in dict.fromkeys((parent, pool)) if name and name not in asked]
    wanted = ",".join((*_PROPERTIES, prepared, *more))
    arguments = ["zfs", "get", "-Hp", "-o", "name,property,value,source", wanted, *asked]
    done = command.result(arguments)
    if done.status != 0:
        errors = [line for line in done.errors.splitlines() if line.strip()]
        if not errors or any(not _is_absence(line) for line in errors):
            raise command.failure(where, arguments, done.errors)
    found = parse(done.output)
    above = found.get(parent)
    return Place(
        location=location,
        here=found.get(location),
        fresh=_usable(found.get(fresh)),
        above=above,
        pool=found.get(pool),
        prepared=(above.local(prepared) or "") if above else "",
    )


def _is_absence(line: str) -> bool:
    return any(text in line for text in _NOT_THERE)


def _usable(fresh: Dataset | None) -> Dataset | None:
    """A dataset that is to take the volume's place counts only when it has its mark."""
    return fresh if fresh is not None and fresh.mark is not None else None


def parse(output: str) -> dict[str, Dataset]:
    """The datasets of `zfs get -Hp -o name,property,value,source`."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, key, value, source = fields
            found.setdefault(name, {})[key] = value, source
    return {name: Dataset(name, properties) for name, properties in found.items()}
