"""Use of the relationship record: a mirror's controller, direction and epoch.

The record is stored with the volumes at both ends (`mirrord.core.relationship`). Each verb reads it
when it begins, and does nothing when another controller or a later epoch has taken over. A verb
that changes roles, or a live volume, raises the epoch at both ends before it sets one aside: from
then on the volumes refuse commands of the previous epoch. The catalogue has a copy of the record,
to detect changes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mirrord.core.errors import Diverged, Fenced, MirrordError, Refused, Unsupported
from mirrord.core.model import Role
from mirrord.core.relationship import (
    Fence,
    Intent,
    Relationship,
    demand_epoch,
    is_same,
    newest,
)
from mirrord.core.results import Result
from mirrord.core.states import State, Verb
from mirrord.drivers.contract import Driver
from mirrord.engine import direction
from mirrord.engine.direction import Turned
from mirrord.engine.members import Members

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror

EXCHANGED = "the endpoints of the two sites are exchanged in the definition"
CONTROLLED = "another host controls the mirror"
_FIRST = 1
#: Verbs that decide which side is right when two records of one epoch differ.
_SETTLING = frozenset({Verb.BREAK, Verb.RESYNC, Verb.REVERSE, Verb.TAKEOVER})
#: Verbs that need the source, and so read its record, too. The destination and the catalogue may
#: both be of an earlier time, when one disk that has both was restored.
_USING_SOURCE = frozenset({Verb.INITIALIZE, Verb.UPDATE, Verb.RESYNC, Verb.REVERSE, Verb.RESTORE})


def fence(mirror: Mirror) -> None:
    """Make both ends refuse this host's commands once they are in a later epoch than it knows."""
    epoch = mirror.relation.known.epoch if mirror.relation.known else 0
    for driver in (mirror.source, mirror.destination):
        driver.fence = Fence(mirror.id, epoch)


def enter(mirror: Mirror, verb: Verb) -> None:
    """Check that the verb may act on the ends as they are now. Under the destination's lock.

    Verbs that can do without the source read only that end when it has the same record that both
    had before. Raises `Fenced` when another host controls the mirror, `Diverged` when the ends
    contradict each other, and `Turned`.
    """
    try:
        there = _records(mirror.destination, mirror.id)
    except (MirrordError, OSError):
        if verb is not Verb.BREAK:  # which works without intact metadata
            raise
        there = [None]
    known = mirror.relation.known
    ours = known is not None and is_same(known.controller, mirror.relation.controller)
    if (
        known is None
        or not ours
        or any(record != known for record in there)
        or _wanted(mirror, known) != known
        # (One without a record may be another volume in its place: nothing is written to it.)
        or (verb in _USING_SOURCE and any(one not in (None, known) for one in _found_here(mirror)))
    ):
        _settle(mirror, verb, there)


def _settle(mirror: Mirror, verb: Verb, there: list[Relationship | None]) -> None:
    """Find the newest record, and write it to each volume that has an older one, or none."""
    here = _found_here(mirror)
    try:
        newer, agreed = newest((*there, *here)), True
    except Diverged:
        if verb not in _SETTLING:
            raise
        newer, agreed = max(filter(None, there), key=lambda record: record.epoch), False
    if newer is None:
        _learn(mirror, None)
        return
    if verb is not Verb.TAKEOVER:
        _check_controller(mirror, newer)
        _check_sites(mirror, newer)
    _check_kind(mirror, newer)
    _check_members(mirror, newer)
    record = _wanted(mirror, newer)
    source = direction.source_by(newer, mirror.definition)
    if source not in ("", record.source):
        mirror.catalogue.set_relationship(mirror.id, None)
        _turn(mirror, source)
    if {site.name for site in record.sites} != {site.name for site in newer.sites}:
        record = record._replace(epoch=newer.epoch + 1)  # the definition has other names for them
    if verb is Verb.TAKEOVER:
        _learn(mirror, newer, complete=False)
        return
    _learn(mirror, record, complete=False)
    if agreed:  # otherwise the verb that decides it raises the epoch
        _write(mirror, record)


def _found_here(mirror: Mirror) -> list[Relationship | None]:
    """What the source has; nothing when it cannot be read: it may be lost."""
    try:
        return _records(mirror.source, mirror.id)
    except (MirrordError, OSError):
        return []


def _check_controller(mirror: Mirror, record: Relationship) -> None:
    why = other_controller(mirror, record)
    if why:
        raise Fenced(
            CONTROLLED,
            where=f"mirror '{mirror.name}'",
            why=why,
            hint="If that host is permanently lost, or should no longer control the mirror, run "
            f"'mirrord takeover {mirror.name}'. Both ends will then refuse its commands.",
        )


def other_controller(mirror: Mirror, record: Relationship) -> str:
    """How the controller in the record differs from this host, or ""."""
    if is_same(record.controller, mirror.relation.controller):
        return ""
    return (
        f"the relationship record at its ends (epoch {record.epoch}) names the controller "
        f"{record.controller}, but this host is {mirror.relation.controller}"
    )


