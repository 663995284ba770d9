"""Health of a mirror, as findings of a kind and a level, and the alarms that follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.status import judge_lag
from mirrord.core.units import format_duration
from mirrord.system import clock

if TYPE_CHECKING:
    from mirrord.scheduler.watched import Watched


def assess(watched: Watched, expected_s: float | None) -> list[Finding]:
    """All problems now. expected_s: the longest lag that its schedule allows, None without one."""
    found = []
    if watched.standing.mirrored and (lag := _lag(watched, expected_s)):
        found.append(lag)
    if watched.error:
        level = Level.ERROR if watched.gives_up else Level.WARNING
        tail = "" if watched.gives_up else f" (attempt {watched.number}; will be retried)"
        text = f"the last run failed: {watched.error}{tail}"
        found.append(Finding(AlarmKind.FAILURE, level, text))
    moved_s, stall_s = watched.moved_s, watched.definition.promise.stall_s
    if moved_s is not None and (quiet_s := clock.monotonic_s() - moved_s) >= stall_s:
        text = f"no data has been transferred for {format_duration(quiet_s)}"
        found.append(Finding(AlarmKind.STALL, Level.ERROR, text))
    if watched.base_risk:
        found.append(Finding(AlarmKind.BASE, Level.ERROR, watched.base_risk))
    if watched.prune_refused:
        text = f"pruning was refused: {watched.prune_refused}"
        found.append(Finding(AlarmKind.PRUNE, Level.WARNING, text))
    if watched.target:
        found.append(Finding(AlarmKind.TARGET, Level.WARNING, watched.target))
    kinds = {finding.kind for finding in found}
    for fault in (*watched.inherited, *watched.faults):
        # Of several of a kind the first; of its own runs the scheduler knows more.
        if fault.kind not in kinds:
            kinds.add(fault.kind)
            found.append(fault)
    if watched.verify_error and AlarmKind.VERIFY not in kinds:
        text = f"the scheduled verification failed: {watched.verify_error}"
        found.append(Finding(AlarmKind.VERIFY, Level.WARNING, text))
    return found


def _lag(watched: Watched, expected_s: float | None) -> Finding | None:
    promise, lag_s = watched.definition.promise, watched.lag_s()
    if promise.rpo_s is not None:
        promised_s, name = promise.rpo_s, "the RPO"
    elif expected_s is not None:
        promised_s, name = expected_s, "the lag that its schedule allows"
    else:
        return None
    if lag_s is None:
        return None
    judged = judge_lag(lag_s, promised_s, warn=promise.warn, error=promise.error)
    if judged.level is None or judged.used is None:
        return None
    why = " while it is quiesced" if watched.standing.quiesced else ""
    return Finding(
        AlarmKind.LAG,
        judged.level,
        f"the lag is {format_duration(lag_s)}{why}, {100 * judged.used:.0f} % of {name} "
        f"({format_duration(promised_s)})",
    )


class Change(NamedTuple):
    """An alarm was raised (or changed its level), or is over (`finding` is the last one)."""

    finding: Finding
    raised: bool


class Alarms:
    """The active alarms of one mirror (or of the host)."""

    def __init__(self, up: Iterable[Finding] = ()) -> None:
        self.up: dict[AlarmKind, Finding] = {finding.kind: finding for finding in up}

    def update(self, findings: Iterable[Finding]) -> list[Change]:
        """The changes when exactly these findings hold now."""
        now = {finding.kind: finding for finding in findings}
        changes = [Change(old, False) for kind, old in self.up.items() if kind not in now]
        for kind, finding in now.items():
            old = self.up.get(kind)
            if old is None or old.level != finding.level:
                changes.append(Change(finding, True))
        self.up = now
        return changes
