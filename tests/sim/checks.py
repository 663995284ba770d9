"""What must hold of every mirror, always and after each run."""

from __future__ import annotations

from mirrord.catalogue.store import Catalogue
from mirrord.core.model import Definition, Role, SnapshotKind
from tests.sim.volume import Disk, Span, digest_of
from tests.sim.world import Sim

#: Seconds by which two times may differ and be the same (the wall clock counts in nanoseconds).
_SAME_S = 1e-6

#: How an attempt may end: well, or by what the simulation does to it.
HEALTHY = frozenset({"done", "unchanged"})
EXPECTED = HEALTHY | {"crash", "transfer", "damaged", "no-space", "busy", "aborted"}


class Violation(AssertionError):
    """A rule does not hold."""


def require(holds: bool, definition: Definition, rule: str) -> None:
    """Stop the simulation where a rule does not hold."""
    if not holds:
        raise Violation(f"{definition.name}: {rule}")


class Checks:
    """The rules, over volumes and catalogue."""

    def __init__(self, sim: Sim, disk: Disk) -> None:
        self.sim = sim
        self.disk = disk
        self.made = 0

    def view(self, definition: Definition) -> Span | None:
        """The destination shows a content that the source had when a snapshot of it was taken;
        when that was, or None while it shows nothing.
        """
        self.made += 1
        destination = self.disk.volumes.get(definition.destination.location)
        if destination is None or destination.shown is None:
            return None
        require(destination.role is Role.MIRROR, definition, "the destination is not a mirror")
        source = self.disk.volumes[definition.source.location]
        span = source.spans.get(digest_of(destination.view()))
        if span is None:
            raise Violation(f"{definition.name}: the view shows what the source never was")
        return span

    def lag(self, definition: Definition, catalogue: Catalogue) -> None:
        """What the catalogue says of the lag is true: the view is the source as of then, or as of
        a later time.
        """
        span, row = self.view(definition), catalogue.mirror(definition.id)
        if row is None or row.confirmed_ns == 0:
            return
        if span is None:
            raise Violation(f"{definition.name}: confirmed, but nothing is shown")
        if span.until_s is not None:
            confirmed_s = self.sim.earliest_s(row.confirmed_ns)
            require(span.until_s + _SAME_S >= confirmed_s, definition, "the lag is a lie")

    def after(
        self,
        definition: Definition,
        catalogue: Catalogue,
        outcome: str,
        since_s: float,
        *,
        doubted: bool = False,
    ) -> None:
        """After each attempt, however it ended. since_s: a success shows the source as of then.
        doubted: pruning was refused.
        """
        row = catalogue.mirror(definition.id)
        idle = row is not None and row.quiesced and outcome == "refused"
        require(outcome in EXPECTED or idle, definition, f"an attempt ended with '{outcome}'")
        self.lag(definition, catalogue)
        if outcome not in HEALTHY:
            return
        span = self.view(definition)
        require(span is not None, definition, "a success shows nothing")
        if span is not None and span.until_s is not None:
            require(span.until_s + _SAME_S >= since_s, definition, "a success shows old content")
        self.tidy(definition, catalogue, outcome, doubted=doubted)

    def tidy(
        self, definition: Definition, catalogue: Catalogue, outcome: str, *, doubted: bool
    ) -> None:
        """Nothing is left over: no staging, no snapshot that nobody knows or that is too much."""
        source = self.disk.volumes[definition.source.location]
        destination = self.disk.volumes[definition.destination.location]
        mine = catalogue.snapshots(definition.id)
        require(not destination.staged, definition, "a staging is left over")
        require(catalogue.operation(definition.id) is None, definition, "an operation is left over")
        prefix = f"mirrord.{definition.id}."
        here = [
            guid for guid, entry in source.entries.items() if entry.snapshot.name.startswith(prefix)
        ]
        there = [
            guid
            for guid, entry in destination.entries.items()
            if entry.snapshot.kind is SnapshotKind.REFERENCE
        ]
        require(set(here) | set(there) <= mine.keys(), definition, "a snapshot is an orphan")
        for kept, keep, end in (
            (here, definition.keep_source, "source"),
            (there, definition.keep_destination, "destination"),
        ):
            if isinstance(keep, int) and not doubted:
                require(len(kept) <= keep, definition, f"the {end} keeps too many")
        if outcome == "done":  # a crash between pruning and its record is mended by the next one
            known = source.entries.keys() | destination.entries.keys()
            require(mine.keys() <= known, definition, "a record is of nothing")

    def history(self, definition: Definition, catalogue: Catalogue) -> int:
        """All transfers: whole ones only where there was no base; returns their number."""
        rows = catalogue.transfers(definition.id, limit=1_000_000)
        for row in rows:
            whole = row.base is None
            require(not whole or row.verb == "initialize", definition, "an update went whole")
            require(not whole or bool(row.full_reason), definition, "whole, without a reason")
            require(row.result != "running", definition, "a transfer runs for ever")
        return len(rows)

    def in_step(self, definition: Definition) -> None:
        """The view is the source as it is now."""
        source = self.disk.volumes[definition.source.location]
        view = self.disk.volumes[definition.destination.location].view()
        require(view == source.live, definition, "it is not in step at the end")
