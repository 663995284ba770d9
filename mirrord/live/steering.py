"""The slow loop of a live mirror whose policy changes its mode: a few times a second the policy is
told what the primary reports, and the primary what the policy says. The fast loop is the primary's
(native/live-core/src/primary/adaptive.rs), which goes on with the last directive without this one.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from mirrord.core.live import LiveReading, LiveStatus, Mode
from mirrord.core.states import State
from mirrord.core.units import WINDOW_MAX
from mirrord.drivers.live import Live
from mirrord.live.deciding import Decider
from mirrord.live.mirror import LiveMirror
from mirrord.policies.policy import Count, Directive, Observation
from mirrord.system import clock
from mirrord.system.waiting import LOOK_S

#: Between two decisions; the simulation has the same.
PERIOD_S = 0.25
#: How long to wait for a full window at a time: the end of the loop waits for that, too.
_AWAIT_S = 2.0
#: How long another process may usually take to set the mode.
_MODE_S = 15.0
#: What the primary reports while changes are tracked or copied.
_TRACKING = ("out-of-sync", "resync", "entering-sync")


def steer(
    mirror: LiveMirror,
    policy: str,
    decider: Decider,
    ending: Event,
    tell: Callable[[str], None],
    waits: Callable[[LiveStatus], None],
) -> None:
    """Apply the policy, which the decider asks, until `ending` is set. tell: is given what is wrong
    with it, "" for nothing. waits: is called while writes wait for the window of semi-sync. Raises
    when the primary cannot be reached; the decider is used again then.
    """
    while not ending.wait(PERIOD_S):
        if mirror.is_held():
            continue
        found = _primary(mirror)
        if found is None:
            tell("")
            continue
        end, primary = found
        if primary.window_full:
            waits(primary)
        if not mirror.controls(primary):
            continue
        answer = decider.decide(observation_of(primary))
        # `mirrord mode` writes the definition before it sets the mode, which is not to be undone.
        with mirror.changing_mode(_MODE_S):
            if ending.is_set() or mirror.book.definitions.load(mirror.name).policy != policy:
                return
            if answer.directive is not None and not mirror.is_held():
                with end.waiting.hurried(LOOK_S):  # both ends wait alike
                    apply(mirror, end, primary, answer.directive)
        tell(answer.problem)


def watch_window(mirror: LiveMirror, ending: Event, waits: Callable[[LiveStatus], None]) -> None:
    """The same for the policy `semi-sync`, which decides nothing: the primary says when writes
    wait. Ends when there is none, and raises when it cannot be reached, or is none any more.
    """
    found = _primary(mirror)
    while found is not None and not ending.is_set():
        end = found[0]
        with end.waiting.hurried(LOOK_S):
            if not end.live_await_full(_AWAIT_S):
                continue
        found = _primary(mirror)
        if found is not None and not mirror.is_held():
            waits(found[1])
        ending.wait(PERIOD_S)


def _primary(mirror: LiveMirror) -> tuple[Live, LiveStatus] | None:
    """The end that serves clients, and what it reports. After a break there are two: none is
    steered.
    """
    if mirror.state in (State.UNINITIALIZED, State.BROKEN_OFF):
        return None
    for end in (mirror.source, mirror.destination):
        with end.waiting.hurried(LOOK_S):
            status = end.live_status()
        if status.is_primary and status.mode:
            return end, status
    return None


def observation_of(primary: LiveStatus) -> Observation:
    """What the policy sees."""
    reading = LiveReading("", primary, None, clock.now_ns())
    return Observation(
        now_s=clock.monotonic_s(),
        mode=Mode.ASYNC if _is_copying(primary) else Mode(primary.mode),
        connected=primary.connected,
        in_sync=primary.in_sync,
        lag_s=reading.lag_s,
        mirrored_us=primary.mirrored_us,
        outstanding_bytes=primary.outstanding_bytes,
        dirty_bytes=primary.dirty_bytes,
        wall_ns=reading.read_ns,
        answered=Count(*primary.answered),
        local=Count(*primary.local),
        received=Count(*primary.received),
        oldest_us=primary.oldest_us,
        slowest_us=primary.slowest_us,
        lag_limit_bytes=primary.lag_limit_bytes,
        buffered_bytes=primary.buffered_bytes,
        peak_buffered_bytes=primary.buffered_bytes,
    )


def apply(mirror: LiveMirror, end: Live, primary: LiveStatus, directive: Directive) -> None:
    """Tell the primary what differs from what it reports."""
    if directive.mode is Mode.SEMI_SYNC:
        limit = WINDOW_MAX if directive.max_lag_bytes is None else directive.max_lag_bytes
        limit = min(int(limit), WINDOW_MAX)
        if primary.window_us or primary.window_bytes != limit:
            mirror.set_window(str(limit))
        within_us = round(directive.answer_within_us or 0)
        lag_bytes = None if directive.lag_bytes is None else int(directive.lag_bytes)
        is_other = lag_bytes not in (None, primary.lag_limit_bytes)
        if is_other or within_us != primary.answer_within_us:
            end.live_answer_within(within_us, lag_bytes)
        if directive.merge != primary.merge:
            end.live_merge(directive.merge)
    mode = directive.mode
    is_tracking = primary.state in _TRACKING and primary.connected
    if mode is Mode.ASYNC and directive.copy and is_tracking:
        # In mode async a copy ends in sync, which is left at once: clients who never pause would
        # have to be caught in between. In this mode it ends in semi-sync, by itself.
        mode = Mode.SEMI_SYNC
    if mode.value != primary.mode:
        end.live_mode(mode)


def _is_copying(primary: LiveStatus) -> bool:
    """What the primary does is tracking, though its mode says how that ends."""
    return primary.mode == Mode.SEMI_SYNC.value and primary.state in _TRACKING
