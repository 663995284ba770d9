"""List the snapshots at both ends, or delete a diverged one.

Panel: Monitoring 3

Lists the snapshots of both ends, oldest first. Marks: `base` (the newest that both have), `shown`,
`own`, `diverged`, `CHANGED` (made writable or modified: no longer a base). With `--delete` it
deletes that diverged snapshot, at either end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.control.documents import of_snapshots
from mirrord.core.model import SnapshotKind
from mirrord.core.reports import SnapshotTable
from mirrord.core.results import Result
from mirrord.core.states import Verb
from mirrord.core.text import escaped, harmless
from mirrord.system.clock import format_moment


def _shown(found: SnapshotTable, _arguments: Mapping[str, Any]) -> Iterator[str]:
    for end, trouble in found.unreachable.items():
        yield f"the {end} cannot be reached: {trouble}"
    if not found.snapshots and not found.unreachable:
        yield f"'{found.name}' has no snapshots yet."
    for entry in found.snapshots:
        copies = [copy for copy in (entry.source, entry.destination) if copy]
        ends = "both" if len(copies) == 2 else "source" if entry.source else "destination"
        marks = [word for word in ("base", "shown") if getattr(entry, word)]
        if entry.kind is not SnapshotKind.REFERENCE:
            marks.append(entry.kind.value)
        if not all(copy.intact for copy in copies):
            marks.append("CHANGED")
        shown = f"{ends:11}  {harmless(entry.name)}  {' '.join(marks)}"
        yield f"{format_moment(entry.taken_ns)}  {shown}".rstrip()
        yield from (f"    {escaped(copy.path)}" for copy in copies if copy.path)


@command(Right.READ, text=_shown, document=of_snapshots)
def snapshots(service: Service, name: MirrorName) -> SnapshotTable:
    from mirrord.engine import listings

    return service.look(name, listings.snapshots)


@command(Right.ACT, when="snapshot")
def delete_diverged(
    service: Service,
    name: MirrorName,
    snapshot: Annotated[str, Option("Delete this diverged snapshot.", "SNAPSHOT", ("--delete",))],
) -> Result:
    from mirrord.engine import simple

    return service.verb(Verb.PRUNE, name, lambda mirror: simple.delete_diverged(mirror, snapshot))
