"""`mirrord schedule`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from mirrord.cli.documents import of_next_runs, of_schedule
from mirrord.cli.output import Json, Name, print_json, service


def next_times(
    name: Name,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="Number of runs to show.")
    ] = 10,
    as_json: Json = False,
) -> None:
    """Show when a mirror runs next, and why."""
    with service(quiet=True) as built:
        found = built.schedule_next(name, count=count)
    if as_json:
        print_json(of_next_runs(found))
        return
    if found.note:
        print(f"'{name}': {found.note}.")
    zone = ZoneInfo(found.zone)
    for each in found.times:
        moment = datetime.fromtimestamp(each.at_ns / 1e9, UTC).astimezone(zone)
        print(f"{moment:%a %Y-%m-%d %H:%M:%S %Z}  {each.why}")


def listing(as_json: Json = False) -> None:
    """List the named schedules; a definition uses one with `schedule = "hourly"`."""
    with service(quiet=True) as built:
        found = built.schedules()
    if as_json:
        print_json({"schedules": [of_schedule(each) for each in found]})
        return
    width = max(len(each.name) for each in found)
    for each in found:
        parts = [" or ".join(each.run)]
        parts += [f"in {', '.join(each.windows)}"] if each.windows else []
        parts += [f"not in {', '.join(each.blackouts)}"] if each.blackouts else []
        own = "" if each.origin == "mirrord" else f"  ({each.origin})"
        print(f"{each.name:{width}}  {', '.join(parts)}: {each.description}{own}")


#: The commands of this group.
COMMANDS = {
    "next": next_times,
    "list": listing,
}
