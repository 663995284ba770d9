"""What the daemon does for live mirrors between commands: it restarts processes that ended, and
does what a fixed policy says.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mirrord.core.errors import MirrordError
from mirrord.core.live import LiveReading, LiveStatus, Mode
from mirrord.core.states import State
from mirrord.core.units import WINDOW, WINDOW_MAX, window_argument
from mirrord.live.mirror import LiveMirror
from mirrord.live.steering import observation_of
from mirrord.policies.fixed import POLICIES
from mirrord.policies.policy import Directive, Policy
from mirrord.system import locks

#: Longer than a command usually sets the mode; a probe that gives up is repeated.
_MODE_S = 1.0


def look_after(mirror: LiveMirror) -> None:
    """Restart what should run, and apply the policy. Does nothing while a verb is at work. What
    cannot be done now is shown by the status, and tried again.
    """
    if mirror.state is State.UNINITIALIZED or locks.holder_of(mirror.run.lock) is not None:
        return
    reading = mirror.read()
    ends = ((mirror.source, reading.source), (mirror.destination, reading.destination))
    with suppress(MirrordError):
        for end, found in ends:
            if found is not None and found.volume and not found.running:
                end.live_start("", "")
    primary = reading.primary
    if primary is None:
        return
    with suppress(MirrordError):
        mirror.set_copy_rate(mirror.primary(), primary)
        mirror.set_traffic(primary)
        directive = decided(mirror.definition.policy, reading)
        if directive is not None:
            with mirror.changing_mode(_MODE_S):
                _apply(mirror, primary, directive)


def _apply(mirror: LiveMirror, primary: LiveStatus, directive: Directive) -> None:
    policy = mirror.book.definitions.load(mirror.name).policy
    if policy != mirror.definition.policy or locks.holder_of(mirror.run.lock) is not None:
        return  # it was changed meanwhile, or a verb has begun
    if primary.answer_within_us or 0 < primary.lag_limit_bytes < primary.window_bytes:
        mirror.primary().live_answer_within(0, None)
    if not primary.merge:
        mirror.primary().live_merge(True)
    if directive.mode.value != primary.mode:
        mirror.set_mode(mirror.primary(), directive.mode)
    elif directive.mode is Mode.SEMI_SYNC and not _has_window(mirror, primary):
        mirror.set_window()


def apply_throttle(mirror: LiveMirror) -> None:
    """Let the primary copy at the rate in the definition; nothing where none answers."""
    primary = mirror.read().primary
    if primary is not None:
        mirror.set_copy_rate(mirror.primary(), primary)


def _has_window(mirror: LiveMirror, primary: LiveStatus) -> bool:
    """Whether the primary has the window of the definition, which a person may have changed."""
    wanted = window_argument(mirror.definition.window or WINDOW)
    if wanted.endswith("s"):
        # mirrord-live cuts off what is below a microsecond.
        return abs(primary.window_us - float(wanted[:-1]) * 1e6) <= 1
    return primary.window_bytes == min(int(wanted), WINDOW_MAX) and not primary.window_us


def decided(name: str, reading: LiveReading) -> Directive | None:
    """What the fixed policy of that name says; None while no primary answers, and for others, which
    `mirrord.live.steering` asks.
    """
    primary = reading.primary
    if primary is None or not primary.mode or name not in POLICIES:
        return None
    policy: Policy[Any] = POLICIES[name]
    directive, _memory = policy.decide(observation_of(primary), policy.begin())
    return directive
