"""Show the active alarms, newest first.

Panel: Monitoring 7

Shows the active [alarms](alarms.md), newest first. After a clock jump `--accept-clock`
confirms that it is right; pruning by calendar rules resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mirrord.control.command import Option, Right, Service, command
from mirrord.core.errors import ConfigError, NotFound
from mirrord.core.reports import AlarmTable
from mirrord.core.results import Result
from mirrord.system.clock import format_moment
from mirrord.system.explain import explained

if TYPE_CHECKING:
    from mirrord.core.model import Definition


def _shown(found: AlarmTable, arguments: Mapping[str, Any]) -> Iterator[str]:
    if any(row.cleared_ns is None for row in found.alarms) and not found.daemon_runs:
        yield "The daemon is not running: these alarms were active when it stopped."
    if not found.alarms:
        yield "No alarms are recorded." if arguments["past"] else "No active alarms."
    for row in found.alarms:
        end = "" if row.cleared_ns is None else f", cleared {format_moment(row.cleared_ns)}"
        name = row.mirror or ("this host" if row.mirror_id is None else row.mirror_id)
        yield f"{format_moment(row.raised_ns)}  {row.level:7}  {name}  {row.kind}: {row.text}{end}"


@command(Right.READ, text=_shown)
def alarms(
    service: Service,
    *,
    past: Annotated[bool, Option("Also alarms that were cleared.", flags=("--all",))] = False,
) -> AlarmTable:
    with explained():
        names = {d.id: d.name for d in _readable(service)}
        found = service.catalogue.alarms(up=not past)
        rows = (row._replace(mirror=names.get(row.mirror_id or "", "")) for row in found)
        return AlarmTable(tuple(rows), daemon_runs=False)


@command(
    Right.ACT,
    when=Option("Accept the current system time after a clock change.", flags=("--accept-clock",)),
)
def accept_clock(service: Service) -> Result:
    with explained():
        doubt = service.catalogue.fact("clock_doubt")
        if doubt is None:
            return Result("already_accepted", "No clock change is pending.")
        service.catalogue.set_fact("clock_doubt", None)
    return Result("done", "The clock change is accepted.", {"doubt": doubt})


def _readable(service: Service) -> Iterator[Definition]:
    for name in service.definitions.names():
        try:
            yield service.definitions.load_listed(name)
        except (ConfigError, NotFound):
            continue
