"""adopt: rebuilds a mirror's definition from the relationship record at one of its ends, when the
host that controlled it is lost with all that it had. And the owner's word on which site is the
source, where no record says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrord.config.definitions import Definitions, of_record
from mirrord.config.together import check_together
from mirrord.control.commands.takeover import takeover
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import NotFound, Refused, Unsupported, UsageError
from mirrord.core.model import LIVE_KINDS, Definition, Endpoint, Role
from mirrord.core.relationship import Relationship, SiteRecord
from mirrord.core.results import Result
from mirrord.drivers.contract import Driver
from mirrord.drivers.refusals import live_definition_by_hand
from mirrord.engine import direction
from mirrord.engine.members import Members
from mirrord.system.explain import explained

if TYPE_CHECKING:
    from mirrord.control.api import Service


_BY_HAND = (
    'Write the definition by hand (docs/config.md), with id = "{id}", then run \'mirrord takeover '
    "{name}'."
)


def adopt(
    service: Service, endpoint: str, *, other: str, mirror: str, name: str, yes: bool
) -> Result:
    """Define a mirror by the record at one of its volumes, and let this host control it.

    endpoint: of that volume; other: of the other end, "" when it is called here as the record calls
    it. mirror: its name or id, where the volume has several. name: that it is to have here, "" for
    the one that it had. Raises `NotFound`, `Refused`, `UsageError`; nothing is defined then.
    """
    ends = [parse_endpoint(endpoint, what="endpoint")]
    if other:
        ends.append(parse_endpoint(other, what="other end"))
    with explained():
        service.paths.make(state=False)
        with service.attached(ends[0]) as driver:
            definition, lines = plan(service.definitions, driver, ends, mirror, name)
        if other:
            _check_other(service, definition, ends[0])
        if not yes:
            return Result("confirmation-required", "\n".join(lines), {"plan": lines})
        service.definitions.add(definition)
    adopted = definition.name
    try:
        result = service.run(takeover(adopted, yes=True))
    except BaseException:
        service.definitions.remove(adopted)
        raise
    text = f"'{adopted}' is defined from its relationship record.\n{result.text}"
    return Result("done", text, {**result.data, "name": adopted})


def choose_source(service: Service, name: str, source: str) -> Result:
    """See `mirrord.engine.simple.choose_source`. source: the name of a site."""
    from mirrord.engine import simple

    with explained():
        definition = service.definitions.load(name)
        if source not in definition.site_names:
            raise UsageError(
                f"'{name}' has no site '{source}'",
                hint=f"Its sites are {' and '.join(definition.site_names)}.",
            )
        wanted = service.definitions.load(name, source)
        ends = direction.look_at(wanted, service.driver)
        return service.at(wanted, lambda mirror: simple.choose_source(mirror, ends))


def plan(
    definitions: Definitions, driver: Driver, ends: list[Endpoint], wanted: str, name: str
) -> tuple[Definition, list[str]]:
    """The definition that the record at a volume says, and the plan to confirm. ends: the volume's
    endpoint and, if it was given, that of the other end. wanted, name: `mirror` and `name` of
    `adopt`.
    """
    record = _record(driver, wanted)
    here = _site_at(record, ends[0])
    there = next(site for site in record.sites if site is not here)
    if len(ends) > 1 and len(here.endpoints) == 1:
        # A dataset and its descendants have the endpoint of the dataset alone.
        kind = parse_endpoint(here.endpoints[0]).kind
        mine, other = ([end._replace(kind=kind)] for end in ends)
    elif _called(ends[0], exactly=True) & _calls(here, exactly=True):
        mine, other = ([parse_endpoint(one) for one in site.endpoints] for site in (here, there))
    else:
        raise UsageError(
            "the other end's endpoint is required",
            why=f"the controller called this end {', '.join(here.endpoints)} and the other one "
            f"{', '.join(there.endpoints)}; its name may differ on this host",
            hint="Give it as this host reaches it: --other ENDPOINT."
            if len(here.endpoints) == 1
            else _BY_HAND.format(id=record.mirror_id, name=record.name),
        )
    sides = (mine, other) if here.name == record.source else (other, mine)
    definition = of_record(record, list(zip(*sides, strict=True)), name or record.name)
    pairs = definition.pairs
    known = {one.id: one.name for one in definitions.all()}
    if record.mirror_id in known:
        raise Refused(
            "the mirror is already defined here",
            where=f"mirror '{known[record.mirror_id]}'",
            hint=f"'mirrord takeover {known[record.mirror_id]}' lets this host control it.",
        )
    try:
        definitions.check_free(definition.name)
    except Refused as error:
        error.hint = "It is another mirror. Give the adopted one another name here: --name NAME."
        raise
    check_together([*definitions.all(), definition])
    lines = [
        f"adopt '{definition.name}' (id {record.mirror_id}, epoch {record.epoch}, "
        f"{record.intent.value}): it will be defined here, and this host will control it.",
        *(f"   {pair.source} -> {pair.destination}" for pair in pairs),
        f"   Both ends will refuse the previous controller, {record.controller}.",
        "   Schedule, retention and all other settings are the defaults: the record has none.",
    ]
    return definition, lines


def _check_other(service: Service, definition: Definition, mine: Endpoint) -> None:
    """`Refused` when the other end that was given is another volume: it would be recorded as an end
    of the mirror, and the real one never be looked at again. Nothing may be there: it may be lost.
    """
    ends = definition.source, definition.destination
    is_mine = (ends[0].host, ends[0].location) == (mine.host, mine.location)
    endpoint, there = ends if is_mine else reversed(ends)
    with service.attached(there) as driver:
        found = direction.look(Members([driver]), definition.id)
    if found.facts is None or found.facts.role is Role.ABSENT or any(found.records):
        return
    with service.attached(endpoint) as driver:
        known = {one.guid for one in driver.snapshots()}
    if known.isdisjoint(one.guid for one in found.snapshots):
        raise Refused(
            "this volume is not the other end of the mirror",
            where=str(there),
            why=f"it has no relationship record of it, and no snapshot in common with {endpoint}",
            hint="Check the path. If the other end was lost, give a path at which nothing exists "
            "yet.",
        )


def _record(driver: Driver, wanted: str) -> Relationship:
    every = driver.relationships()
    found = [one for one in every.values() if one is not None]
    chosen = [one for one in found if wanted in ("", one.mirror_id, one.name)]
    names = ", ".join(sorted(f"{one.name} ({one.mirror_id})" for one in found))
    if driver.kind in LIVE_KINDS:
        mirror_id = driver.facts().mirror_id
        raise Unsupported(
            "this command is for mirrors by snapshots",
            where=str(driver),
            why="live mirrors have no relationship record",
            hint=live_definition_by_hand(mirror_id) if mirror_id else "",
        )
    if not chosen:
        damaged = sorted(mirror_id for mirror_id, one in every.items() if one is None)
        for mirror_id in damaged:
            driver.relationship(mirror_id)  # `Fenced` when a newer mirrord wrote it
        why = f"it has those of {names}" if names else "it has none"
        hint = "Give the endpoint of a volume that was an end of the mirror."
        if damaged:
            why = f"its record of {', '.join(damaged)} is damaged"
            hint = "Give the endpoint of the mirror's other end, or of another member."
        raise NotFound(
            "the volume has no such relationship record", where=str(driver), why=why, hint=hint
        )
    if len(chosen) > 1:
        raise UsageError(
            "the volume belongs to several mirrors",
            where=str(driver),
            why=names,
            hint="Say which one: --mirror ID, or --mirror NAME if only one has that name.",
        )
    return chosen[0]


def _site_at(record: Relationship, endpoint: Endpoint) -> SiteRecord:
    """The site that has the volume, whatever its host is called by whom."""
    for exactly in (True, False):
        wanted = _called(endpoint, exactly=exactly)
        found = [site for site in record.sites if wanted & _calls(site, exactly=exactly)]
        if len(found) == 1:
            return found[0]
    ends = " and ".join(", ".join(site.endpoints) for site in record.sites)
    raise Refused(
        "which end of the mirror this is cannot be determined",
        where=str(endpoint),
        why=f"the record names {ends}",
        hint=_BY_HAND.format(id=record.mirror_id, name=record.name),
    )


def _calls(site: SiteRecord, *, exactly: bool) -> set[Endpoint]:
    return {
        one for text in site.endpoints for one in _called(parse_endpoint(text), exactly=exactly)
    }


def _called(endpoint: Endpoint, *, exactly: bool) -> set[Endpoint]:
    """The key by which an endpoint is compared; of a dataset and its descendants, the dataset's."""
    plain = endpoint._replace(kind=endpoint.kind.removesuffix("-tree"))
    return {plain if exactly else plain._replace(host="")}
