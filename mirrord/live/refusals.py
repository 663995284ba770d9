"""Why a verb on a live mirror is not possible, and what to do."""

from __future__ import annotations

from mirrord.core.errors import MirrordError, Refused
from mirrord.core.live import LiveReading, LiveStatus
from mirrord.core.states import Refusal, State, Verb

#: Where those of mirrors by snapshots do not fit.
REFUSALS = {
    (State.MIRRORED, Verb.INITIALIZE): Refusal(
        "it is already initialized", "'mirrord resync {name}' copies what the destination lacks."
    ),
    (State.BROKEN_OFF, Verb.INITIALIZE): Refusal(
        "it is broken off",
        "With 'mirrord resync {name}' the source wins, with 'mirrord reverse {name}' the "
        "destination; both show first what would be lost.",
    ),
    (State.MIRRORED, Verb.RELEASE): Refusal(
        "it is not broken off", "Run 'mirrord break {name}' first."
    ),
    (State.MIRRORED, Verb.DELETE): Refusal(
        "it is not broken off",
        "Run 'mirrord break {name}' first, or 'mirrord delete {name} --yes'; both images are kept.",
    ),
}


def nobody_serves(name: str, reading: LiveReading, source: str, destination: str) -> MirrordError:
    """No end of a mirror can serve clients. source, destination: its ends."""
    ends = ((source, reading.source), (destination, reading.destination))
    hint = f"'mirrord status {name}' shows both ends."
    if reading.destination is not None and reading.destination.role == "secondary":
        hint += f" Without the source: 'mirrord break {name}'."
    elif reading.source is not None and reading.source.role in ("fenced", "primary"):
        hint += (
            f" Without the destination: 'mirrord delete {name} --yes' (both images are kept), then "
            "create the mirror again, from the source."
        )
    elif all(found is not None and not found.volume for _, found in ends):
        hint += (
            f" If another host has deleted the mirror: 'mirrord delete {name}'; both images are "
            "kept."
        )
    return Refused(
        "no end of the mirror can serve clients now",
        where=f"mirror '{name}'",
        why="; ".join(f"{end}: {_standing(found)}" for end, found in ends),
        hint=hint,
    )


def _standing(found: LiveStatus | None) -> str:
    """Why an end that is not a primary does not serve clients."""
    if found is None:
        return "it does not answer"
    if not found.volume:
        return found.problem or "the records of the mirror are missing"
    return found.role or found.problem
