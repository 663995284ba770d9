"""The relationship record: what a mirror is, stored with the volumes at both of its ends.

One record for each mirror and volume. It names the source site, the controller that may change
that, and the epoch: each verb that changes roles or contents beyond an update raises the epoch by
one. The higher epoch wins; the volumes themselves refuse commands of a lower one.
"""

import enum
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mirrord.core.errors import MIRROR, Diverged, Fenced, Refused
from mirrord.core.sealed import sealed, unsealed
from mirrord.core.text import can_name, is_plain

#: Limits of a record's size and of the records of a volume: a peer writes them.
RECORD_BYTES_MAX = 8000
RECORDS_MAX = 64
_NUMBER_MAX = 2**63 - 1
#: More changes of roles than can happen. A record with a higher epoch is damaged or forged: at some
#: point it could not be raised any more.
EPOCH_MAX = 2**53 - 1
_FORMAT = 1


class Intent(enum.Enum):
    """What the mirror is meant to be in this epoch."""

    MIRRORED = "mirrored"
    BROKEN_OFF = "broken-off"


class SiteRecord(NamedTuple):
    """One end. endpoints: of each member, as its controller names it."""

    name: str
    endpoints: tuple[str, ...]


class Relationship(NamedTuple):
    """The record. epoch: from 1. source: the name of the source site. controller: the identity of
    the catalogue whose commands the volumes accept. in_sync_until_ns: until when the destination
    certainly had every acknowledged write; None where no mode guarantees that. set_aside: the name
    under which the verb that began this epoch keeps what it sets aside, or "".
    """

    mirror_id: str
    name: str
    epoch: int
    source: str
    sites: tuple[SiteRecord, ...]
    controller: str
    intent: Intent = Intent.MIRRORED
    in_sync_until_ns: int | None = None
    set_aside: str = ""

    def site(self, *, source: bool) -> SiteRecord:
        """The site in that role."""
        [found] = [one for one in self.sites if (one.name == self.source) == source]
        return found

    def as_dict(self) -> dict[str, Any]:
        """As a document of plain values, the same each time."""
        return {
            "format": _FORMAT,
            "mirror_id": self.mirror_id,
            "name": self.name,
            "epoch": self.epoch,
            "source": self.source,
            "sites": {one.name: list(one.endpoints) for one in self.sites},
            "controller": self.controller,
            "intent": self.intent.value,
            "in_sync_until_ns": self.in_sync_until_ns,
            "set_aside": self.set_aside,
        }


class Fence(NamedTuple):
    """What a call that changes a volume carries: its mirror, and the epoch it assumes."""

    mirror_id: str
    epoch: int


def is_same(controller: str, other: str) -> bool:
    """Whether two controller names mean the same one: the part after "@" is for people only."""
    return controller.partition("@")[0] == other.partition("@")[0]


def newest(found: Iterable[Relationship | None]) -> Relationship | None:
    """The record with the highest epoch among those of one mirror; None when there is none.

    `Diverged` when two of that epoch differ: two controllers have acted, and only the administrator
    can decide which side is right.
    """
    every = [one for one in found if one is not None]
    if not every:
        return None
    top = max(every, key=lambda one: one.epoch)
    for one in every:
        if one.epoch == top.epoch and not _agree(one, top):
            raise Diverged(
                "the two ends have different relationship records",
                where=f"mirror '{top.name}'",
                why=f"both have epoch {top.epoch}; one records {_summary(top)}, the other "
                f"{_summary(one)}",
                hint=f"Decide which side is right: 'mirrord resync {top.name}' or 'mirrord reverse "
                f"{top.name}' raises the epoch at both ends.",
            )
    return top


def check_fence(stored: Relationship | None, fence: Fence, where: str) -> None:
    """`Fenced` unless a call with that epoch may change the volume. A volume without a record
    accepts any: it is new, or was made before records existed.
    """
    if stored is not None and stored.epoch > fence.epoch:
        raise _fenced(
            where,
            f"the command has epoch {fence.epoch}, the mirror is in epoch {stored.epoch} now",
        )


def replaces(
    known: Mapping[str, Relationship | None], record: Relationship, after: int, where: str
) -> bool:
    """Whether the record is to be written at a volume that has the records `known`. after: the
    epoch that the writer assumes for the mirror's present record (0: none, or a damaged one).
    False: it is there already. `Fenced` when another record was written first.
    """
    if record.mirror_id not in known and len(known) >= RECORDS_MAX:
        raise Refused(
            "the volume has too many mirrors",
            where=where,
            why=f"it has {len(known)} already",
            hint=f"Delete mirrors that are no longer needed: 'mirrord delete {MIRROR}'.",
        )
    stored = known.get(record.mirror_id)
    if stored == record:
        return False
    epoch = stored.epoch if stored else 0
    if epoch != after or record.epoch < epoch:
        raise _fenced(where, f"the volume is in epoch {epoch}, not {after}")
    if stored is not None and record.epoch == epoch and not _agree(stored, record):
        raise _fenced(where, f"another command began epoch {epoch}: {_summary(stored)}")
    return True


