"""How a thread waits for another host: see `mirrord.system.waiting`."""

from mirrord.system.waiting import (
    HURRY_S,
    LOOK_S,
    acquire,
    at_most,
    heeding,
    hurried,
    hurry_s,
    look,
    once,
    one_try,
    sleep_s,
    until,
)

__all__ = [
    "HURRY_S",
    "LOOK_S",
    "acquire",
    "at_most",
    "heeding",
    "hurried",
    "hurry_s",
    "look",
    "once",
    "one_try",
    "sleep_s",
    "until",
]
