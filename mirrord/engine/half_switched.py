"""Ends of which a switch that was killed has changed some members only, where no operation in the
catalogue says so: it was lost, or another host has taken over. On ZFS a live one may be frozen.
"""

from __future__ import annotations

from mirrord.catalogue.store import Operation
from mirrord.core import names
from mirrord.core.errors import MirrordError, NotFound, Refused
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.core.relationship import Intent
from mirrord.engine.members import Members
from mirrord.engine.mirror import Mirror, one_line, refuse_replaced, tolerated


def put_back(mirror: Mirror, there: Members, *, strict: bool = False) -> list[str]:
    """Members that a killed resync or reverse had set aside, or frozen for that, become live again:
    those that it had not reached still are, and what the others show is of another moment. By the
    record: the catalogue may be lost. Returns warnings. strict: raises when what a member was
    cannot be put back; otherwise it begins as what it shows.

    The last member comes first, so that one that is live has only live ones behind it until all
    are: this can be interrupted, too. `Refused` when another volume is in the place of a member.
    """
    refuse_replaced(mirror)  # it is live, but no switch has left it
    name, trouble = _half_set_aside(mirror, there), []
    for driver in reversed(there.drivers) if name else ():
        live = driver.facts().role is Role.LIVE
        try:
            driver.reinstate(name)  # a live one is thawed
        except NotFound:
            driver.promote()  # it had no changes of its own
        except (MirrordError, OSError) as error:
            if strict:
                raise
            why = one_line(error)
            if not live:
                driver.promote()
                why = (
                    f"{driver} begins as the snapshot that it showed; its previous content is "
                    f"kept as {name}: {why}"
                )
            trouble.append(why)
    return trouble


def _half_set_aside(mirror: Mirror, there: Members) -> str:
    """The name under which the members that are not live were set aside, or were to be; "" when a
    switch that was killed has not left that. It sets the first member aside first, and the last one
    at the end: a promotion that was killed has made the first one live. An older verb's name has
    newer snapshots beside it.
    """
    known = mirror.relation.known
    if known is None or known.intent is not Intent.MIRRORED or there.roles()[-1] is not Role.LIVE:
        return ""
    sequence = names.sequence_of(known.set_aside, mirror.id)
    newest = names.last_sequence((one.name for one in there.snapshots()), mirror.id)
    return known.set_aside if sequence and sequence >= newest else ""


def kept(mirror: Mirror, operation: Operation | None = None) -> set[str]:
    """The names of what the destination keeps that was live once, without what the interrupted
    `operation` has set aside.
    """
    listed: list[Snapshot] = []
    tolerated(lambda: listed.extend(mirror.destination.snapshots()))
    number = operation.arguments.sequence if operation is not None else 0
    return {
        one.name
        for one in listed
        if one.kind is SnapshotKind.DIVERGED
        and not (number and names.sequence_of(one.name, mirror.id) == number)
    }


def check_begun(mirror: Mirror, chosen: Snapshot) -> None:
    """`Refused` when a break that was interrupted has made members live as another set."""
    there = mirror.destination
    for driver, part in zip(there.drivers, there.parts(chosen.guid), strict=True):
        facts = driver.facts()
        if facts.role is Role.LIVE and facts.origin != part:
            raise Refused(
                "a part of the destination is already writable",
                where=facts.view,
                why=f"it did not begin as {chosen.name}",
                hint=f"'mirrord break {mirror.name}' makes the rest writable. Then run 'mirrord "
                f"resync {mirror.name}', and break at that snapshot.",
            )


def refuse_half_restored(mirror: Mirror) -> None:
    """`Refused` while members of the source are still set aside by a `restore --all`: the
    destination would be set aside, and no update could follow.
    """
    roles = mirror.source.roles()
    if Role.LIVE in roles and Role.MIRROR in roles:
        driver = mirror.source.drivers[roles.index(Role.MIRROR)]
        raise Refused(
            "a member of the source is read-only",
            where=str(driver),
            why="an interrupted 'restore --all' has set it aside",
            hint=f"'mirrord restore {mirror.name} --all' finishes that.",
        )
