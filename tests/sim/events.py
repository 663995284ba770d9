"""What can happen in a story (tests/sim/story.py): events, verbs, and how each verb may fail. An
event stays what it is when others are left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Verbs by which an owner says that a live volume may be set aside, or made.
ASKED = frozenset({"break", "resync", "reverse", "restore", "resume-operation", "abort"})
_PLAIN = frozenset({"refused", "undecided", "diverged", "damaged", "not-found"})
#: How a verb may fail, by what was done to it.
EXPECTED = {
    "": _PLAIN,
    "crash": _PLAIN | {"crash"},
    "eio": _PLAIN | {"io", "transfer"},
    "enospc": _PLAIN | {"io", "no-space", "transfer"},
    "full": _PLAIN | {"no-space"},
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens. All that is random in it comes from its own seed, so that a story
    can lose other events and this one stays what it is.
    """

    kind: str
    seed: int


#: The kinds with their weights.
KINDS = {
    "write": 8,
    "verb": 12,
    "failing verb": 14,
    "verb with writers": 8,
    "daemon": 5,
    "hold": 4,
    "held write": 5,
    "release": 3,
    "lose catalogue": 2,
    "backup": 3,
    "old catalogue": 3,
    "old definition": 2,
    "swap volume": 2,
    "lose source": 1,
    "delete shown": 2,
    "full": 2,
    "room": 2,
    "calm": 6,
}
#: Likewise the verbs.
VERBS = {
    "update": 8,
    "break": 5,
    "break older": 2,
    "resync": 6,
    "reverse": 8,
    "restore": 6,
    "restore older": 3,
    "abort": 2,
    "resume-operation": 2,
    "prune": 2,
}


def events_of(seed: int, count: int) -> list[Event]:
    """The story of a seed; it ends in peace."""
    chance = random.Random(f"story {seed}")
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=count)
    return [Event(kind, chance.randrange(1 << 30)) for kind in kinds] + [Event("calm", seed)]
