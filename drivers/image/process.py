"""The process `mirrord-live` of one end: as a systemd unit where systemd runs, otherwise as a
process in a session of its own, which goes on when who started it ends.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from mirrord.core.errors import (
    MIRROR,
    Busy,
    Damaged,
    IoFailed,
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    Unreachable,
)
from mirrord.core.live import LiveStatus, VerifyStatus
from mirrord.system import clock, command, files, native, paths, sockets
from mirrord.system.processes import listener

_LABEL = "IMAGE:PROCESS"
#: Why the program ended: the code and the text (native/live/src/problem.rs).
_ERROR = re.compile(r"^error(?:\[([a-z-]+)\])?: (.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.%]+\])([:/][0-9]{1,5})?")
_ANSWER_S = 5.0
#: A change of mode or role syncs first.
_SLOW_ANSWER_S = 60.0
#: A break that takes longer is looked at in the status.
BREAK_ANSWER_S = 10.0
#: Enough on a busy machine; an error is read from its log, and ends the wait at once.
_START_S = 60.0
#: systemd itself ends a start or a stop after 90 s.
_SYSTEMCTL_S = 120.0
_STOP_S = 10.0
_POLL_S = 0.02
_LOG_BYTES_MAX = 1 << 20
#: Of its log, where it ended without an error of its own.
_LAST_LINES = 3
_SILENT = "it did not answer in time"
_SYSTEMD = Path("/run/systemd/system")
#: Where packaging/mirrord-live@.service finds the records, as root has them.
_UNITS_STATE = Path("/var/lib/mirrord")


class LiveProcess:
    """The process whose records are in `store`. where: its volume, for messages."""

    def __init__(self, store: Path, where: str) -> None:
        self._store, self._where = store, where

    # Control

    def ask(self, line: str, patience_s: float | None = None) -> Any:
        """Send a command; its answer. Raises what the process refuses, or `Unreachable`."""
        return self._ask(line, patience_s)[0]

    def recorded(self) -> bytes:
        """See `Live.live_recorded`."""
        return self._ask("recorded", None)[1]

    def _ask(self, line: str, patience_s: float | None) -> tuple[Any, bytes]:
        """The answer, and the bytes that follow it."""
        if patience_s is None:
            is_quick = line.partition(" ")[0] in ("status", "unserve", "peer")
            patience_s = _ANSWER_S if is_quick else _SLOW_ANSWER_S
        data = b""
        try:
            with closing(sockets.connected(self._store / "control", timeout_s=patience_s)) as made:
                made.sendall(line.encode() + b"\n")
                with made.makefile("rb") as answers:
                    answer = json.loads(answers.readline() or b"null")
                    if isinstance(answer, dict) and answer.get("bytes"):
                        data = answers.read(int(answer["bytes"]))
        except (OSError, ValueError) as error:
            raise Unreachable(
                "mirrord-live is not running" if self._is_absent(error) else "no answer",
                where=self._where,
                why="" if self._is_absent(error) else f"mirrord-live: {error}",
                hint=f"'mirrord status {MIRROR}' shows why; {self._store}/log has its messages.",
            ) from error
        if isinstance(answer, dict) and answer.get("ok") is False:
            raise refusal(str(answer.get("code")), str(answer.get("error")), self._where)
        return answer, data

    @staticmethod
    def _is_absent(error: Exception) -> bool:
        return isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError)

    def status(self) -> LiveStatus:
        """What the process reports; not running, with the reason, when it does not answer."""
        try:
            answer = self.ask("status")
        except Unreachable as error:
            last = self._last_line()
            return LiveStatus(problem=f"{error.what}{f': {last}' if last else ''}")
        known = {key: value for key, value in answer.items() if key in LiveStatus._fields}
        if "verify" in known:
            found = {key: known["verify"][key] for key in VerifyStatus._fields}
            ranges = tuple(map(tuple, found["differing"]))
            known["verify"] = VerifyStatus(**{**found, "differing": ranges})
        lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
        return LiveStatus(**{**known, **lists, "running": True})

    def break_off(self) -> None:
        """See `Live.live_break`."""
        if self.status().breaking:
            return
        try:
            self.ask("break", BREAK_ANSWER_S)
        except Unreachable:
            found = self.status()
            if found.break_problem and not found.breaking:
                raise refusal("", found.break_problem, self._where) from None
            if not found.breaking and not found.is_primary:
                raise

    def await_full(self, patience_s: float) -> bool:
        """See `Live.live_await_full`."""
        found = self.ask(f"await-full {patience_s * 1000:.0f}", patience_s + _ANSWER_S)
        return bool(found and found.get("full"))

    def is_running(self) -> bool:
        """Whether the process exists, even if it does not answer now."""
        return self._pid() is not None

    def _pid(self) -> int | None:
        """The process that listens at the control socket."""
        try:
            with closing(sockets.connected(self._store / "control", timeout_s=1.0)) as made:
                return listener(made)
        except OSError:
            return None

    # Start and end

    def address(self, link: str) -> str:
        """ADDRESS:PORT for an ADDRESS or ADDRESS:PORT: without a port, one that is free now."""
        host, colon, port = link.rpartition(":")
        if colon and port.isdigit() and not host.endswith(":"):
            return link
        plain = link.strip("[]")
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        with closing(socket.socket(family)) as made:
            try:
                made.bind((plain, 0))
            except OSError as error:
                raise Refused(
                    "the replica link cannot listen at this address",
                    where=f"{self._where}, {link}",
                    why=error.strerror or str(error),
                    hint="Set 'link_address' of that site in the definition (docs/live-modes.md).",
                ) from None
            number = made.getsockname()[1]
        return f"[{plain}]:{number}" if ":" in plain else f"{plain}:{number}"

    def may_listen(self, address: str) -> bool:
        """Whether no other program listens at an ADDRESS:PORT, or has a connection from there."""
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with suppress(OSError), socket.create_server((host.strip("[]"), int(port)), family=family):
            return True
        return False

    def write_config(self, lines: list[str]) -> None:
        """Write what the process is started with, unless it is there: the disk may be full."""
        path, data = self._store / "config", "".join(f"{line}\n" for line in lines).encode()
        with suppress(FileNotFoundError):
            if path.read_bytes() == data:
                return
        files.write_atomic(f"{_LABEL}:CONFIG", path, data, mode=0o600)

    def start(self, name: str, lines: list[str]) -> None:
        """Start it; returns when it answers. name: of its unit."""
        self.write_config(lines)
        log = self._store / "log"
        with suppress(FileNotFoundError):
            if log.stat().st_size > _LOG_BYTES_MAX:
                log.unlink()
        began = log.stat().st_size if log.exists() else 0
        with ExitStack() as stack:
            if has_systemd():
                self._start_unit(name)
                self._wait_started(log, began, lambda: False)
            else:
                self._wait_started(log, began, self._start_child(log, stack))

    def _wait_started(self, log: Path, began: int, has_ended: Callable[[], bool]) -> None:
        until_s = clock.monotonic_s() + _START_S
        while not self.is_running():
            is_over, said = has_ended(), ""
            with suppress(FileNotFoundError):
                said = log.read_bytes()[began:].decode(errors="replace")
            if found := last_error(said):
                error = refusal(*found, self._where)
                if found[0] == "address-in-use":
                    error.prepend_hint(_IN_USE)
                raise error
            if is_over or clock.monotonic_s() > until_s:
                last = " / ".join(said.splitlines()[-_LAST_LINES:])
                why = f"it ended: {last or 'it gave no reason'}" if is_over else _SILENT
                hint = f"{self._store}/log has its messages."
                raise IoFailed("mirrord-live did not start", where=self._where, why=why, hint=hint)
            clock.sleep_s(_POLL_S)

    def _start_child(self, log: Path, stack: ExitStack) -> Callable[[], bool]:
        """Start it; what is returned tells whether it has ended, as long as the stack is open."""
        words = [native.live_program(), "run", "--config", "config"]
        reading, writing = os.pipe()
        stack.callback(os.close, writing)
        with files.opened(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) as descriptor:
            # `setsid --fork`: it belongs to nobody, so nobody has to wait for its end. It never
            # reads its input, which nobody else has open.
            try:
                started = command.start(
                    ["setsid", "--fork", *words],
                    stdin=reading,
                    stdout=descriptor,
                    stderr=descriptor,
                    folder=self._store,
                )
            finally:
                os.close(reading)
        started.wait()
        watched = select.poll()
        watched.register(writing, 0)
        return lambda: bool(watched.poll(0))

    def _start_unit(self, name: str) -> None:
        link = paths.standard().state / "live" / "units" / name
        files.make_directory(f"{_LABEL}:UNITS", link.parent, mode=0o700)
        files.switch_link(f"{_LABEL}:UNIT", str(self._store), link)
        _systemctl("enable", name)
        _systemctl("restart", name)

    def stop(self) -> None:
        """End it, if it runs; at once when it does not answer."""
        pid = self._pid()
        if pid is None:
            return
        watched = os.pidfd_open(pid)
        try:
            with suppress(MirrordError):
                self.ask("stop")
            until_s = clock.monotonic_s() + _STOP_S
            while self._pid() == pid:
                if clock.monotonic_s() > until_s:
                    signal.pidfd_send_signal(watched, signal.SIGKILL)
                    until_s += _STOP_S
                clock.sleep_s(_POLL_S)
        except ProcessLookupError:
            return
        finally:
            os.close(watched)

    def remove(self, name: str) -> None:
        """End it for good. name: of its unit, "" when that is not known."""
        if name and has_systemd():
            _systemctl("disable", name)
            _systemctl("stop", name)
            files.remove_file(f"{_LABEL}:UNIT", paths.standard().state / "live" / "units" / name)
        self.stop()

    def _last_line(self) -> str:
        try:
            said = (self._store / "log").read_bytes()[-4096:].decode(errors="replace")
        except OSError:
            return ""
        found = last_error(said)
        return found[1] if found else ""


def has_systemd() -> bool:
    """Whether systemd manages this system, and its units are for these records: they are named
    after mirrors in the folder of root, not below a `MIRRORD_HOME`.
    """
    return _SYSTEMD.is_dir() and paths.standard().state == _UNITS_STATE


def _systemctl(verb: str, name: str) -> None:
    unit = f"mirrord-live@{name}.service"
    done = command.run(["systemctl", verb, unit], timeout_s=_SYSTEMCTL_S)
    if done.status != 0:
        raise IoFailed(
            f"'systemctl {verb} {unit}' failed",
            why=done.errors.strip().splitlines()[-1] if done.errors.strip() else "",
            hint="Install packaging/mirrord-live@.service (docs/live-modes.md), and see "
            f"'systemctl status {unit}'.",
        )


def at_path(address: str) -> Path | None:
    """The path of a unix socket's address; None for another one."""
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None


