"""What the daemon reads of a mirror: its definition, catalogue and ends. In a worker's thread."""

from __future__ import annotations

from typing import NamedTuple

from mirrord.config.host import check_links
from mirrord.config.host import load as load_host
from mirrord.config.schedules import Schedules
from mirrord.control import timing
from mirrord.control.api import Service
from mirrord.control.commands.status import status
from mirrord.core.model import Definition
from mirrord.core.records import TransferRecord
from mirrord.core.status import Checkpoint, Reading
from mirrord.core.verification import parse_mode
from mirrord.schedules.lag import Run
from mirrord.schedules.schedule import Schedule

_HERE = "localhost"  # whose limits a transfer counts against when both ends are here


class Known(NamedTuple):
    """One mirror.

    reading: what was read of it. runs: what its last updates took. operation: a verb that a crash
    left (or that is at work), or ""; operation_ns: since when. verify: when the service verifies
    it. verified_ns: when it was last verified in that mode; 0: never.
    """

    definition: Definition
    schedule: Schedule | None
    reading: Reading
    runs: list[Run]
    operation: str
    operation_ns: int
    verify: Schedule | None = None
    verified_ns: int = 0


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
    if definition.is_live:
        from mirrord.live.supervise import look_after

        service.look_live(definition.name, look_after)
    [found] = service.run(status(definition.name))
    definition = service.definitions.load(definition.name)  # the probe may have found its direction
    schedule = schedules.of(definition)
    runs: list[Run] = []
    if schedule is not None and schedule.lag_s is not None:
        runs = service.look(definition.name, timing.past_runs)
    operation = service.catalogue.operation(definition.id)
    left = (operation.verb, operation.started_ns) if operation else ("", 0)
    verify, verified_ns = schedules.of_verification(definition), 0
    if verify is not None:
        mode, _ = parse_mode(definition.verify.mode)
        done = service.catalogue.verifications(definition.id)
        verified_ns = max((one.at_ns for one in done if one.mode is mode), default=0)
    return Known(definition, schedule, found.reading, runs, *left, verify, verified_ns)


def last_transfer(service: Service, mirror_id: str) -> TransferRecord | None:
    """The last transfer of a mirror. By its id: the definition may be gone, or invalid."""
    return next(iter(service.catalogue.transfers(mirror_id, limit=1)), None)


def well(reading: Reading) -> Reading:
    """A reading after an update has succeeded: nothing is wrong with the mirror."""
    return reading._replace(problem="", faults=(), failures=(), base_risk="", interrupted=None)


def updated(reading: Reading, last: TransferRecord | None) -> Reading:
    """The same after one that has transferred something."""
    return well(reading)._replace(
        last_transfer=last,
        shown=last.name if last else "",
        checkpoint=Checkpoint(),
    )


def host_of(definition: Definition) -> str:
    """The other host of a mirror: the limit of transfers per host is that link's."""
    return definition.destination.host or definition.source.host or _HERE
