"""What happens to a group: turns of the coordinator, each with its faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


class Event:
    """Where something may happen: labels of steps, and what guards answer."""

    START = "START"
    BEGIN = "ENGINE:PAUSE:BEGIN"


#: With their weights.
_PLACES = {
    Event.START: 2,
    "GUARD:READY": 2,
    Event.BEGIN: 3,
    "GUARD:PAUSED": 4,
    "ENGINE:PAUSE:CONFIRMED": 4,
    "MEMORY:SNAPSHOT:TAKE": 4,
    "ENGINE:PAUSE:TAKEN": 3,
    "GUARD:RESUMED": 2,
    "ENGINE:PAUSE:RESUMED": 2,
    "MEMORY:FINISH:RECORD": 2,
    "MEMORY:COMMIT:SHOW": 2,
}
_KINDS = {
    "cut": 5,
    "hang": 3,
    "agent stops": 2,
    "guard killed": 2,
    "agent killed": 2,
    "both killed": 2,
    "slow snapshot": 3,
    "slow pause": 2,
    "slow network": 3,
    "resumed": 2,
    "clock": 1,
    "crash": 4,
    "power": 2,
}
_DELAYS_S = (0.0, 0.0, 0.001, 0.003, 0.01, 0.05, 0.2, 1.0)
_HOSTS = ("", "one", "two", "three")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens, some time after the first time that a place is reached."""

    kind: str
    host: str
    at: str
    delay_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One command of the coordinator. seed: of all that is random in it."""

    seed: int
    faults: tuple[Fault, ...]


def turns_of(seed: int, count: int) -> list[Turn]:
    """The turns of a seed."""
    chance = random.Random(f"turns {seed}")
    return [Turn(chance.randrange(1 << 30), _faults(chance)) for _ in range(count)]


def _faults(chance: random.Random) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            chance.choices(list(_KINDS), list(_KINDS.values()))[0],
            chance.choice(_HOSTS),
            chance.choices(list(_PLACES), list(_PLACES.values()))[0],
            chance.choice(_DELAYS_S),
            chance.choice((0.05, 0.3, 1.5, 5.0, 20.0)),
        )
        for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))
    )


def shorter(turns: list[Turn]) -> list[list[Turn]]:
    """The same turns without one of them, or without one fault."""
    found = [turns[:at] + turns[at + 1 :] for at in range(len(turns))]
    for at, turn in enumerate(turns):
        for one in turn.faults:
            left = tuple(fault for fault in turn.faults if fault is not one)
            found.append([*turns[:at], replace(turn, faults=left), *turns[at + 1 :]])
    return found
