"""Notification of alarms: a program, a web address (docs/alarms.md)."""

from __future__ import annotations

import http.client
import json
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from mirrord.config.host import AlarmTargets
from mirrord.core.errors import MirrordError
from mirrord.core.records import AlarmKind, Level
from mirrord.daemon.journal import say
from mirrord.system import command


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


_OPENER = urllib.request.build_opener(_NoRedirect)


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
        with _OPENER.open(request, timeout=targets.timeout_s) as response:
            response.read(1024)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The address may hold a secret, and some errors name it: only its host goes into the log.
        host = urllib.parse.urlsplit(targets.webhook).hostname
        why = str(error) if isinstance(error, OSError) else type(error).__name__
        say("warning", f"the alarm could not be posted to {host}: {why}")
