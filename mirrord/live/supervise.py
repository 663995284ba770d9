"""What the daemon does for live mirrors between commands: it restarts processes that ended,
records what became of an interrupted command, and does what a fixed policy says.
"""

from __future__ import annotations

from contextlib import suppress

from mirrord.core.errors import MirrordError
from mirrord.core.live import LiveReading, LiveStatus, Mode
from mirrord.core.policies import FIXED
from mirrord.core.states import State
from mirrord.core.units import WINDOW, WINDOW_MAX, window_argument
from mirrord.live.mirror import LiveMirror
from mirrord.system import locks

#: Longer than a command usually sets the mode; a probe that gives up is repeated.
_MODE_S = 1.0


def look_after(mirror: LiveMirror) -> None:
    """Restart what should run, record what the ends are, and apply the policy. Does nothing while a
    verb is at work. What cannot be done now is shown by the status, and tried again.
    """
    if mirror.is_held():
        return
    reading = mirror.read()
    ends = ((mirror.source, reading.source), (mirror.destination, reading.destination))
    with suppress(MirrordError):
        for end, found in ends:
            if found is not None and found.volume and not found.running:
                end.live_start("", "")
    with suppress(MirrordError):
        for end, found in ends:
            if found is not None and found.served and _is_replaced(found, reading.primary):
                end.live_unserve()
    if _record_roles(mirror, reading) or mirror.state is State.UNINITIALIZED:
        return
    primary = reading.primary
    if primary is None or not mirror.controls(primary):
        return
    with suppress(MirrordError):
        mirror.set_copy_rate(mirror.primary(), primary)
        mirror.set_traffic(primary)
        policy, is_alone = mirror.definition.policy, mirror.state_by(reading) is State.BROKEN_OFF
        # After a break `strict-sync` would refuse each write. `mirrord.live.steering` applies the
        # policies that are not fixed.
        if policy in FIXED and primary.mode and not is_alone:
            with mirror.changing_mode(_MODE_S):
                _apply(mirror, primary, Mode(policy))


def _is_replaced(end: LiveStatus, primary: LiveStatus | None) -> bool:
    """Whether an end is a primary that does not know yet of the break: the link may be cut while
    both hosts can be managed. What its clients write would be lost.
    """
    if primary is None or not end.is_primary:
        return False
    return end.volume == primary.volume and end.epoch < primary.epoch


def _record_roles(mirror: LiveMirror, reading: LiveReading) -> bool:
    """Record what the ends are, where a command was interrupted or the catalogue was lost; returns
    whether their roles are not those that this `mirror` was opened with.
    """
    with suppress(MirrordError, OSError):
        if not _is_unrecorded(mirror, reading):
            return False
        with locks.passing(mirror.run.lock, what=f"mirror '{mirror.name}'"):
            reading = mirror.read()  # a verb may have begun and ended meanwhile
            if not _is_unrecorded(mirror, reading) or (primary := reading.primary) is None:
                return False
            is_turned = primary is reading.destination
            if is_turned:
                mirror.turned()
            text = f"both ends report it: mirrored, epoch {primary.epoch}"
            mirror.record(State.MIRRORED, text)
            return is_turned
    return False


def _is_unrecorded(mirror: LiveMirror, reading: LiveReading) -> bool:
    """Whether one end mirrors the other and has had a complete copy, which the catalogue does not
    say. (After a break both ends are primaries, or one is fenced.)
    """
    primary = reading.primary
    is_turned = primary is reading.destination
    other = reading.source if is_turned else reading.destination
    if primary is None or other is None or not primary.generation:
        return False
    is_copy = other.role == "secondary" and other.state != "empty"
    one, two = ((end.mirror_id, end.volume, end.epoch) for end in (primary, other))
    is_ours = one == two and primary.mirror_id == mirror.id
    return is_copy and is_ours and (is_turned or mirror.state is not State.MIRRORED)


def _apply(mirror: LiveMirror, primary: LiveStatus, mode: Mode) -> None:
    policy = mirror.book.definitions.load(mirror.name).policy
    if policy != mirror.definition.policy or mirror.is_held():
        return  # it was changed meanwhile, or a verb has begun
    if primary.answer_within_us or 0 < primary.lag_limit_bytes < primary.window_bytes:
        mirror.primary().live_answer_within(0, None)
    if not primary.merge:
        mirror.primary().live_merge(True)
    if mode.value != primary.mode:
        mirror.set_mode(mirror.primary(), mode)
    elif mode is Mode.SEMI_SYNC and not _has_window(mirror, primary):
        mirror.set_window()


def apply_throttle(mirror: LiveMirror) -> None:
    """Let the primary copy at the rate in the definition; nothing where none answers."""
    primary = mirror.read().primary
    if primary is not None:
        mirror.set_copy_rate(mirror.primary(), primary)
        mirror.take_control(mirror.primary())


def _has_window(mirror: LiveMirror, primary: LiveStatus) -> bool:
    """Whether the primary has the window of the definition, which a person may have changed."""
    wanted = window_argument(mirror.definition.window or WINDOW)
    if wanted.endswith("s"):
        # mirrord-live cuts off what is below a microsecond.
        return abs(primary.window_us - float(wanted[:-1]) * 1e6) <= 1
    return primary.window_bytes == min(int(wanted), WINDOW_MAX) and not primary.window_us