def remove_socket(address: str) -> None:
    """Remove the socket that the process left at an address; one that a program uses stays."""
    if path := at_path(address):
        sockets.remove_abandoned(path, timeout_s=_ANSWER_S)


def check_address(address: str) -> None:
    """`Refused` when it cannot be a line of the configuration; "" is none."""
    fits = not address or address.startswith("unix:/") or _ADDRESS.fullmatch(address)
    if not fits or not address.isprintable():
        raise Refused("invalid address", where=repr(address)[:200])


#: When the process does not start: of an address for clients, and of one for the other end.
_IN_USE = (
    f"Where clients were served: 'mirrord unserve {MIRROR}', then run the same command again. "
    "Of the replica link: set 'link_address' of that site in the definition."
)
#: When an image or records are lost.
_RECORDS = (
    f"If they are the primary's, 'mirrord break {MIRROR}' makes the other end the primary. If "
    f"they are the secondary's, or the mirror is broken off: 'mirrord delete {MIRROR} --yes' (both "
    "images are kept), then create the mirror again, from the image that has the data."
)
#: When the size of an image was changed: what was cut off is not tracked as different.
_SIZE = (
    f"If it is the primary's image, 'mirrord break {MIRROR}' makes the other end the primary. If "
    "it is the secondary's: restore the size ('truncate -s'), run the same command again, then "
    f"'mirrord verify {MIRROR} --repair', as what was cut off is lost."
)


