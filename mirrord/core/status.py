"""The status of a mirror: what was read of it, and the judgement of that. Pure.

Everything that shows, monitors or schedules a mirror asks here: `judge` for its status, and
`judge_lag` for the lag as measured by the RPO.
"""

from typing import NamedTuple

from mirrord.core.live import LiveReading
from mirrord.core.records import AlarmKind, FailureRecord, Finding, Level, TransferRecord
from mirrord.core.results import VerbProgress
from mirrord.core.states import LIVE_VERBS, Activity, State
from mirrord.core.units import counted, format_duration
from mirrord.core.verification import Verified

#: The RPO is at risk when the transfer would end later than this share of it.
_AT_RISK = 0.9
#: Kinds of faults that are about commands, not about the ends.
_OF_COMMANDS = frozenset({AlarmKind.FAILURE, AlarmKind.VERB})


class Lag(NamedTuple):
    """The lag as measured by an objective: the RPO, or what the schedule allows.

    used: the lag divided by the objective; None without either. level: of the alarm, by the
    thresholds of the definition. at_risk: it will be exceeded, or nearly, at the rate of the
    running transfer. forecast: since when it is exceeded or when it will be, for people; or "".
    """

    used: float | None = None
    level: Level | None = None
    at_risk: bool = False
    forecast: str = ""

    @property
    def exceeded(self) -> bool:
        """Whether the objective is missed."""
        return self.used is not None and self.used >= 1


def lag_level(lag_s: float, objective_s: float, warn: int = 150, error: int = 250) -> Level | None:
    """The level of the alarm that a lag is; see `judge_lag`."""
    if 100 * lag_s < warn * objective_s:
        return None
    return Level.ERROR if 100 * lag_s >= error * objective_s else Level.WARNING


def judge_lag(
    lag_s: float | None,
    objective_s: float | None,
    *,
    left_s: float | None = None,
    warn: int = 150,
    error: int = 250,
) -> Lag:
    """Judge a lag. left_s: the remaining time of the running transfer, None when none runs. warn,
    error: percent of the objective at which alarms are raised.
    """
    if lag_s is None or not objective_s:
        return Lag()
    level, forecast = lag_level(lag_s, objective_s, warn, error), ""
    if lag_s >= objective_s:
        forecast = f"the RPO has been exceeded for {format_duration(lag_s - objective_s)}"
    elif left_s is not None and lag_s + left_s > objective_s:
        left = format_duration(objective_s - lag_s)
        forecast = f"at this rate the RPO will be exceeded in {left}"
    at_risk = left_s is not None and lag_s + left_s > _AT_RISK * objective_s
    return Lag(lag_s / objective_s, level, at_risk, forecast)


def judge_verified(
    verified: Verified | None, shown: str, max_age_s: float | None, now_ns: int
) -> Finding | None:
    """What is wrong with the last verification; None: nothing, or it is not required. shown: the
    name of the snapshot that the destination shows, "" for none.
    """
    if verified is not None and verified.differences:
        text = (
            "the destination differs from the source: "
            f"{counted(verified.differences, 'difference')} in {verified.name}"
        )
        return Finding(AlarmKind.VERIFY, Level.ERROR, text)
    if max_age_s is None or not shown:
        return None
    if verified is None:
        return Finding(AlarmKind.VERIFY, Level.WARNING, "the destination was never verified")
    age_s = (now_ns - verified.at_ns) / 1e9
    if age_s < max_age_s:
        return None
    text = (
        f"the destination was last verified {format_duration(age_s)} ago, verify_max_age is "
        f"{format_duration(max_age_s)}"
    )
    return Finding(AlarmKind.VERIFY, Level.WARNING, text)


class MemberPair(NamedTuple):
    """A pair of volumes. name: "" for the only one of a mirror. pause: what is paused while its
    snapshots are taken, "" for nothing.
    """

    name: str
    source: str
    destination: str
    pause: str = ""


class Checkpoint(NamedTuple):
    """What an interrupted transfer left. size_bytes: saved, 0 without one. of_bytes: of the whole
    transfer, None when not known. since_ns: when it was interrupted, None when not known.
    """

    size_bytes: int = 0
    of_bytes: int | None = None
    since_ns: int | None = None


class Interrupted(NamedTuple):
    """An operation that is recorded as running."""

    verb: str
    pid: int


class RunningVerb(NamedTuple):
    """The process at work on a mirror."""

    pid: int
    purpose: str
    progress: VerbProgress = VerbProgress()


