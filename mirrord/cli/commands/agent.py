"""Serve this host's volumes to another host (docs/hosts.md).

Panel: Hosts 2

A mirrord on another host starts it here over SSH; it serves this host's volumes to that host. It is
used in `authorized_keys` as a forced command ([hosts.md](hosts.md)). With `--allow
receive=/FOLDER` and `--allow send=/FOLDER` the peer may use only these folders
([security.md](security.md)), with `--allow pause=UNIT` it may
[pause](consistency-groups.md#an-example-two-hosts) that application. With `--listen ADDRESS:PORT`
it serves peers over TLS instead, each as its file in `peers.d` allows; with `--listen /PATH` it
serves them on this unix socket, within `--allow`.
"""

from __future__ import annotations

import typer

_ALLOW = typer.Option(
    [],
    "--allow",
    metavar="VERB=FOLDER",
    help="The peer may only receive=FOLDER (keep copies in it), send=FOLDER (read volumes in it) "
    "or pause=UNIT; may be repeated. A FOLDER is an absolute path or a ZFS dataset. Without "
    "--allow the peer may do what the user may, except pause.",
)


def agent(
    allow: list[str] = _ALLOW,
    append_only: bool = typer.Option(
        False, "--append-only", help="Committed data cannot be deleted or rolled back."
    ),
    data_ports: str = typer.Option(
        "",
        "--data-ports",
        metavar="LOW-HIGH",
        help="Ports of the data channel; 'none' disables it.",
    ),
    listen: str = typer.Option(
        "",
        "--listen",
        metavar="ADDRESS:PORT|/SOCKET",
        help="Serve peers over TLS at this address, each with the rights in its file in peers.d "
        "(mirrord pki issue); or at this unix socket, with the rights of --allow.",
    ),
    compress: str = typer.Option(
        "auto", "--compress", help="Compression of what this end sends: auto, off, or 1 to 19."
    ),
) -> None:
    from mirrord.daemon.build import serve_agent

    serve_agent(
        allow, append_only=append_only, data_ports=data_ports, compress=compress, listen=listen
    )
