"""`mirrord snapshots`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from mirrord.cli.documents import of_snapshots
from mirrord.cli.output import Json, Name, print_json, service, show
from mirrord.core.model import SnapshotKind
from mirrord.core.text import escaped, harmless


def snapshots(
    name: Name,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="SNAPSHOT", help="Delete this diverged snapshot."),
    ] = None,
    as_json: Json = False,
) -> None:
    with service(quiet=True) as built:
        if delete is not None:
            show(built.delete_diverged(name, delete), as_json=as_json)
            return
        found = built.snapshots(name)
    if as_json:
        print_json(of_snapshots(found))
        return
    for end, trouble in found.unreachable.items():
        print(f"the {end} cannot be reached: {trouble}")
    if not found.snapshots and not found.unreachable:
        print(f"'{name}' has no snapshots yet.")
    for entry in found.snapshots:
        taken = datetime.fromtimestamp(entry.taken_ns / 1e9, UTC).astimezone()
        copies = [copy for copy in (entry.source, entry.destination) if copy]
        ends = "both" if len(copies) == 2 else "source" if entry.source else "destination"
        marks = [word for word in ("base", "shown") if getattr(entry, word)]
        if entry.kind is not SnapshotKind.REFERENCE:
            marks.append(entry.kind.value)
        if not all(copy.intact for copy in copies):
            marks.append("CHANGED")
        shown = f"{ends:11}  {harmless(entry.name)}  {' '.join(marks)}"
        print(f"{taken:%Y-%m-%d %H:%M:%S}  {shown}".rstrip())
        for copy in copies:
            if copy.path:
                print(f"    {escaped(copy.path)}")
