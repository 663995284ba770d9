"""The client of the daemon's socket: runs commands in the daemon.

HTTP over a unix socket; the answer is lines of JSON: progress, then the result.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from mirrord.control.command import Call, Command, Lock, Right
from mirrord.control.commands.abort import abort
from mirrord.core.errors import (
    Aborted,
    MirrordError,
    PermissionMissing,
    ProtocolError,
    Unreachable,
    unpack_error,
)
from mirrord.core.results import Silent, Watcher
from mirrord.core.states import Activity
from mirrord.system.processes import is_stopped, listener
from mirrord.system.sockets import connected
from mirrord.wire import values

R = TypeVar("R")
#: Part of every address; another number is another protocol.
VERSION = "v2"

_CONNECT_S = 5.0
_SILENT_S = 60.0
_LINE_BYTES_MAX = 64 << 20


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("mirrord")
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path, timeout_s=_CONNECT_S)
        if is_stopped(pid := listener(self.sock)):
            raise TimeoutError(f"its process {pid} is stopped")
        # A transfer may take days; the daemon sends a line at least every ten seconds.
        self.sock.settimeout(_SILENT_S)


class Client:
    """Runs commands in the daemon."""

    def __init__(self, act: Path, read: Path, watcher: Watcher | None = None) -> None:
        """act, read: the socket for all commands, and the read-only one."""
        self._act, self._read = act, read
        self._watcher = watcher or Silent()

    def close(self) -> None:
        """Nothing is held between calls."""

    def run(self, call: Call[R]) -> R:
        """Run a command in the daemon; raises what it raises, or `Unreachable`."""
        try:
            answer = self._exchange(call)
        except Aborted:
            # The caller interrupts: the daemon must not continue without them.
            if call.command.lock is Lock.QUEUED:
                self._exchange(abort(call.mirror))
            raise
        if isinstance(answer, MirrordError):
            raise answer
        return answer

    def _exchange(self, call: Call[R]) -> R | MirrordError:
        """The command's result, or the error that it ends with."""
        with self._request(call.command, json.dumps(values.as_json(call.arguments))) as response:
            if response.status == http.client.NOT_FOUND:
                raise ProtocolError(
                    "client and daemon are of different versions",
                    where=str(self._act),
                    hint="Restart the daemon: 'systemctl restart mirrord'.",
                )
            while line := response.readline(_LINE_BYTES_MAX):
                told = json.loads(line)
                if "error" in told:
                    return unpack_error(told["error"])
                if "result" in told:
                    found: R = values.unpack(call.command.result, told["result"])
                    return found
                self._tell(told)
        raise Unreachable(
            "the daemon stopped before it answered",
            where=str(self._act),
            hint="It resumes or cleans up when it starts again: 'systemctl status mirrord'.",
        )

    @contextmanager
    def _request(self, command: Command[..., Any], body: str) -> Iterator[http.client.HTTPResponse]:
        sockets = [self._act, self._read] if command.right is Right.READ else [self._act]
        denied: OSError | None = None
        for path in sockets:
            connection = _Connection(path)
            try:
                connection.connect()
                # A daemon of another version may answer before it has read all.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request("POST", f"/{VERSION}/{command.name}", body)
                yield connection.getresponse()
                return
            except PermissionError as error:
                denied = error
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(
                    "the daemon does not answer",
                    where=str(path),
                    why=_reason(error),
                    hint="'systemctl status mirrord' shows its state; if its process is stopped or "
                    "hangs: 'systemctl restart mirrord'.",
                ) from error
            finally:
                connection.close()
        raise PermissionMissing(
            "permission denied for this request",
            where=str(sockets[0]),
            why="no access to the socket",
            hint="Run it as root (or with sudo), or be a member of the group that mirrord.toml "
            "names.",
        ) from denied

    def _tell(self, told: dict[str, Any]) -> None:
        if "activity" in told:
            self._watcher.activity(Activity(told["activity"]), str(told["note"]))
        elif "transfer" in told:
            self._watcher.transfer(*told["transfer"])
        elif "moved" in told:
            self._watcher.moved(int(told["moved"]))


def _reason(error: OSError | http.client.HTTPException) -> str:
    """Why a request failed. What the socket itself says of a time limit is only "timed out"."""
    return f"no answer within {_SILENT_S:.0f} s" if str(error) == "timed out" else str(error)


def answers(path: Path) -> bool:
    """Whether a process listens at a socket, also one that we may not use, or that is busy: its
    queue is full, and whoever asks it learns that it does not answer.
    """
    try:
        connected(path, timeout_s=0).close()
    except (PermissionError, TimeoutError):
        return True
    except OSError:
        return False
    return True
