"""Show state, activity and lag of one mirror or of all.

Panel: Monitoring 1

Shows state, activity and lag of all mirrors, one per line, or details of one mirror, and `reversed
since DATE` while the roles are reversed. The exit status is 0 even when a mirror is not healthy:
see `healthy` with `--json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mirrord.control.command import Argument, Right, command
from mirrord.core.errors import ConfigError, NotFound, Refused, UsageError

if TYPE_CHECKING:
    from mirrord.control.api import Service


def _shown(found: dict[str, Any], arguments: Mapping[str, Any]) -> Iterable[str]:
    from mirrord.control import statustext

    if arguments.get("name") is not None:
        return statustext.details(found["mirrors"][0])
    if found["mirrors"]:
        return statustext.table(found["mirrors"])
    return ["No mirrors. Create one with 'mirrord create NAME SOURCE DESTINATION'."]


@command(Right.READ, text=_shown)
def status(
    service: Service,
    name: Annotated[str | None, Argument("[NAME]", "One mirror; default: all.")] = None,
) -> dict[str, Any]:
    if name is not None:
        return {"mirrors": [_one(service, name)]}
    rows = (_one_or_problem(service, each) for each in service.definitions.names())
    return {"mirrors": [row for row in rows if row is not None]}


def _one(service: Service, name: str) -> dict[str, Any]:
    from mirrord.engine import report

    try:
        return service.look(name, report.status)
    except Refused as error:  # neither the catalogue nor the ends say which one is the source
        return report.unknown(name, f"{error} {error.hint}")


def _one_or_problem(service: Service, name: str) -> dict[str, Any] | None:
    """One wrong definition must not hide the status of the others. None: deleted meanwhile."""
    from mirrord.engine import report

    try:
        return _one(service, name)
    except (ConfigError, UsageError) as error:  # UsageError: the file's name is no name
        return report.unknown(name, str(error))
    except NotFound:
        if name in service.definitions.names():
            raise
        return None
