"""Let clients use a live mirror by NBD.

Panel: Mirrors 11

Lets clients connect to the [live mirror](live-modes.md) by NBD, at a unix socket or at a TCP
address; the default is the socket `/run/mirrord/NAME.nbd`. An address that other hosts can reach
needs `--allow` with the addresses or networks of clients. Returns when they can connect. It may be
run several times, for several addresses, and stays in effect until `mirrord unserve NAME`, also
across restarts of the daemon and of the host. What is served is the end that is the primary, on its
host: the source, or after a break the destination. With `--foreground` the command stays, and does
`unserve` when it is ended.
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.results import Result


@command(Right.ACT, ended_by="unserve")
def serve(
    service: Service,
    name: MirrorName,
    *,
    socket: Annotated[str, Option("The unix socket; default: /run/mirrord/NAME.nbd.", "PATH")] = "",
    listen: Annotated[
        str, Option("The address and TCP port, in place of a socket.", "ADDR:PORT")
    ] = "",
    allow: Annotated[
        tuple[str, ...],
        Option("Clients that may connect over TCP; may be repeated.", "ADDR[/BITS]"),
    ] = (),
) -> Result:
    from mirrord.live import serving

    return service.look_live(
        name,
        lambda mirror: serving.serve(mirror, socket=socket, listen=listen, allowed=allow),
    )
