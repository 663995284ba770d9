"""Which site of a mirror is the source.

The relationship record at the ends defines it (`mirrord.engine.relation`); the catalogue has a copy
of that. When the catalogue was lost and neither end has a record, it is derived from their facts;
when those are ambiguous, the administrator must decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from mirrord.catalogue.store import Catalogue
from mirrord.core import names
from mirrord.core.errors import Diverged, MirrordError, Refused, Unsupported
from mirrord.core.model import Definition, Endpoint, Role, Snapshot, VolumeFacts
from mirrord.core.relationship import Relationship, SiteRecord, newest
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members
from mirrord.system.waiting import LOOK_S


class Turned(Exception):
    """The mirror was opened in the wrong direction: its definition has to be loaded again. Never
    leaves the API.
    """


class End(NamedTuple):
    """What a site has. facts: None when it cannot be reached. snapshots: all that it has. records:
    the mirror's relationship records, of each volume.
    """

    facts: VolumeFacts | None
    snapshots: Collection[Snapshot] = ()
    records: tuple[Relationship | None, ...] = ()


def source_of(catalogue: Catalogue, mirror_id: str) -> str:
    """The recorded source site, or ""."""
    found = catalogue.direction(mirror_id)
    return found.source_site if found else ""


def reversed_since_ns(catalogue: Catalogue, definition: Definition) -> int | None:
    """Since when the sites have changed roles, 0 when that is not known; None: they have not."""
    if not definition.reversed:
        return None
    known = catalogue.direction(definition.id)
    return known.since_ns if known else 0


def source_by(record: Relationship, definition: Definition) -> str:
    """The definition's name for the record's source site; "" when the definition has neither its
    name nor its endpoints.
    """
    if record.source in definition.site_names:
        return record.source
    endpoints = record.site(source=True).endpoints
    return next((one.name for one in site_records(definition) if one.endpoints == endpoints), "")


def site_records(definition: Definition) -> tuple[SiteRecord, ...]:
    """Its sites as a relationship record has them."""
    return tuple(
        SiteRecord(site.name, tuple(map(str, site.endpoints))) for site in definition.sites
    )


def find(definition: Definition, ends: Mapping[str, End]) -> str | None:
    """The source site, from the records at the ends, or else from `direction_from_ends`."""
    with suppress(Diverged):
        record = newest(record for end in ends.values() for record in end.records)
        if record is not None and (source := source_by(record, definition)):
            return source
    return direction_from_ends(definition.name, definition.id, ends)


def direction_from_ends(name: str, mirror_id: str, ends: Mapping[str, End]) -> str | None:
    """The source site, derived from the facts of the two ends.

    None: unknown, because the mirror was never initialized or the end that has the information
    cannot be reached. `Refused`: either could be the source.
    """
    first, second = ends
    other = {first: second, second: first}
    copies = [site for site, end in ends.items() if _is_copy(end, mirror_id)]
    if len(copies) == 1:
        return other[copies[0]]
    originals: list[str] = []
    promoted: list[str] = []
    for site, end in ends.items():
        ours = {one.guid for one in end.snapshots if names.sequence_of(one.name, mirror_id)}
        if end.facts is not None and end.facts.role is Role.LIVE and ours:
            (promoted if end.facts.origin in ours else originals).append(site)
    # (A single promoted end may be the source of a copy that is not reachable now.)
    if len(originals) == 1:
        return originals[0]
    if not copies and not originals and not promoted:
        return None
    raise Refused(
        "it is not known which site is the source",
        where=f"mirror '{name}'",
        why="the catalogue does not record it (it was lost, or the site was renamed), and the ends "
        f"are ambiguous: {'; '.join(_summary(site, end) for site, end in ends.items())}",
        hint=f"If it is '{first}', run 'mirrord takeover {name} --source {first}'; otherwise "
        f"'mirrord takeover {name} --source {second}'.",
    )


def _is_copy(end: End, mirror_id: str) -> bool:
    """Whether it is the destination of this mirror, perhaps with a damaged record."""
    facts = end.facts
    if facts is None:
        return False
    ours = any(names.sequence_of(one.name, mirror_id) for one in end.snapshots)
    if facts.role is Role.MIRROR:
        return facts.mirror_id == mirror_id or (not facts.mirror_id and ours)
    return facts.role is Role.FOREIGN and ours


def _summary(site: str, end: End) -> str:
    if end.facts is None:
        return f"{site} cannot be reached"
    began = ", promoted from a copy" if end.facts.role is Role.LIVE and end.facts.origin else ""
    return f"{site} is {end.facts.role.value}{began}"


def look(end: Members, mirror_id: str) -> End:
    """What an end has, without waiting long for one that does not answer."""
    try:
        with end.waiting.hurried(LOOK_S):
            facts = end.facts()
            if set(end.roles()) == {Role.ABSENT}:
                return End(facts)
            snapshots = end.snapshots()
            with suppress(Unsupported):  # an older mirrord
                records = tuple(driver.relationship(mirror_id) for driver in end.drivers)
                return End(facts, snapshots, records)
            return End(facts, snapshots)
    except (MirrordError, OSError):
        return End(None)


def look_at(definition: Definition, opener: Callable[[Endpoint], Driver]) -> dict[str, End]:
    """What both sites have."""
    ends = {}
    for site in definition.sites:
        end = Members([opener(endpoint) for endpoint in site.endpoints])
        try:
            ends[site.name] = look(end, definition.id)
        finally:
            end.detach()
    return ends
