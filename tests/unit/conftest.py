"""What tests of the scheduler use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirrord.system import clock
from tests.unit.scheduling import Room
from tests.unit.ticking import Hand


@pytest.fixture
def room() -> Iterator[Room]:
    hand = Hand()
    clock.use(hand)
    made = Room()
    made.hand = made.timers.hand = hand
    yield made
    clock.use(None)
