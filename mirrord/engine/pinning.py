"""What a mirror needs at both ends is pinned there, so that no mirrord deletes it, on any host.

These are the newest two snapshots that both ends have: the base of the next update, and the one
before it. At the source they include what other mirrors have pinned at the destination, further
down a cascade: so the last volume can be updated from the first when those between are lost.

A crash may leave more pinned than is needed, never less: new snapshots are pinned before older ones
are unpinned, and each update checks the pins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.drivers.contract import Driver
from mirrord.drivers.pins import GUIDS_MAX, VERIFYING
from mirrord.engine import plan
from mirrord.engine.mirror import Mirror, one_line

_KEPT = 2
_FAILED = "pinning failed"


def bases(here: Sequence[Snapshot], there: Sequence[Snapshot]) -> list[str]:
    """The newest two that both ends have intact, oldest first."""
    ours = {snapshot.guid for snapshot in here if plan.usable(snapshot)}
    common = [one.guid for one in there if plan.usable(one) and one.guid in ours]
    return common[-_KEPT:]


def of_others(mirror: Mirror, snapshots: Iterable[Snapshot]) -> dict[str, tuple[str, ...]]:
    """Which of an end's snapshots other mirrors have pinned there: guid -> their ids."""
    found = {one.guid: tuple(set(one.pinned) - {mirror.id}) for one in snapshots if one.pinned}
    return {guid: tuple(sorted(ids)) for guid, ids in found.items() if ids}


def reasons(
    mirror: Mirror,
    listed: Sequence[Snapshot],
    beyond: Sequence[Snapshot],
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Why others' pins keep snapshots of an end, for a person: guid -> reason.

    listed: what the end has; beyond: what the other end has, whose pins count as well. names: of
    mirrors, by their ids.
    """
    found, names = {}, names or {}
    for snapshots, where in ((beyond, " at the other end"), (listed, "")):
        for guid, ids in of_others(mirror, snapshots).items():
            mirrors = [one for one in ids if one != VERIFYING]
            labels = (f"{one} ('{names[one]}')" if one in names else one for one in mirrors)
            why = f"pinned by mirror {', '.join(labels)}" if mirrors else "it is being verified"
            found[guid] = f"{why}{where}"
    return found


class Wanted(NamedTuple):
    """What is to be pinned at each end: guids."""

    destination: list[str]
    source: list[str]


def wanted(mirror: Mirror, here: Sequence[Snapshot], there: Sequence[Snapshot]) -> Wanted:
    """What the mirror needs. here, there: what source and destination have, oldest first."""
    newest = bases(here, there)
    ours = {snapshot.guid for snapshot in here}
    passed = [guid for guid in of_others(mirror, there) if guid in ours and guid not in newest]
    return Wanted(newest, [*passed[len(newest) - GUIDS_MAX :], *newest])


def is_left_to(mirror: Mirror, snapshot: Snapshot) -> bool:
    """Whether this mirror has to delete a snapshot of the source that another mirror took for both:
    that one does not have it any more. (In a cascade it is the upstream mirror's.)
    """
    if snapshot.kind is not SnapshotKind.REFERENCE or mirror.source.facts().role is not Role.LIVE:
        return False
    return not mirror.catalogue.others(mirror.id, str(mirror.source), [snapshot.guid])


def differs(mirror: Mirror, listed: Sequence[Snapshot], guids: Collection[str]) -> bool:
    """Whether the mirror has pinned anything else at the end that has these snapshots."""
    return set(guids) != set(own(mirror, listed))


def own(mirror: Mirror, listed: Iterable[Snapshot]) -> list[str]:
    """What the mirror has pinned at an end."""
    return [one.guid for one in listed if mirror.id in one.pinned]


def replace(
    mirror: Mirror, driver: Driver, listed: Sequence[Snapshot], guids: Sequence[str]
) -> None:
    """Make these the mirror's pins at one end; listed: what that end has."""
    if differs(mirror, listed, guids):
        with _locked(mirror, driver):
            driver.pin(mirror.id, guids)


def settle(mirror: Mirror, here: Sequence[Snapshot], there: Sequence[Snapshot]) -> None:
    """Correct the pins at both ends; a failure is an event, and the next update tries again."""
    with mirror.failure_noted(_FAILED):
        found = wanted(mirror, here, there)
        replace(mirror, mirror.destination, there, found.destination)
        replace(mirror, mirror.source, here, found.source)


def renew(mirror: Mirror) -> None:
    """The same after a verb that is done and recorded."""
    with mirror.failure_noted(_FAILED):
        settle(mirror, mirror.source.snapshots(), mirror.destination.snapshots())


def add(mirror: Mirror, drivers: Iterable[Driver], guids: Collection[str | None]) -> None:
    """Pin these in addition to the present pins: the mirror is about to continue from them."""
    for driver in drivers:
        with mirror.failure_noted(_FAILED):
            listed = driver.snapshots()
            more = [one.guid for one in listed if one.guid in guids]
            both = list(dict.fromkeys([*own(mirror, listed), *more]))
            replace(mirror, driver, listed, both[-GUIDS_MAX:])


def give_up(mirror: Mirror, driver: Driver) -> str:
    """Remove the mirror's pins at an end; returns why that failed, as a sentence, or ""."""
    try:
        if driver.facts().role is not Role.ABSENT:
            remove(mirror, driver, mirror.id)
            return ""
        why = "the volume is missing"
    except (MirrordError, OSError) as error:
        why = one_line(error)
    return left_pinned(str(driver), mirror.id, why)


def left_pinned(where: str, mirror_id: str, why: str) -> str:
    """The message about pins that could not be removed."""
    return (
        f"Snapshots at {where} may still be pinned ({why}): 'mirrord prune OTHER --unpin "
        f"{mirror_id}', where OTHER is another mirror of that volume, removes the pins."
    )


def remove(mirror: Mirror, driver: Driver, mirror_id: str) -> int:
    """Remove the pins of any mirror at one end; returns the number of snapshots."""
    count = sum(mirror_id in one.pinned for one in driver.snapshots())
    with _locked(mirror, driver):
        driver.pin(mirror_id, [])
    return count


def _locked(mirror: Mirror, driver: Driver) -> AbstractContextManager[None]:
    return mirror.source_locked() if driver is mirror.source else nullcontext()
