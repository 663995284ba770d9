"""Take control of a mirror from another host.

Panel: Failover and failback 7

Makes this host the controller of a mirror that another host controlled
([who controls a mirror](failover.md#who-controls-a-mirror)). Both ends refuse the other host from
then on. The plan is shown first. For a destination on another host it needs the right to remove.

`--source SITE` only records which site is the source, when neither the catalogue nor the two ends
show it: the catalogue was lost, there is no relationship record, and both volumes are writable. It
is refused when the ends contradict it. No data is transferred.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import MirrorName, Option, Right, Service, Yes, command
from mirrord.core.results import Result
from mirrord.core.states import Verb


@command(Right.ACT)
def takeover(service: Service, name: MirrorName, *, yes: Yes = False) -> Result:
    """Give --source if neither the catalogue nor the ends record which site is the source."""
    from mirrord.engine import relation

    return service.verb(Verb.TAKEOVER, name, lambda mirror: relation.take_over(mirror, yes=yes))


@command(Right.ACT, when="source")
def choose_source(
    service: Service,
    name: MirrorName,
    source: Annotated[str, Option("Only set which site is the source.", "SITE")],
) -> Result:
    from mirrord.control import adopting

    return adopting.choose_source(service, name, source)