#: What becomes of a problem of the program, by its code: the error, what it says, and what to do.
_PROBLEMS: dict[str, tuple[type[MirrordError], str, str]] = {
    "address-in-use": (
        Refused,
        "the address is in use by another program",
        "Give another port or path, or end that program.",
    ),
    "address-open": (
        Refused,
        "clients cannot be served at this address",
        "Say which hosts may connect: --allow ADDRESS or --allow ADDRESS/BITS.",
    ),
    "file-missing": (
        NotFound,
        "the image, or a file of its records, does not exist",
        _RECORDS,
    ),
    "image-in-use": (Busy, "the image is in use", ""),
    "image-replaced": (
        Refused,
        "another file has taken the place of the image",
        "Move the image back. If this file is a complete copy of it that was made while no process "
        "had it open: delete the file 'identity' on that host, run the same command again, then "
        f"'mirrord verify {MIRROR}'.",
    ),
    "image-resized": (Damaged, "the image cannot be mirrored", _SIZE),
    "no-space": (NoSpace, "no space is left", ""),
    "records-damaged": (Damaged, "the records of this end are damaged", _RECORDS),
    "records-replaced": (
        Refused,
        "another file has taken the place of the records",
        "Older records do not have what was written since: put the newest ones back. If these are "
        "the newest: delete the file 'identity' on that host, run the same command again, then "
        f"'mirrord verify {MIRROR}'.",
    ),
}


def refusal(code: str, why: str, where: str) -> MirrordError:
    """What the program refuses, as an error. code: "" for one of its own without a code."""
    made, what, hint = _PROBLEMS.get(code, (Refused, "mirrord-live refused this", ""))
    return made(what, where=where, why=why, hint=hint)


def last_error(said: str) -> tuple[str, str] | None:
    """The code and the text of the last error in what the program wrote."""
    found = _ERROR.findall(said)
    return found[-1] if found else None


def failure(said: str, where: str) -> MirrordError:
    """Why the program has ended with a failure."""
    found = last_error(said) or ("", (said.strip().splitlines() or ["it gave no reason"])[-1])
    return refusal(*found, where)
