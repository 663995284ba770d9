"""Show state, activity and lag of one mirror or of all.

Panel: Monitoring 1

Shows state, activity and lag of all mirrors, one per line, or details of one mirror, and `reversed
since DATE` while the roles are reversed. While a live mirror is in
[semi-sync](live-modes.md#semi-sync), the column `WINDOW` shows how much acknowledged data its
secondary does not have yet, and the limit in force. The exit status is 0 even when a mirror is not
healthy: see `healthy` with `--json`. A mirror that misses its RPO is not healthy, whatever the
thresholds of its [alarms](alarms.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from mirrord.control import documents, statustext
from mirrord.control.command import Argument, Right, Service, command
from mirrord.core.errors import ConfigError, NotFound, Refused, UsageError
from mirrord.core.status import MirrorStatus, Reading, judge
from mirrord.system import clock


def _shown(found: list[MirrorStatus], arguments: Mapping[str, Any]) -> Iterable[str]:
    if arguments["name"] is not None:
        return statustext.details(found[0])
    if found:
        return statustext.table(found)
    return ["No mirrors. Create one with 'mirrord create NAME SOURCE DESTINATION'."]


def _document(found: list[MirrorStatus]) -> dict[str, Any]:
    return {"mirrors": [documents.of_status(each) for each in found]}


@command(Right.READ, text=_shown, document=_document)
def status(
    service: Service,
    name: Annotated[str | None, Argument("[NAME]", "One mirror; default: all.")] = None,
) -> list[MirrorStatus]:
    if name is not None:
        return [_one(service, name)]
    found = (_one_or_problem(service, each) for each in service.definitions.names())
    return [each for each in found if each is not None]


def _one(service: Service, name: str) -> MirrorStatus:
    from mirrord.engine import report
    from mirrord.live import reading

    try:
        return service.look(name, report.status, live=reading.status)
    except Refused as error:  # neither the catalogue nor the ends say which one is the source
        return _unread(name, f"{error} {error.hint}")


def _one_or_problem(service: Service, name: str) -> MirrorStatus | None:
    """One wrong definition must not hide the status of the others. None: deleted meanwhile."""
    try:
        return _one(service, name)
    except (ConfigError, UsageError) as error:  # UsageError: the file's name is no name
        return _unread(name, str(error))
    except NotFound:
        if name in service.definitions.names():
            raise
        return None


def _unread(name: str, problem: str) -> MirrorStatus:
    """The status of a mirror whose definition cannot be read."""
    return judge(Reading(name, problem=problem), now_ns=clock.now_ns())