def _check_sites(mirror: Mirror, record: Relationship) -> None:
    """`Refused` when the definition gives each site the volumes of the other one: a definition does
    not change the direction, and the live volume would be taken for a destination that was broken
    off. By this controller's own record, as hosts call a volume differently.
    """
    if is_exchanged(mirror, record):
        raise Refused(
            EXCHANGED,
            where=mirror.definition.file or f"mirror '{mirror.name}'",
            why=f"{', '.join(record.site(source=True).endpoints)} was the site '{record.source}' "
            "until now",
            hint="Restore the previous endpoints. To change the direction of the mirror, use "
            f"'mirrord reverse {mirror.name}'.",
        )


def is_exchanged(mirror: Mirror, record: Relationship) -> bool:
    """Whether each site of the definition has what the record says of the other one."""
    now, (first, second) = dict(direction.site_records(mirror.definition)), record.sites
    return (now.get(first.name), now.get(second.name)) == (second.endpoints, first.endpoints)


def _check_kind(mirror: Mirror, record: Relationship) -> None:
    """`Refused` when the definition has another kind of endpoint than before: `nested` or
    `recursive` was added or removed. A driver does not see the snapshots of the other kind.
    """
    why = other_kind(mirror, record)
    if why:
        key = "nested" if "btrfs" in why else "recursive"
        raise Refused(
            "the kind of a mirror cannot be changed",
            where=mirror.definition.file or f"mirror '{mirror.name}'",
            why=why,
            hint=f"Restore the previous value of '{key}'. For the other kind, create another "
            "mirror with another destination.",
        )


def other_kind(mirror: Mirror, record: Relationship) -> str:
    """How the kind of the endpoints differs from that in the record, or ""."""
    before = {end.partition(":")[0] for site in record.sites for end in site.endpoints}
    now = {end.kind for pair in mirror.definition.pairs for end in (pair.source, pair.destination)}
    if before == now or not before:
        return ""
    return f"it was created as {_kinds(before)}, and is defined as {_kinds(now)}"


def _kinds(found: set[str]) -> str:
    return ", ".join(sorted(found))


def _check_members(mirror: Mirror, record: Relationship) -> None:
    """A set is identified by the order of its members: `Refused` when that has changed, or members
    were added or removed. A member may have moved to another endpoint.
    """
    now = dict(direction.site_records(mirror.definition))
    for name, before in record.sites:
        after = now.get(name, before)
        elsewhere = [n for n, one in enumerate(after) if one in before and before[n] != one]
        if len(after) != len(before) or elsewhere:
            raise Refused(
                "the members of the mirror are not those it was created with",
                where=mirror.definition.file or f"mirror '{mirror.name}'",
                why=f"at the site '{name}' it had {', '.join(before)}, in this order",
                hint="Restore the previous [[member]] tables. For other volumes, create another "
                "mirror.",
            )


def _turn(mirror: Mirror, source: str) -> None:
    """According to the ends this site is the source, not the one that it was opened with."""
    mirror.catalogue.set_direction(mirror.id, source)
    if mirror.catalogue.mirror(mirror.id) is not None:
        text = f"{source} is the source, according to the relationship record at the ends"
        mirror.catalogue.add_event(mirror.id, "warning", text)
    raise Turned


def _wanted(mirror: Mirror, record: Relationship) -> Relationship:
    """The record as it would be written now: with the definition's names and endpoints."""
    definition = mirror.definition
    sites = direction.site_records(definition)
    return record._replace(name=mirror.name, source=definition.source_site, sites=sites)


def ensure(mirror: Mirror) -> None:
    """Write the record where an end has none yet: a new mirror, or a recreated volume."""
    if mirror.relation.known is None:
        state = mirror.row().state
        intent = Intent.BROKEN_OFF if state is State.BROKEN_OFF else Intent.MIRRORED
        controller = mirror.relation.controller
        blank = Relationship(mirror.id, mirror.name, _FIRST, "", (), controller, intent)
        record = _wanted(mirror, blank)
        _learn(mirror, record, complete=False)
    assert mirror.relation.known is not None
    _write(mirror, mirror.relation.known)


def next_epoch(mirror: Mirror) -> int:
    """The epoch that a verb is going to begin; goes into the operation's arguments."""
    return (mirror.relation.known.epoch if mirror.relation.known else _FIRST) + 1


def confirmed_epoch(mirror: Mirror) -> int:
    """The same for a verb that must not begin when it is too high: `Refused`."""
    epoch = next_epoch(mirror)
    demand_epoch(epoch, mirror.name)
    return epoch


def is_over(mirror: Mirror, epoch: int) -> bool:
    """Whether the ends are in a later epoch than an operation was going to begin."""
    return mirror.relation.known is not None and mirror.relation.known.epoch > epoch