class Reading(NamedTuple):
    """What was read of a mirror: its definition, the catalogue, both ends.

    state: None when the definition cannot be read, or it is not known which site is the source.
    confirmed_ns: the last moment (wall time) at which the destination is known to equal the source;
    0: it shows nothing. reversed_since_ns: since when the sites have changed roles; 0: it is not
    known since when, None: they have not. base_risk: why the next update cannot be incremental, or
    "". problem: why nothing (newer) could be read, or "". live: of a live mirror, what both ends
    report.
    """

    name: str
    id: str = ""
    source: str = ""
    destination: str = ""
    members: tuple[MemberPair, ...] = ()
    state: State | None = None
    quiesced: bool = False
    confirmed_ns: int = 0
    schedule: tuple[str, ...] = ()
    rpo_s: float | None = None
    reversed_since_ns: int | None = None
    filesystem: str = ""
    view: str = ""
    shown: str = ""
    copy: str = ""
    notes: tuple[str, ...] = ()
    faults: tuple[Finding, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    base_risk: str = ""
    checkpoint: Checkpoint = Checkpoint()
    verified: Verified | None = None
    last_transfer: TransferRecord | None = None
    interrupted: Interrupted | None = None
    problem: str = ""
    live: LiveReading | None = None


class Supervision(NamedTuple):
    """What only a daemon knows of a mirror. lag_s: by a clock that is never set. error: why its
    last run failed, or "". waiting: it is queued. next_ns: when it runs next.
    next_verify_ns: when it is verified next by its schedule.
    """

    lag_s: float | None
    alarms: tuple[Finding, ...] = ()
    error: str = ""
    waiting: bool = False
    next_ns: int | None = None
    next_verify_ns: int | None = None


class MirrorStatus(NamedTuple):
    """The status of a mirror at one moment. waiting: None without a daemon. verified_age_s: since
    the last verification, None: there was none.
    """

    reading: Reading
    activity: Activity
    problems: tuple[str, ...]
    lag_s: float | None
    lag: Lag
    running: RunningVerb | None
    checkpoint_age_s: float | None
    verified_age_s: float | None = None
    alarms: tuple[Finding, ...] = ()
    waiting: bool | None = None
    next_ns: int | None = None
    next_verify_ns: int | None = None

    @property
    def name(self) -> str:
        """The name of the mirror."""
        return self.reading.name

    @property
    def healthy(self) -> bool:
        """Whether there are no problems. A missed RPO is one."""
        return not self.problems

    @property
    def state(self) -> str:
        """The state as a word."""
        return self.reading.state.value if self.reading.state else "unknown"


def judge(
    reading: Reading,
    *,
    now_ns: int,
    running: RunningVerb | None = None,
    supervision: Supervision | None = None,
) -> MirrorStatus:
    """The status at a moment. running: the process at work then; supervision:
    None without a daemon."""
    activity = Activity.QUIESCED if reading.quiesced else Activity.IDLE
    if running is not None:
        activity = running.progress.activity
    if reading.live is not None:
        lag_s = reading.live.lag_s if reading.state is State.MIRRORED else None
    elif supervision is not None:
        lag_s = supervision.lag_s
    else:
        lag_s = max(0, now_ns - reading.confirmed_ns) / 1e9 if reading.confirmed_ns else None
    lag = judge_lag(
        lag_s if reading.state is State.MIRRORED else None,
        reading.rpo_s,
        left_s=running.progress.left_s if running else None,
    )
    checkpoint, age_s = reading.checkpoint, None
    if checkpoint.size_bytes and checkpoint.since_ns:
        age_s = max(0, now_ns - checkpoint.since_ns) / 1e9
    verified_s = None
    if reading.verified is not None:
        verified_s = max(0, now_ns - reading.verified.at_ns) / 1e9
    found = MirrorStatus(reading, activity, (), lag_s, lag, running, age_s, verified_s)
    if supervision is not None:
        found = found._replace(
            alarms=supervision.alarms,
            waiting=supervision.waiting,
            next_ns=supervision.next_ns,
            next_verify_ns=supervision.next_verify_ns,
        )
    return found._replace(problems=_problems(found, supervision.error if supervision else ""))


def _problems(found: MirrorStatus, error: str) -> tuple[str, ...]:
    """What is wrong, for people; each cause once. error: why the daemon's last run failed."""
    reading = found.reading
    if reading.problem:
        problems = [reading.problem]
    else:
        problems = [fault.text for fault in reading.faults if fault.kind not in _OF_COMMANDS]
        problems += [reading.base_risk] if reading.base_risk else []
        problems += _unfinished(reading) if found.running is None else []
        known = "\n".join(problems)
        problems += [
            failure.text(reading.name) for failure in reading.failures if failure.error not in known
        ]
    known = "\n".join(problems)
    if error and error not in known:
        problems.append(f"the last run failed: {error}")
    problems += [
        alarm.text
        for alarm in found.alarms
        if alarm.kind is not AlarmKind.FAILURE and alarm.text not in known
    ]
    if found.lag.exceeded and AlarmKind.LAG not in {alarm.kind for alarm in found.alarms}:
        problems.append(found.lag.forecast)
    return tuple(problems)


def _unfinished(reading: Reading) -> list[str]:
    """What the last transfer left behind, which the next command recovers by itself."""
    found, last = [], reading.last_transfer
    operation, error = reading.interrupted, last.error if last else ""
    if last and reading.confirmed_ns > last.started_ns:
        error = ""  # the destination was found up to date since, as after a reverse
    if operation and operation.verb not in LIVE_VERBS and not error:
        found.append(
            f"process {operation.pid} ended during {operation.verb}: the next command that changes "
            "this mirror recovers it"
        )
    if error:
        found.append(f"the last transfer failed: {error}")
    return found