def _agree(one: Relationship, other: Relationship) -> bool:
    """Whether they agree on roles. (Names and endpoints are the controller's names for the sites
    and volumes; changing those does not change roles.)
    """
    sites = {site.name for site in one.sites} == {site.name for site in other.sites}
    mine, theirs = (
        (
            record.mirror_id,
            record.epoch,
            record.source,
            record.controller.partition("@")[0],
            record.intent,
        )
        for record in (one, other)
    )
    return sites and mine == theirs


def _summary(record: Relationship) -> str:
    return f"{record.intent.value} from {record.source} (controller {record.controller})"


def _fenced(where: str, why: str) -> Fenced:
    return Fenced(
        "the epoch of the mirror has changed",
        where=where,
        why=why,
        hint="Another command has changed the roles in the meantime: see 'mirrord status'.",
    )


def checked(record: Relationship | None) -> Relationship | None:
    """A record that another host sent; None when no record can have these values."""
    return None if record is None else decode(json.dumps(record.as_dict()))


def demand_epoch(epoch: int, name: str) -> None:
    """`Refused` when a mirror's epoch would be too high."""
    if epoch > EPOCH_MAX:
        raise Refused(
            "the epoch of the mirror cannot be raised any further",
            where=f"mirror '{name}'",
            why=f"it is {epoch - 1}, which no series of commands reaches: a damaged or forged "
            "relationship record was taken over",
            hint="Remove its record at both ends manually (docs/failover.md); the next command "
            "writes new ones.",
        )


def encode(record: Relationship) -> bytes:
    """The record as a line of JSON; `Refused` when it is longer than a record may be, or its epoch
    is too high.
    """
    demand_epoch(record.epoch, record.name)
    data = json.dumps(sealed(record.as_dict()), separators=(",", ":")).encode()
    if len(data) > RECORD_BYTES_MAX:
        raise Refused("the relationship record is too long", why=f"{len(data)} bytes")
    return data


@functools.lru_cache(maxsize=2048)
def decode(data: bytes | str) -> Relationship | None:
    """The record in such a line; None when it is malformed."""
    try:
        return _from_dict(unsealed(data))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def decode_stored(data: bytes | str, mirror_id: str, where: str) -> Relationship | None:
    """The record of that mirror as a volume has it; None when it is damaged, or another mirror's.
    `Fenced` when a newer mirrord wrote it: its epoch and its controller are not known here.
    """
    record = decode(data)
    if record is not None:
        return record if record.mirror_id == mirror_id else None
    version = _format_of(data)
    if version > _FORMAT:
        raise Fenced(
            "the relationship record was written by a newer mirrord",
            where=where,
            why=f"its format is {version}, this mirrord supports {_FORMAT}",
            hint="Install the newer mirrord on this host: the mirror was controlled by one.",
        )
    return None


def _format_of(data: bytes | str) -> int:
    """The format of a record that cannot be read; 0 when it is damaged."""
    try:
        return _number(json.loads(data)["format"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return 0


def _from_dict(document: Mapping[str, Any]) -> Relationship:
    sites = tuple(
        SiteRecord(_word(name), tuple(map(_text, ends))) for name, ends in document["sites"].items()
    )
    until_ns, set_aside = document["in_sync_until_ns"], document.get("set_aside", "")
    found = Relationship(
        mirror_id=_word(document["mirror_id"]),
        name=_word(document["name"]),
        epoch=_number(document["epoch"], EPOCH_MAX),
        source=_word(document["source"]),
        sites=sites,
        controller=_word(document["controller"]),
        intent=Intent(document["intent"]),
        in_sync_until_ns=None if until_ns is None else _number(until_ns),
        set_aside=set_aside and _text(set_aside),
    )
    if len(sites) != 2 or found.source not in document["sites"]:
        raise ValueError("it must name two sites, one of which is the source")
    if not sites[0].endpoints or len(sites[0].endpoints) != len(sites[1].endpoints):
        raise ValueError("each member must have an endpoint at both sites")
    if document["format"] != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT}")
    return found


def _word(value: object) -> str:
    if not isinstance(value, str) or not can_name(value):
        raise ValueError(f"{value!r:.60} is not a name")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or not is_plain(value):
        raise ValueError(f"{value!r:.60} is not text")
    return value


def _number(value: object, most: int = _NUMBER_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{value!r:.60} is not a valid number")
    return value