def begin_epoch(
    mirror: Mirror,
    epoch: int,
    intent: Intent,
    *,
    set_aside: str | None = None,
    turned: bool = False,
    alone: bool = False,
) -> None:
    """Raise the epoch at both ends, where that is not done yet. `Fenced` when another command
    did so first.

    set_aside: see `Relationship`; None keeps it. turned: from now on the destination is the source.
    alone: the record is not written at the source, which may not answer; the next verb that reaches
    it does so. An append-only end that has a record keeps it.
    """
    if mirror.relation.known is None:
        ensure(mirror)
        assert mirror.relation.known is not None
    record = _wanted(mirror, mirror.relation.known)._replace(
        epoch=epoch,
        intent=intent,
        controller=mirror.relation.controller,
        in_sync_until_ns=None,
    )
    if set_aside is not None:
        record = record._replace(set_aside=set_aside)
    if turned:
        record = record._replace(source=mirror.definition.destination_site)
    _learn(mirror, record, complete=False)
    _write(mirror, record, strict=True, alone=alone)


def _write(
    mirror: Mirror, record: Relationship, *, strict: bool = False, alone: bool = False
) -> None:
    """Write the record at all volumes of both ends; alone: of the destination only. A failure is
    ignored, since the next verb tries again; strict: one at the destination is raised.
    """
    complete = not alone
    for end in (mirror.destination,) if alone else (mirror.destination, mirror.source):
        for driver in end.drivers:
            try:
                complete = _write_one(mirror, driver, record) and complete
            except Fenced:
                raise
            except (MirrordError, OSError):
                if strict and end is mirror.destination:
                    raise
                complete = False
    if complete:
        _learn(mirror, record)


def _write_one(mirror: Mirror, driver: Driver, record: Relationship) -> bool:
    """Write the record at one volume; returns whether it has it then."""
    stored = _read(driver, mirror.id)
    if stored == record:
        return True
    if driver.facts().role is Role.ABSENT or (stored is not None and driver.append_only):
        return False
    with mirror.locked(driver):
        try:
            driver.relate(record, stored.epoch if stored else 0)
        except Unsupported:
            return False  # an older mirrord
    return True


def _records(end: Members, mirror_id: str) -> list[Relationship | None]:
    """What each volume of an end has."""
    return [_read(driver, mirror_id) for driver in end.drivers]


def _read(driver: Driver, mirror_id: str) -> Relationship | None:
    try:
        return driver.relationship(mirror_id)
    except Unsupported:
        return None  # an older mirrord, or no such volume can exist: the verb reports the cause


def _learn(mirror: Mirror, record: Relationship | None, *, complete: bool = True) -> None:
    """From now on this is the record. complete: both ends have it."""
    mirror.relation.known = record
    fence(mirror)
    kept = record if complete else None
    if mirror.catalogue.relationship(mirror.id) != kept:
        mirror.catalogue.set_relationship(mirror.id, kept)


def ask_source(mirror: Mirror) -> None:
    """Use the source's record when the destination does not answer."""
    if mirror.relation.known is None:
        mirror.relation.known = newest(_records(mirror.source, mirror.id))
        if mirror.relation.known is not None:
            _check_controller(mirror, mirror.relation.known)
        fence(mirror)


def give_up(mirror: Mirror, end: Members) -> str:
    """The mirror is deleted: remove its record; returns a warning when that failed, or ""."""
    trouble = []
    for driver in end.drivers:
        try:
            with suppress(Unsupported):  # an older mirrord
                if mirror.id in driver.relationships():  # a damaged one, too
                    with mirror.locked(driver):
                        driver.unrelate(mirror.id)
        except (MirrordError, OSError) as error:
            trouble.append(f"Its relationship record was not removed at {driver}: {error}.")
    return " ".join(trouble)


def take_over(mirror: Mirror, *, yes: bool) -> Result:
    """Let this host control the mirror; both ends then refuse its previous controller."""
    with mirror.hold(Verb.TAKEOVER):
        record = mirror.relation.known
        if record is None:
            raise Refused(
                "the mirror has no controller yet",
                where=f"mirror '{mirror.name}'",
                why="neither end has an intact relationship record of it",
                hint=f"'mirrord initialize {mirror.name}' or 'mirrord update {mirror.name}' makes "
                "this host its controller.",
            )
        controller = mirror.relation.controller
        if is_same(record.controller, controller):
            return Result("already_controls", f"This host already controls '{mirror.name}'.")
        if mirror.destination.append_only:
            raise Refused(
                "the mirror cannot be taken over from here",
                where=str(mirror.destination),
                why="this host has append-only access there",
                hint="Run the takeover on that host.",
            )
        lines = [
            f"takeover '{mirror.name}': this host ({controller}) will control it, in epoch "
            f"{record.epoch + 1}.",
            f"   Both ends will refuse the previous controller, {record.controller}.",
            f"   {mirror.source} is the source, {mirror.destination} the destination.",
        ]
        if not yes:
            data = {"plan": lines, "controller": record.controller}
            return Result("confirmation-required", "\n".join(lines), data)
        begin_epoch(mirror, record.epoch + 1, record.intent)
        mirror.row()
        text = f"took over from the controller {record.controller}, epoch {record.epoch + 1}"
        mirror.catalogue.add_event(mirror.id, "warning", text)
    return Result(
        "done",
        f"This host now controls '{mirror.name}' (epoch {record.epoch + 1}).",
        {"epoch": record.epoch + 1, "before": record.controller},
    )
