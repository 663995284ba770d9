"""Looking at the two ends of a new mirror."""

from __future__ import annotations

import os

from mirrord.core.errors import Refused
from mirrord.core.model import Role, VolumeFacts
from mirrord.drivers.refusals import not_empty, other_mirror
from mirrord.engine.mirror import Mirror, check_source


def check_places(mirror: Mirror) -> tuple[str, ...]:
    """Look at both ends of a new mirror; returns what a person should know."""
    source = mirror.source.facts()
    check_source(source, str(mirror.source), mirror.id)
    destination = mirror.destination.facts()
    where = str(mirror.destination)
    if destination.role is Role.MIRROR and destination.mirror_id:
        raise other_mirror(where, destination.mirror_id)
    if destination.role is Role.MIRROR:
        raise not_empty(where, "it is what a mirror that was deleted left")
    if destination.identity and destination.identity == source.identity:
        raise Refused("source and destination are the same volume", where=where)
    if destination.role is Role.LIVE:
        raise not_empty(where, "it is a live volume")
    if destination.role is Role.FOREIGN:
        raise not_empty(where, destination.notes[0])
    if mirror.source.remote or mirror.destination.remote:
        return _notes(source, destination)
    if not mirror.destination.location.startswith("/"):
        return _notes(source, destination)  # a dataset's name: definitions look at those
    real = os.path.realpath(mirror.destination.location) + "/"
    if real.startswith(os.path.realpath(source.view).rstrip("/") + "/"):
        raise Refused(
            "the destination lies inside the source", where=where, why=f"it is really {real}",
            hint="Give a destination outside of it, best on another disk.",
        )  # fmt: skip
    return _notes(source, destination)


def _notes(source: VolumeFacts, destination: VolumeFacts) -> tuple[str, ...]:
    notes = [*source.notes, *(note for note in destination.notes if "not there" in note)]
    if source.filesystem == destination.filesystem:
        notes.append(
            "Source and destination are on one file system: this copy does not survive the loss "
            "of that disk."
        )
    return tuple(notes)
