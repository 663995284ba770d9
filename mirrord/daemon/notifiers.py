"""Notification of alarms: a program, a web address (docs/alarms.md)."""

from __future__ import annotations

import http.client
import io
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from mirrord.config.host import AlarmTargets
from mirrord.core.errors import MirrordError
from mirrord.core.records import AlarmKind, Level
from mirrord.daemon.journal import say
from mirrord.system import clock, command


class Notice(NamedTuple):
    """A change of an alarm, as the targets get it (docs/alarms.md). mirror: "" for the host. state:
    raised or cleared.
    """

    mirror: str
    kind: AlarmKind
    level: Level
    text: str
    state: str
    at_ns: int


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Followed, a POST becomes a GET without the alarm, and goes where the owner did not say."""

    def redirect_request(self, *_: Any) -> None:
        """Not at all: it is an error like any other."""


class _Timed(io.RawIOBase):
    """What comes from a socket until a moment: a server that sends byte by byte is not awaited."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until_s = clock.monotonic_s() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`; `TimeoutError`."""
        left_s = self._until_s - clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *words: Any, **named: Any) -> None:
        super().__init__(sock, *words, **named)
        self.fp = io.BufferedReader(_Timed(sock))


class _Timely(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, *words: Any, **named: Any) -> Any:
        """See `AbstractHTTPHandler`, which calls this for each connection."""
        made: Any = type("Connection", (http_class,), {"response_class": _Answer})
        return super().do_open(made, *words, **named)


class _Http(_Timely, urllib.request.HTTPHandler):
    pass


class _Https(_Timely, urllib.request.HTTPSHandler):
    pass


_OPENER = urllib.request.build_opener(_NoRedirect, _Http, _Https)


def deliver(targets: AlarmTargets, alarm: Notice) -> None:
    """Notify all targets; a target that fails is only logged."""
    if targets.program:
        _run(targets, alarm)
    if targets.webhook:
        _post(targets, alarm)


def _run(targets: AlarmTargets, alarm: Notice) -> None:
    environment = {
        f"MIRRORD_ALARM_{key.upper()}": str(value) for key, value in alarm._asdict().items()
    }
    try:
        done = command.run(targets.program, timeout_s=targets.timeout_s, environment=environment)
    except (MirrordError, OSError) as error:
        say("warning", f"the alarm program failed: {error}")
        return
    if done.status != 0:
        say("warning", f"the alarm program '{targets.program[0]}' {done.ending()}")


def _post(targets: AlarmTargets, alarm: Notice) -> None:
    request = urllib.request.Request(  # noqa: S310 - http and https only: config.host checks
        targets.webhook,
        data=json.dumps(alarm._asdict()).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "mirrord"},
        method="POST",
    )
    try:
        _OPENER.open(request, timeout=targets.timeout_s).close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The address may hold a secret, and some errors name it: only its host goes into the log.
        host = urllib.parse.urlsplit(targets.webhook).hostname
        why = str(error) if isinstance(error, OSError) else type(error).__name__
        if isinstance(error, urllib.error.HTTPError):
            why = f"HTTP status {error.code}"
        say("warning", f"the alarm could not be posted to {host}: {why}")
