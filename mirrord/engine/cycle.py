"""The cycle of an update: prepare a set, ship it (ship.py), commit it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from mirrord.catalogue.store import Catalogue, Confirmed, TransferBegin
from mirrord.core import names
from mirrord.core.errors import InvariantError
from mirrord.core.model import BlockStates, Snapshot
from mirrord.core.states import State, Verb
from mirrord.engine.members import Members
from mirrord.engine.transfer import Outcome
from mirrord.system import clock

_NAME_TRIES = 1000


class Total:
    """The totals of all transfers of one verb."""

    def __init__(self) -> None:
        self.transfers = self.stream_bytes = self.added_bytes = self.resumed_bytes = 0
        self.throttled_s = 0.0
        self.block_states: BlockStates | None = None
        #: Seconds by phase: snapshot, delta, transfer, commit, prune.
        self.phases: dict[str, float] = {}
        self.prune_refused = ""

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        started_s = clock.monotonic_s()
        try:
            yield
        finally:
            self.spent(phase, clock.monotonic_s() - started_s)

    def spent(self, phase: str, duration_s: float) -> None:
        """Add a duration to a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + duration_s

    def add(self, outcome: Outcome) -> None:
        """Add a completed transfer."""
        self.throttled_s += outcome.throttled_s
        self.block_states = outcome.states or self.block_states
        self.spent("delta", outcome.delta_s)
        self.spent("transfer", outcome.duration_s - outcome.delta_s)
        self.transfers += 1
        self.stream_bytes += outcome.stream_bytes
        self.added_bytes += outcome.added_bytes
        self.resumed_bytes += outcome.resumed_bytes


def prepare(
    verb: Verb,
    there: Collection[str],
    take: Callable[[str], Snapshot],
    catalogue: Catalogue,
    mirror_id: str,
) -> tuple[Snapshot, int]:
    """Take a snapshot of each member with `take`; returns the set, and its number. The name is
    recorded first. there: the sets that the destination has.

    A rebuilt catalogue may count from an older number, so a name may be in use: then the next one
    is tried.
    """
    name = partial(names.snapshot_name, mirror_id, clock.now_ns())
    for _ in range(_NAME_TRIES):
        arguments = catalogue.begin(mirror_id, verb.value, name=name)
        snapshot = take(arguments.name)
        if snapshot.guid not in there:
            return snapshot, arguments.sequence
        catalogue.end(mirror_id)
    raise InvariantError("no free snapshot name was found")


def commit(
    begun: TransferBegin,
    outcome: Outcome,
    total: Total,
    destination: Members,
    catalogue: Catalogue,
    mirror_id: str,
) -> None:
    """Commit a set that every member has in full, show it if wanted, and record both."""
    with total.timing("commit"):
        destination.commit(begun.id, show=begun.show)
    total.add(outcome)
    lag_ms = max(0, clock.now_ns() - begun.snapshot.taken_at_ns) // 1_000_000
    phases = {phase: round(spent_s * 1000, 1) for phase, spent_s in total.phases.items()}
    columns = outcome.columns() | {"lag_ms": lag_ms, "phases": json.dumps(phases)}
    if not begun.show:
        catalogue.finish_transfer(begun.id, "done", **columns)
        return
    catalogue.end(
        mirror_id,
        state=State.MIRRORED,
        confirmed=Confirmed(begun.snapshot.guid, begun.snapshot.taken_at_ns),
        transfer=(begun.id, "done", columns),
    )
