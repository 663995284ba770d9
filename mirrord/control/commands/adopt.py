"""Rebuild a mirror's definition from the record at one of its ends.

Panel: Failover and failback 8

Replaces a lost controlling host: it defines the mirror on this host from the relationship record at
ENDPOINT, one of the mirror's volumes, and takes the mirror over. The record has the other end's
endpoint as the lost host used it; `--other` gives the endpoint as seen from here. `--mirror` (a
name or an id) selects the mirror if the volume belongs to several. Schedule, retention and all
other settings get their defaults, because they are not in the record.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import Argument, Option, Right, Service, Yes, command
from mirrord.core.results import Result


@command(Right.ACT)
def adopt(
    service: Service,
    endpoint: Annotated[str, Argument("ENDPOINT", "A volume that is an end of the mirror.")],
    *,
    other: Annotated[str, Option("The other end, as seen from here.", "ENDPOINT")] = "",
    mirror: Annotated[str, Option("The mirror, if the volume belongs to several.", "NAME")] = "",
    name: Annotated[str, Option("The mirror's name on this host.", "NAME")] = "",
    yes: Yes = False,
) -> Result:
    from mirrord.control import adopting

    return adopting.adopt(service, endpoint, other=other, mirror=mirror, name=name, yes=yes)
