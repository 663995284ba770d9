"""Health of a mirror, as findings of a kind and a level, and the alarms that follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mirrord.core.model import Promise
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.status import judge_lag
from mirrord.core.units import format_duration


class View(NamedTuple):
    """What is known of a mirror at one moment; durations in seconds.

    lag_s: None when it was never up to date. expected_s: the longest gap that its schedule allows,
    None without one. error, number, gives_up: of the last
    run, when it failed. quiet_s: how long the running transfer has moved nothing, None when none
    runs. base_risk: why its next update may not be incremental, or "". target: why its lag target
    cannot be held, or "". faults: what else was found by the last look at its ends.
    verify_error: why its last scheduled verification could not be done, or "".
    """

    mirrored: bool = True
    quiesced: bool = False
    lag_s: float | None = None
    expected_s: float | None = None
    promise: Promise = Promise()
    error: str = ""
    number: int = 0
    gives_up: bool = False
    quiet_s: float | None = None
    base_risk: str = ""
    prune_refused: str = ""
    verify_error: str = ""
    target: str = ""
    faults: tuple[Finding, ...] = ()


def assess(view: View) -> list[Finding]:
    """All problems now."""
    found = []
    if view.mirrored and (lag := _lag(view)):
        found.append(lag)
    if view.error:
        level = Level.ERROR if view.gives_up else Level.WARNING
        tail = "" if view.gives_up else f" (attempt {view.number}; will be retried)"
        found.append(Finding(AlarmKind.FAILURE, level, f"the last run failed: {view.error}{tail}"))
    if view.quiet_s is not None and view.quiet_s >= view.promise.stall_s:
        found.append(
            Finding(
                AlarmKind.STALL,
                Level.ERROR,
                f"no data has been transferred for {format_duration(view.quiet_s)}",
            )
        )
    if view.base_risk:
        found.append(Finding(AlarmKind.BASE, Level.ERROR, view.base_risk))
    if view.prune_refused:
        found.append(
            Finding(AlarmKind.PRUNE, Level.WARNING, f"pruning was refused: {view.prune_refused}")
        )
    if view.target:
        found.append(Finding(AlarmKind.TARGET, Level.WARNING, view.target))
    kinds = {finding.kind for finding in found}
    for fault in view.faults:
        # Of several of a kind the first; of its own runs the scheduler knows more.
        if fault.kind not in kinds:
            kinds.add(fault.kind)
            found.append(fault)
    if view.verify_error and AlarmKind.VERIFY not in kinds:
        text = f"the scheduled verification failed: {view.verify_error}"
        found.append(Finding(AlarmKind.VERIFY, Level.WARNING, text))
    return found


def _lag(view: View) -> Finding | None:
    if view.promise.rpo_s is not None:
        promised_s, name = view.promise.rpo_s, "the RPO"
    elif view.expected_s is not None:
        promised_s, name = view.expected_s, "the lag that its schedule allows"
    else:
        return None
    if view.lag_s is None:
        return None
    judged = judge_lag(view.lag_s, promised_s, warn=view.promise.warn, error=view.promise.error)
    if judged.level is None or judged.used is None:
        return None
    why = " while it is quiesced" if view.quiesced else ""
    return Finding(
        AlarmKind.LAG,
        judged.level,
        f"the lag is {format_duration(view.lag_s)}{why}, {100 * judged.used:.0f} % of {name} "
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
