"""Plays stories (tests/sim/story.py) from their beginning, and shortens those that fail."""

from __future__ import annotations

from pathlib import Path

from tests.sim.checks import Violation
from tests.sim.events import Event
from tests.sim.place import scratch
from tests.sim.story import Over, Story
from tests.sim.world import Sim


def tell(events: list[Event], folder: Path) -> Story:
    """Play a story from its beginning. Raises `Violation` with the history of it."""
    told: list[Story] = []

    def work() -> None:
        story = Story(folder)
        told.append(story)
        try:
            for event in events:
                story.play(event)
        except Over:
            story.met["given up"] += 1
            story.check()

    with Sim() as sim:
        sim.spawn(work)
        try:
            sim.run(1e9)
        except Exception as error:
            lines = told[0].history if told else []
            kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
            raise Violation("\n".join([f"{kind}{error}", *lines])) from error
    return told[0]


def fails(events: list[Event]) -> Violation | None:
    """What does not hold in a story."""
    with scratch() as folder:
        try:
            tell(events, folder)
        except Violation as violation:
            return violation
    return None


def shrink(events: list[Event]) -> list[Event]:
    """A short story that still fails: events are left out, many at once, then one by one."""
    size = max(1, len(events) // 2)
    while True:
        at = 0
        while at < len(events):
            shorter = events[:at] + events[at + size :]
            if fails(shorter) is not None:
                events = shorter
            else:
                at += size
        if size == 1:
            return events
        size //= 2
