"""The three parts of a mirror: what is agreed, its two ends, and one run of a verb.

They are no dataclasses: for those a command would load `inspect`, a fourteenth of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.core.model import Definition, Endpoint
from mirrord.core.relationship import Relationship
from mirrord.core.results import Watcher
from mirrord.drivers.contract import Driver
from mirrord.engine.fanout import Fanout
from mirrord.engine.members import Members
from mirrord.engine.progress import RunFiles
from mirrord.engine.throttle import Throttle
from mirrord.system.waiting import Waiting


class Relation:
    """The agreed facts of a mirror, and where they are stored. known: the relationship record at
    its ends, as far as it is known. controller: this host's name as a controller in such records.
    zone: the time zone that defines days, for retention rules.
    """

    __slots__ = ("catalogue", "controller", "definition", "definitions", "known", "zone")

    def __init__(
        self,
        definition: Definition,
        definitions: Definitions,
        catalogue: Catalogue,
        controller: str,
        known: Relationship | None = None,
        zone: str = "UTC",
    ) -> None:
        self.definition, self.definitions, self.catalogue = definition, definitions, catalogue
        self.controller, self.zone = controller, zone
        self.known = known or catalogue.relationship(definition.id)

    def defined(self, definition: Definition) -> Relation:
        """The same with another definition."""
        return Relation(
            definition, self.definitions, self.catalogue, self.controller, self.known, self.zone
        )


class Ends(NamedTuple):
    """The two ends in the present direction."""

    source: Members
    destination: Members

    def detach(self) -> None:
        """Detach from both."""
        try:
            self.source.detach()
        finally:
            self.destination.detach()


class RunContext:
    """One run of a verb: its files, its watcher, how it waits. pace: makes a transfer's throttle;
    None: unlimited. together: shares snapshots and reads with other mirrors of the same source;
    None: no sharing. began_s: when the present verb began (monotonic).
    """

    __slots__ = ("began_s", "pace", "run", "together", "waiting", "watcher")

    def __init__(
        self,
        run: RunFiles,
        watcher: Watcher,
        *,
        pace: Callable[[Definition], Throttle] | None = None,
        together: Fanout | None = None,
    ) -> None:
        self.run, self.watcher, self.waiting = run, watcher, Waiting()
        self.pace, self.together = pace, together
        self.began_s = 0.0


def ends_of(definition: Definition, opener: Callable[[Endpoint], Driver]) -> Ends:
    """Both ends of a definition. opener: gives the driver of an endpoint."""
    pairs = definition.pairs
    names = [pair.name for pair in pairs]
    return Ends(
        Members([opener(pair.source) for pair in pairs], names),
        Members([opener(pair.destination) for pair in pairs], names),
    )
