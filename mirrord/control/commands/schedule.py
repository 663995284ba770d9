"""Show schedules and the times of the next runs (docs/schedules.md).

Panel: Daemon 3

`mirrord schedule next NAME` shows the next times at which a mirror runs, and why. `mirrord schedule
list` lists the named schedules: those of `schedules.d/` and the presets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.control.documents import of_schedule
from mirrord.core.reports import NamedSchedule, NextRuns
from mirrord.system.explain import explained


def _times(found: NextRuns, _arguments: Mapping[str, Any]) -> Iterator[str]:
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    if found.note:
        yield f"'{found.name}': {found.note}."
    zone = ZoneInfo(found.zone)
    for each in found.times:
        moment = datetime.fromtimestamp(each.at_ns / 1e9, UTC).astimezone(zone)
        yield f"{moment:%a %Y-%m-%d %H:%M:%S %Z}  {each.why}"


def _named(found: list[NamedSchedule], _arguments: Mapping[str, Any]) -> Iterator[str]:
    width = max(len(each.name) for each in found)
    for each in found:
        parts = [" or ".join(each.run)]
        parts += [f"in {', '.join(each.windows)}"] if each.windows else []
        parts += [f"not in {', '.join(each.blackouts)}"] if each.blackouts else []
        own = "" if each.origin == "mirrord" else f"  ({each.origin})"
        yield f"{each.name:{width}}  {', '.join(parts)}: {each.description}{own}"


def _document(found: list[NamedSchedule]) -> dict[str, Any]:
    return {"schedules": [of_schedule(each) for each in found]}


@command(Right.READ, words="schedule next", text=_times)
def schedule_next(
    service: Service,
    name: MirrorName,
    *,
    # Who may only look could keep the service at work for as long as they like otherwise.
    count: Annotated[
        int, Option("Number of runs to show.", flags=("--count", "-n"), most=1000)
    ] = 10,
) -> NextRuns:
    """Show when a mirror runs next, and why."""
    from mirrord.control import timing

    return service.look(
        name, lambda mirror: timing.next_times(mirror, service.paths.schedules, count=count)
    )


@command(Right.READ, words="schedule list", text=_named, document=_document)
def schedules(service: Service) -> list[NamedSchedule]:
    """List the named schedules; a definition uses one with `schedule = "hourly"`."""
    from mirrord.control import timing

    with explained():
        return timing.named(service.paths.schedules)
