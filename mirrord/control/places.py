"""Checks of the two ends of a new mirror."""

from __future__ import annotations

import os

from mirrord.core.errors import Refused
from mirrord.core.model import Role, VolumeFacts
from mirrord.drivers.contract import Driver
from mirrord.drivers.refusals import not_empty, other_mirror, same_volume
from mirrord.engine.mirror import Mirror, check_source


def check_places(mirror: Mirror) -> tuple[str, ...]:
    """Check both ends of a new mirror; returns notes for the administrator."""
    notes: list[str] = []
    found: dict[str, str] = {}
    for source, destination in zip(mirror.source.drivers, mirror.destination.drivers, strict=True):
        facts = source.facts()
        check_source(facts, str(source), mirror.id)
        other = found.setdefault(facts.identity or str(source), str(source))
        if other != str(source):
            raise Refused(
                "two members are the same volume", where=str(source), why=f"so is {other}"
            )
        notes += _check_pair(facts, source, destination)
    _check_apart(mirror)
    return tuple(dict.fromkeys(notes))


def _check_apart(mirror: Mirror) -> None:
    """`Refused` when members have the same destination, or one inside another, by a link. (Names of
    datasets are not paths: definitions look at those.)
    """
    pairs = mirror.definition.pairs
    found: list[tuple[str, str, str]] = []
    for pair, driver in zip(pairs, mirror.destination.drivers, strict=True):
        host, real = pair.destination.host, driver.facts().view
        if not pair.destination.location.startswith("/") or not real:
            continue
        for other, its_host, there in found:
            inner, outer = sorted((real, there), key=len, reverse=True)
            if host == its_host and f"{inner}/".startswith(f"{outer}/"):
                raise Refused(
                    "two members have the same destination, or one is inside the other",
                    where=str(driver),
                    why=f"it is really {real}; {other} is {there}",
                )
        found.append((str(driver), host, real))


def _check_pair(source: VolumeFacts, sender: Driver, receiver: Driver) -> tuple[str, ...]:
    destination, where = receiver.facts(), str(receiver)
    if destination.role is Role.MIRROR and destination.mirror_id:
        raise other_mirror(where, destination.mirror_id)
    if destination.role is Role.MIRROR:
        raise not_empty(where, "it was left by a deleted mirror")
    if destination.identity and destination.identity == source.identity:
        raise same_volume(where)
    if destination.role is Role.LIVE:
        raise not_empty(where, "it is a live volume")
    if destination.role is Role.FOREIGN:
        raise not_empty(where, destination.notes[0])
    # (Names of datasets are not paths: definitions look at those.)
    local = not sender.remote and not receiver.remote and receiver.location.startswith("/")
    real = os.path.realpath(receiver.location) + "/"
    if local and real.startswith(os.path.realpath(source.view).rstrip("/") + "/"):
        raise Refused(
            "the destination lies inside the source",
            where=where,
            why=f"it is really {real}",
            hint="Choose a destination outside it, preferably on another disk.",
        )
    return _notes(source, destination)


def _notes(source: VolumeFacts, destination: VolumeFacts) -> tuple[str, ...]:
    # That the destination itself does not exist is as it should be.
    notes = [*source.notes, *destination.notes[: 1 if destination.parent_missing else 0]]
    if source.filesystem == destination.filesystem:
        notes.append(
            "Source and destination are on one file system: this copy does not survive the loss "
            "of that disk."
        )
    return tuple(notes)
