"""Bugs to put into the coordinator, the guard, the commit or recovery, so that it is known that the
rules can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Snapshot
from mirrord.core.pause import Resumed
from mirrord.core.sets import together
from mirrord.engine import pausing, recovery
from mirrord.engine.members import Members
from mirrord.pausers import guard, session
from tests.sim.groups.pauses import Guard


class Bug(NamedTuple):
    """A bug, by what a release note would say of it. rule: what the violation says. seed: of turns
    that meet it.
    """

    name: str
    rule: str
    put: Callable[[pytest.MonkeyPatch], None]
    seed: int = 0


_pause, _resume = pausing._Guards.pause, pausing._Guards.resume
_hold = guard._Pause.hold


def _resume_early(guards: pausing._Guards) -> None:
    """Resume before the snapshots are taken, and never again."""
    _pause(guards)
    for _, one in guards._started():
        one.ask_resume()
        one.__dict__["ask_resume"] = lambda: None


def _take_unconfirmed(guards: pausing._Guards) -> None:
    """Do not wait until all have confirmed."""
    guards._until_s = float("inf")
    for _, one in guards._started():
        one.ask_pause()


def _late_confirmation(guards: pausing._Guards) -> None:
    for host, one in guards._started():
        host.note(one.paused())
    _resume(guards)


def _skip_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pausing._Guards, "pause", _take_unconfirmed)
    patch.setattr(pausing._Guards, "resume", _late_confirmation)


def _ignore_expiry(one: Guard) -> Resumed:
    found: dict[str, Any] = one._answer("resumed", 90.0)
    return Resumed(found["pause_s"], found["resume_s"], found["problems"])


def _ignore_lost_hosts(guards: pausing._Guards) -> None:
    for _, one in guards._started():
        one.ask_resume()
    for host, one in guards._started():
        with suppress(MirrordError):
            one.resumed()
        host.times = {text: [0.0] * 4 for text in host.times}


def _hold_for_ever(pause: guard._Pause) -> dict[str, object]:
    pause._max_s = 1e9
    return _hold(pause)


def _show_at_once(members: Members, transfer_id: str, *, show: bool) -> Snapshot:
    return together([one.commit(transfer_id, show=show) for one in members.drivers])


def _of(target: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(target, name, value)


BUGS = (
    Bug(
        "everything is resumed before the last snapshot",
        "no prefix",
        _of(pausing._Guards, "pause", _resume_early),
    ),
    Bug(
        "snapshots are taken before all hosts have confirmed",
        "no prefix",
        _skip_confirmation,
    ),
    Bug(
        "a pause that has expired counts",
        "an aborted set was transferred",
        _of(session.Guard, "resumed", _ignore_expiry),
    ),
    Bug(
        "a host that does not answer counts",
        "an aborted set was transferred",
        _of(pausing._Guards, "resume", _ignore_lost_hosts),
    ),
    Bug(
        "a guard waits for its coordinator for ever",
        "paused for too long",
        _of(guard._Pause, "hold", _hold_for_ever),
    ),
    Bug(
        "the snapshots of an aborted set are left",
        "snapshots are left over",
        _of(recovery, "_drop_snapshot", lambda *_words, **_named: True),
    ),
    Bug(
        "a member shows a set that the others do not have",
        "which others lack",
        _of(Members, "commit", _show_at_once),
    ),
)
