"""What the daemon reads of a mirror: its definition and status. In a worker's thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from mirrord.config.host import check_links
from mirrord.config.host import load as load_host
from mirrord.config.schedules import Schedules
from mirrord.control import timing
from mirrord.control.api import Service
from mirrord.control.commands.status import status
from mirrord.core.model import Definition
from mirrord.core.states import State
from mirrord.engine.report import NO_CHECKPOINT
from mirrord.scheduler.health import Finding
from mirrord.scheduler.watched import Standing
from mirrord.schedules.lag import Run
from mirrord.schedules.schedule import Schedule

WELL: dict[str, Any] = {"problems": [], "healthy": True, "faults": [], "failures": []}
_HERE = "localhost"  # whose limits a transfer counts against when both ends are here


class Known(NamedTuple):
    """The definition and status of one mirror.

    row: of `status`. runs: what its last updates took. operation: a verb that a crash left (or
    that is at work), or ""; operation_ns: since when.
    """

    definition: Definition
    schedule: Schedule | None
    row: dict[str, Any]
    runs: list[Run]
    operation: str
    operation_ns: int = 0


def standing_of(row: dict[str, Any]) -> Standing:
    """What the scheduler needs, from a row of `status`."""
    return Standing(
        row["state"] == State.MIRRORED.value, bool(row["quiesced"]), int(row["confirmed_ns"])
    )


def faults_of(row: dict[str, Any]) -> tuple[Finding, ...]:
    """The faults in a row of `status`."""
    return tuple(Finding(**fault) for fault in row["faults"])


def read_all(service: Service) -> list[Known]:
    """All mirrors; `ConfigError` at the first definition that is wrong."""
    definitions = service.definitions.all()
    check_links(definitions, load_host(service.paths.host), str(service.paths.host))
    schedules = Schedules(service.paths.schedules, zone=service.host.zone)
    return [_known(service, definition, schedules) for definition in definitions]


def read_one(service: Service, name: str) -> Known | None:
    """One mirror; None when it is not defined (any more)."""
    if name not in service.definitions.names():
        return None
    schedules = Schedules(service.paths.schedules, zone=service.host.zone)
    return _known(service, service.definitions.load(name), schedules)


def _known(service: Service, definition: Definition, schedules: Schedules) -> Known:
    [row] = service.run(status(definition.name))["mirrors"]
    definition = service.definitions.load(definition.name)  # the probe may have found its direction
    schedule = schedules.of(definition)
    runs: list[Run] = []
    if schedule is not None and schedule.lag_s is not None:
        runs = service.look(definition.name, timing.past_runs)
    operation = service.catalogue.operation(definition.id)
    if operation is None:
        return Known(definition, schedule, row, runs, "")
    return Known(definition, schedule, row, runs, operation.verb, operation.started_ns)


def last_transfer(service: Service, name: str) -> dict[str, Any]:
    """What changes in the status by a successful update."""
    definition = service.definitions.load(name)
    rows = service.catalogue.transfers(definition.id, limit=1)
    last = dict(rows[0]._asdict()) if rows else None
    shown = rows[0].name if rows else ""
    return {"last_transfer": last, "shown": shown, "base_risk": "", **WELL, **NO_CHECKPOINT}


def host_of(definition: Definition) -> str:
    """The other host of a mirror: the limit of transfers per host is that link's."""
    return definition.destination.host or definition.source.host or _HERE
