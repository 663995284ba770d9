"""What the services of one process share: a daemon has one service for each of its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mirrord.drivers.registry import Drivers
from mirrord.engine.fanout import Fanout
from mirrord.link.links import Links


class Shared:
    """Made by whoever makes the services; a service that was given none has one of its own."""

    def __init__(self) -> None:
        self.together = Fanout()
        #: Of those who write to the catalogue.
        self.turn = threading.Lock()
        self.links = Links()
        self.drivers = Drivers()
        #: Raises when the state folder is no longer the one that this process has locked.
        self.check_state: Callable[[], None] = lambda: None
