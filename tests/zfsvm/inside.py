"""What runs in the machine: one process that has loaded mirrord once and forks for each need.

Python starts slowly under emulation; a fork does not. The host connects to its port and says in
one line of JSON, with the machine's token, what it needs: an agent, which then has the connection
as its standard input and output, or a user who does the work that the lines after it ask for.
It ends with the SSH connection that started it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import pwd
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 7000
#: What is loaded for all forks: an agent that loads its driver itself takes twice as long.
PACKAGES = (
    "mirrord.agent", "mirrord.core", "mirrord.link", "mirrord.system", "mirrord.transport",
    "mirrord.wire", "mirrord.cli", "mirrord.drivers.zfs",
    *(f"mirrord.drivers.zfs.{name}" for name in (
        "commands", "dataset", "failover", "receive", "snapshots", "stream", "tree", "verify",
        "volume",
    )),
)  # fmt: skip
#: Of packages that are not loaded as a whole: what `mirrord agent` needs of them.
MODULES = ("mirrord.cli.commands.agent", "mirrord.daemon.build", "typer._click.decorators")
#: What an agent has to load in spite of that is named in a file of this name and its number.
LATE = "/tmp/late."
_LINE_BYTES_MAX = 1 << 20


def serve(token: str) -> None:
    """Serve until the standard input ends."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(found.name)
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # what is loaded stays shared with the forks
    listener = socket.create_server(("0.0.0.0", PORT), backlog=100)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [], 5.0)
        _reap()
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            return
        if listener in ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _child(connection, token)
            connection.close()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _child(connection: socket.socket, token: str) -> None:
    """Do what the connection's first line asks for, and end."""
    status = 1
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = json.loads(_line(connection))
        if asked.pop("token") == token:
            status = (_agent if asked.pop("role") == "agent" else _user)(connection, **asked)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _line(connection: socket.socket) -> bytes:
    """The first line, and not a byte more."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(1)
        if not part or len(line) > _LINE_BYTES_MAX:
            raise ConnectionError("no request came")
        line += part
    return line


def _agent(
    connection: socket.socket, *, arguments: list[str], home: str, user: str, script: dict[str, Any]
) -> int:
    """Be an agent on this connection. script: see `Script`."""
    from mirrord.cli.main import run

    os.setsid()
    _become(user)
    os.environ.update(MIRRORD_HOME=home, SSH_CONNECTION="10.0.2.2 1 10.0.2.15 22")
    connection.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    if script:
        Script(**script).install()
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    known = set(sys.modules)
    try:
        return int(run(["agent", *arguments]) or 0)
    finally:
        _note_late(set(sys.modules) - known)


def _note_late(modules: set[str]) -> None:
    """Name the modules that the agent had to load itself, for a test to see."""
    if modules:
        with Path(f"{LATE}{os.getpid()}").open("w") as file:
            file.write(" ".join(sorted(modules)))


def _become(user: str) -> None:
    entry = pwd.getpwnam(user)
    if entry.pw_uid != os.getuid():
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


class Script:
    """What is to happen at labelled steps (`mirrord.system.steps`).

    labels: a file to which each label is written as it is reached. wanted and time: the label
    and for which passing of it; fault: "crash" (the process is killed) or an errno's name.
    """

    def __init__(self, labels: str, wanted: str = "", time: int = 1, fault: str = "crash") -> None:
        self._labels = os.open(labels, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._wanted, self._left, self._fault = wanted, time, fault

    def install(self) -> None:
        from mirrord.system import steps

        steps.observe(self._reached)

    def _reached(self, label: str) -> None:
        os.write(self._labels, label.encode() + b"\n")
        if label != self._wanted:
            return
        self._left -= 1
        if self._left == 0:
            os.write(self._labels, b"!\n")
            if self._fault == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            import errno

            raise OSError(getattr(errno, self._fault), "injected", label)


def _user(connection: socket.socket) -> int:
    """Do the work of a user, one call a line: a function of tests.zfsvm.user and its arguments."""
    from tests.zfsvm import user

    with connection.makefile("rwb") as lines:
        for line in lines:
            name, arguments = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                work: Callable[..., object] = getattr(user, name)
                answer["value"] = work(*arguments)
            except Exception:
                answer["error"] = traceback.format_exc()
            lines.write(json.dumps(answer).encode() + b"\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
