"""`qmp`: stops the virtual CPUs of a QEMU virtual machine by its QMP socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from mirrord.pausers.contract import Pauser
from mirrord.system import clock

_ANSWER_S = 5.0
_LINE_MAX = 1 << 20


class QmpPauser(Pauser):
    """argument: the path of the socket (`-qmp unix:PATH,server=on,wait=off`). It serves one client
    at a time, so two mirrors cannot pause the same machine at the same time.
    """

    def __init__(self, kind: str, argument: str) -> None:
        super().__init__(kind, argument)
        if not argument.startswith("/"):
            raise ValueError("expected the path of a QMP socket, such as qmp:/run/vm/db.qmp")
        self._socket: socket.socket | None = None
        self._rest = b""
        self._asked = 0

    def mark(self) -> str:
        """See `Pauser.mark`: each QEMU makes a socket of its own."""
        found = os.stat(self.argument)
        return f"{clock.boot_id()} {found.st_dev} {found.st_ino}"

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`."""
        try:
            if self._socket is None:
                self._connect()
        except OSError as error:
            raise self._unanswered(error) from None
        status = self._status()
        if status != "running":
            raise self.failed(
                "the virtual machine is not running",
                why=f"its status is '{status}'",
                hint="Start or continue it, or remove 'pause' while it is stopped.",
            )

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`: QEMU also waits for requests in flight."""
        self._ask("stop", timeout_s)
        if not self.is_paused():
            raise self.failed("the virtual machine was not stopped", why=self._status())

    def is_paused(self) -> bool:
        """See `Pauser.is_paused`."""
        return self._status() == "paused"

    def resume(self) -> None:
        """See `Pauser.resume`."""
        try:
            if self._socket is None:
                self._connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return  # the machine has ended
        except OSError as error:
            raise self._unanswered(error) from None
        if self.is_paused():
            self._ask("cont")

    def close(self) -> None:
        """See `Pauser.close`."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._rest = None, b""

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(self.argument)
        except OSError:
            self.close()
            raise
        self._line(clock.monotonic_s() + _ANSWER_S)  # the greeting
        self._ask("qmp_capabilities")

    def _status(self) -> str:
        found = self._ask("query-status")
        return str(found.get("status", "unknown")) if isinstance(found, dict) else "unknown"

    def _ask(self, word: str, timeout_s: float = _ANSWER_S) -> object:
        """Run a command, and return its answer; events in between are skipped, and the late answer
        of a command that was given up.
        """
        assert self._socket is not None, word
        self._asked += 1
        try:
            until_s = clock.monotonic_s() + timeout_s
            command = {"execute": word, "id": self._asked}
            self._socket.sendall(json.dumps(command).encode() + b"\n")
            while True:
                answer = self._line(until_s)
                if answer.get("id") != self._asked:
                    continue
                if "error" in answer:
                    raise self.failed(f"QEMU refused '{word}'", why=str(answer["error"]))
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise self._unanswered(error) from None

    def _line(self, until_s: float) -> dict[str, object]:
        assert self._socket is not None
        while b"\n" not in self._rest:
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError  # there is no end of events, or of the line
            self._socket.settimeout(left_s)
            data = self._socket.recv(65536)
            if not data or len(self._rest) > _LINE_MAX:
                raise ConnectionError("the connection was closed")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ConnectionError("that is no QMP server") from None
        return found if isinstance(found, dict) else {}

    def _unanswered(self, error: OSError) -> Exception:
        return self.failed(
            "the virtual machine does not answer",
            why=error.strerror or str(error) or "no answer in time",
            hint="Check that QEMU runs with '-qmp unix:PATH,server=on,wait=off', and that no other "
            "client is connected to that socket.",
        )
