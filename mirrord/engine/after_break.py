"""How a mirror that was broken off is mirrored again, as messages say it."""

from __future__ import annotations

import shlex

from mirrord.config.members import NESTED
from mirrord.config.writing import as_written
from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, VolumeFacts
from mirrord.engine.mirror import Mirror


def to_mirror_again(mirror: Mirror) -> str:
    """After a break: the commands that mirror again, in either direction."""
    name = mirror.name
    try:
        facts = mirror.destination.facts()
    except (MirrordError, OSError):
        facts = None
    if facts is not None and facts.role is Role.ABSENT:
        return (
            f"To mirror again: mount what is missing, then 'mirrord resync {name}' (source wins) "
            f"or 'mirrord reverse {name}' (destination becomes the source). If it is lost: "
            f"'mirrord delete {name}', then create a mirror with another destination."
        )
    if facts is None or not facts.fixed:
        return (
            f"To mirror again: 'mirrord resync {name}' (source wins) or "
            f"'mirrord reverse {name}' (destination becomes the source)."
        )
    return (
        f"To mirror again: rename {facts.view}, then 'mirrord resync {name}' (source wins); or "
        f"{new_mirror(mirror, facts)} (destination becomes the source)."
    )


def new_mirror(mirror: Mirror, facts: VolumeFacts) -> str:
    """The commands that mirror the live destination to a new place. facts: of the destination."""
    end = mirror.definition.destination
    nested = end.kind == NESTED
    words = as_written(end._replace(location=facts.view), nested=nested)
    options = " --nested" if nested else ""
    return (
        f"'mirrord delete {mirror.name}', then 'mirrord create {mirror.name} {shlex.quote(words)} "
        f"NEW-DESTINATION{options}'"
    )
