"""Run the daemon: schedules, alarms, the socket (docs/service.md).

Panel: Daemon 1

Manages all mirrors until SIGTERM. It is usually run by systemd, but can also run in a terminal, and
as any user for that user's mirrors ([service.md](service.md)).
"""

from __future__ import annotations


def daemon() -> None:
    from mirrord.daemon.build import serve

    serve()
