"""Builds what the CLI calls: a client of the daemon, or the service in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mirrord.core.errors import Aborted, UsageError
from mirrord.core.results import Watcher
from mirrord.core.units import is_port
from mirrord.system import descriptors, paths
from mirrord.system.paths import Paths

if TYPE_CHECKING:
    # Loaded where it is made: an agent, and who asks a daemon, do without the engine's imports.
    from mirrord.control.command import Runner

_SYSTEM = Paths(Path("/etc/mirrord"), Path("/var/lib/mirrord"), Path("/run/mirrord"))


def runner(watcher: Watcher | None = None) -> Runner:
    """A client of the running daemon, or else the service in this process."""
    found = _where()
    if found.act_socket.exists() or found.read_socket.exists():
        from mirrord.control.client import Client, answers

        if answers(found.act_socket):
            return Client(found.act_socket, found.read_socket, watcher)
    from mirrord.control.api import Service

    return Service(found, watcher)


def daemon_runs() -> bool:
    """Whether a daemon answers."""
    found = _where()
    if not found.act_socket.exists():
        return False
    from mirrord.control.client import answers

    return answers(found.act_socket)


def _where() -> Paths:
    """This user's folders; the system's for one who has no mirrors but may ask the daemon."""
    own = paths.standard()
    if (
        os.geteuid() == 0
        or "MIRRORD_HOME" in os.environ
        or own.mirrors.is_dir()
        or not os.access(_SYSTEM.run, os.X_OK)
    ):
        return own
    return _SYSTEM if _SYSTEM.read_socket.exists() else own


def serve() -> None:
    """Run the daemon until SIGTERM."""
    from mirrord.daemon.serve import run

    run(paths.standard())


def serve_agent(
    allow: list[str], *, append_only: bool, data_ports: str, compress: str, listen: str
) -> None:
    """Run the agent for another host until that disconnects; or, with `listen`, for all
    that connect there, until SIGTERM. `UsageError`.
    """
    from mirrord.agent.rules import parse_rules
    from mirrord.agent.run import Settings, serve_stdio

    descriptors.raise_limit()
    rules = parse_rules(allow, append_only=append_only)
    ports = _ports(data_ports)
    if compress not in ("auto", "off"):
        from mirrord.wire.compress import Chooser

        Chooser.of(compress)
    settings = Settings(rules, ports or (0, 0), ports is not None, compress)
    found = paths.standard()
    if not listen:
        serve_stdio(settings, found)
        return
    from mirrord.agent import listen as listening

    try:
        if listen.startswith("/"):
            listening.serve_unix(Path(listen), settings._replace(data=False), found)
        else:
            listening.serve_tls(
                _address(listen, ruled=bool(allow) or append_only), found, compress=compress
            )
    except Aborted:
        return  # this is how it ends


def _address(listen: str, *, ruled: bool) -> tuple[str, int]:
    if ruled:
        raise UsageError(
            "--allow and --append-only cannot be combined with --listen ADDRESS:PORT",
            hint="Each peer's rights are in its file in peers.d ('mirrord pki issue' writes it).",
        )
    host, _, port = listen.rpartition(":")
    if not is_port(port):
        raise UsageError(
            f"--listen '{listen}' is not an address and a port, nor a path",
            hint="Write it as 0.0.0.0:9745, [::]:9745 or /run/mirrord/agent.sock.",
        )
    return host.strip("[]"), int(port)


def _ports(text: str) -> tuple[int, int] | None:
    """Lowest and highest; (0, 0) for any, None for none."""
    if text in ("", "none"):
        return (0, 0) if not text else None
    low, _, high = text.partition("-")
    if not is_port(low) or not is_port(high or low):
        raise UsageError(
            f"--data-ports '{text}' is not a range of ports", hint="Write it as 49000-49010."
        )
    ports = int(low), int(high or low)
    if not 0 < ports[0] <= ports[1] < 65536:
        raise UsageError(f"--data-ports '{text}' is not a range of ports from 1 to 65535")
    return ports
