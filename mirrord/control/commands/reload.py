"""Make the daemon read all definitions again.

Panel: Daemon 2

Makes the [daemon](service.md) read its settings, schedules and definitions again; if anything is
invalid, it reports that and keeps the old ones. It is needed after editing a definition.
"""

from __future__ import annotations

from mirrord.control.command import Right, Service, command
from mirrord.core.errors import Refused
from mirrord.core.results import Result


@command(Right.ACT)
def reload(service: Service) -> Result:
    # The daemon does it itself: who comes here has none.
    raise Refused(
        "the daemon is not running",
        where=str(service.paths.run),
        hint="Commands read the definitions each time. 'systemctl restart mirrord' starts it.",
    )
