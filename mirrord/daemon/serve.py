"""Starts and ends the daemon: lock, sockets, signals, systemd."""

from __future__ import annotations

import asyncio
import grp
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mirrord.config.host import Host
from mirrord.config.host import load as load_host
from mirrord.control.server import REQUEST_S, application
from mirrord.core.errors import Busy, ConfigError, IoFailed, MirrordError
from mirrord.core.units import counted
from mirrord.daemon import journal
from mirrord.daemon.daemon import Daemon
from mirrord.daemon.journal import say
from mirrord.system import files, locks, notify
from mirrord.system.descriptors import in_share
from mirrord.system.explain import explained
from mirrord.system.paths import Paths, local_zone
from mirrord.system.sockets import bind

_BACKLOG = 128
#: At each socket, and at most a quarter of the files that the process may open: who may only look
#: must not use up those that transfers need.
CONNECTIONS_MAX = 200
_SHARE = 4


def run(paths: Paths) -> None:
    """Serve until SIGTERM or SIGINT. `Busy` when another one has this state folder."""
    with ExitStack() as stack:
        stack.enter_context(explained())  # a full disk at the start, for one
        paths.make()
        host = load_host(paths.host, zone=local_zone)
        journal.begin(as_json=host.log_json)
        try:
            stack.enter_context(
                locks.exclusive(paths.daemon_lock, "daemon", what="this state folder")
            )
        except Busy as error:
            raise Busy(
                "the daemon is already running",
                where=str(paths.state),
                why=error.what,
                hint="'systemctl status mirrord' shows it; one daemon serves all mirrors.",
            ) from None
        locks.share_process()
        asyncio.run(_serve(paths, host))


async def _serve(paths: Paths, host: Host) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    daemon = Daemon(paths)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: daemon.background(_reload(daemon)))
    with ExitStack() as stack:
        servers = [
            _Server(application(daemon, access=access), made)
            for access, made in _sockets(stack, paths, host)
        ]
        say("info", f"begins: {paths.config}, {paths.state}")
        # A client that connects before recovery is done waits for its answer.
        serving = [loop.create_task(server.serve(sockets=[server.socket])) for server in servers]
        beginning, stopping = loop.create_task(daemon.begin()), loop.create_task(stop.wait())
        await asyncio.wait({beginning, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            beginning.result()
            count = counted(len(daemon.scheduler.mirrors), "mirror")
            notify.tell("READY=1", f"STATUS=serving {count}")
            say("info", f"ready: {count}")
        await stopping
        notify.tell("STOPPING=1")
        say("info", "stopping")
        await daemon.end()
        for server in servers:
            server.should_exit = True
        await asyncio.wait(serving, timeout=5)
        say("info", "stopped")


async def _reload(daemon: Daemon) -> None:
    notify.reloading()
    try:
        await daemon.reload()
    except MirrordError:
        return  # reload has said what is wrong
    finally:
        notify.tell("READY=1")


class _Protocol(H11Protocol):
    """HTTP with a limit of connections: more are closed at once, one that asks nothing later."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        if len(self.connections) > in_share(CONNECTIONS_MAX, _SHARE):
            transport.abort()
        self._await_request(None)

    def on_response_complete(self) -> None:
        """The next request may follow."""
        last = self.cycle
        super().on_response_complete()
        self._await_request(last)

    def _await_request(self, last: RequestResponseCycle | None) -> None:
        def end() -> None:
            if self.cycle is last:
                self.transport.abort()

        self.loop.call_later(REQUEST_S, end)


class _Server(uvicorn.Server):
    """uvicorn on a socket that is made already, and without its own handling of signals."""

    def __init__(self, app: Starlette, made: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                http=_Protocol,
                ws="none",
                timeout_graceful_shutdown=3,
                # How many clients asyncio accepts in one step. Each attempt that fails because no
                # more files can be opened is scheduled again, as a step: more than one multiply.
                backlog=1,
            )
        )
        self.socket = made

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.socket.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The daemon handles them."""
        yield


def _sockets(stack: ExitStack, paths: Paths, host: Host) -> Iterator[tuple[str, socket.socket]]:
    """Access is controlled by the permissions of the sockets' files."""
    group = _group(host.group)
    # Others may traverse the folder to the sockets, but not list it.
    open_to_others = group is not None or host.readers == "everyone"
    paths.run.chmod(0o711 if open_to_others else 0o700)
    act_mode = 0o660 if group is not None else 0o600
    read_mode = {"owner": 0o600, "group": act_mode, "everyone": 0o666}[host.readers]
    yield "act", stack.enter_context(_unix(paths.act_socket, act_mode, group))
    yield "read", stack.enter_context(_unix(paths.read_socket, read_mode, group))
    if host.metrics:
        yield "metrics", stack.enter_context(_tcp(host.metrics))


def _group(name: str) -> int | None:
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f"there is no group '{name}'",
            where="mirrord.toml",
            hint=f"Create it with 'groupadd --system {name}', or remove daemon.group.",
        ) from None


@contextmanager
def _unix(path: Path, mode: int, group: int | None) -> Iterator[socket.socket]:
    """Listen at a path. A socket left by a crash is removed: the lock proves it is unused."""
    path.unlink(missing_ok=True)
    bound = None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            bind(made, path)
            bound = files.identity(path)
        except OSError as error:
            raise IoFailed(
                "the socket cannot be created",
                where=str(path),
                why=error.strerror or str(error),
                hint="Check that the folder is there and writable.",
            ) from error
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(mode)
        made.listen(_BACKLOG)
        yield made
    finally:
        made.close()
        if files.identity(path) == bound:  # not that of another daemon
            path.unlink(missing_ok=True)


def _tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise IoFailed(
            "cannot listen on the metrics address",
            where=address,
            why=error.strerror or str(error),
            hint="daemon.metrics in mirrord.toml sets it; another program may be using it.",
        ) from error
