"""The status of a live mirror: what both ends report. Changes nothing."""

from __future__ import annotations

from dataclasses import replace

from mirrord.core.live import LiveReading, LiveStatus, Mode
from mirrord.core.policies import FIXED
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.states import State
from mirrord.core.status import MemberPair, MirrorStatus, Reading, RunningVerb, judge
from mirrord.drivers.live import Live
from mirrord.engine import direction
from mirrord.engine.failures import UPDATE
from mirrord.live.mirror import LiveMirror
from mirrord.system import clock, locks


def status(mirror: LiveMirror) -> MirrorStatus:
    """The status of a mirror now. Never raises for an end that does not answer."""
    holder = locks.holder_of(mirror.run.lock)
    running = None
    if holder is not None:
        running = RunningVerb(holder.pid, holder.purpose, mirror.run.read())
    reading = read(mirror, busy=holder is not None)
    return judge(reading, now_ns=clock.now_ns(), running=running)


def read(mirror: LiveMirror, *, busy: bool) -> Reading:
    """What both ends report. busy: a verb is changing them."""
    mirror, found = _facing(mirror, mirror.read())
    state = mirror.state_by(found)
    failures = mirror.catalogue.failures(mirror.id)
    faults = [] if busy or state is State.UNINITIALIZED else _faults(mirror, found, state)
    faults += [
        Finding(
            AlarmKind.FAILURE if one.kind == UPDATE else AlarmKind.VERB,
            Level.ERROR,
            one.text(mirror.name),
        )
        for one in failures
    ]
    lag_s = found.lag_s
    source, destination = str(mirror.source), str(mirror.destination)
    return Reading(
        name=mirror.name,
        id=mirror.id,
        source=source,
        destination=destination,
        members=(MemberPair("", source, destination),),
        state=state,
        confirmed_ns=0 if lag_s is None else found.read_ns - round(lag_s * 1e9),
        rpo_s=mirror.definition.promise.rpo_s,
        reversed_since_ns=direction.reversed_since_ns(mirror.catalogue, mirror.definition),
        view=mirror.destination.location,
        faults=tuple(faults),
        failures=tuple(failures),
        live=found,
    )


def _facing(mirror: LiveMirror, found: LiveReading) -> tuple[LiveMirror, LiveReading]:
    """The mirror and its ends in the direction that both report, which the catalogue does not have
    when another host has changed the roles.
    """
    if not found.is_turned:
        return mirror, found
    definition = mirror.book.definitions.load(mirror.name, mirror.definition.destination_site)
    turned = replace(
        mirror, definition=definition, source=mirror.destination, destination=mirror.source
    )
    return turned, found._replace(source=found.destination, destination=found.source)


def _faults(mirror: LiveMirror, found: LiveReading, state: State) -> list[Finding]:
    faults = [
        *_faults_of(mirror.source, found.source, AlarmKind.SOURCE),
        *_faults_of(mirror.destination, found.destination, AlarmKind.DESTINATION),
    ]
    primary = found.primary
    if primary is None or state is not State.MIRRORED:
        return faults
    if primary.window_full:
        faults.append(full_window(primary))
    elif primary.is_semi_sync and primary.connected:
        pass
    elif (
        not primary.in_sync
        and not primary.is_semi_sync
        and _wanted(mirror, primary) is not Mode.ASYNC
    ):
        since = f" since {clock.format_moment(primary.since * 10**9)}" if primary.since else ""
        why = f": {primary.reason}" if primary.reason else ""
        text = f"the ends are out of sync{since}{why}"
        if primary.state == "resync":
            text = f"the ends are out of sync{since}; the replica is being brought up to date"
        faults.append(Finding(AlarmKind.SYNC, Level.ERROR, text))
    elif not primary.connected:
        what = f"{primary.state}: {primary.reason}" if primary.reason else primary.state
        text = f"the replica is not connected ({what})"
        faults.append(Finding(AlarmKind.SYNC, Level.WARNING, text))
    return faults


def full_window(primary: LiveStatus) -> Finding:
    """That its clients wait for the replica."""
    text = "writes wait: the replica is as far behind as semi-sync allows"
    if not primary.is_semi_sync:
        text = "writes wait until the replica is brought up to date"
    why = f" ({primary.reason})" if primary.reason else ""
    return Finding(AlarmKind.SYNC, Level.ERROR, f"{text}{why}")


def _wanted(mirror: LiveMirror, primary: LiveStatus) -> Mode:
    """The mode that its policy wants. What another than a fixed one has decided is no fault, nor is
    what another host has set.
    """
    policy = mirror.definition.policy
    is_ours = policy in FIXED and mirror.controls(primary)
    return Mode(policy if is_ours else primary.mode or Mode.SYNC)


def _faults_of(end: Live, status: LiveStatus | None, kind: AlarmKind) -> list[Finding]:
    if status is None:
        return [Finding(kind, Level.ERROR, f"{end} cannot be reached")]
    if not status.volume:
        what = status.problem or "the records of the mirror are missing"
        return [Finding(kind, Level.ERROR, f"{end}: {what}")]
    if not status.running:
        return [Finding(kind, Level.ERROR, f"{end}: {status.problem}")]
    if status.state == "failed":
        return [Finding(kind, Level.ERROR, f"{end}: {status.reason}")]
    return []
