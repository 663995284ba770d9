"""The result of `mirrord monitor`, by the conventions of Nagios plugins. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirrord.core.records import AlarmRecord, Level
from mirrord.core.status import MirrorStatus
from mirrord.core.units import counted

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_STATUS = {Level.WARNING: 1, Level.ERROR: 2}


class Verdict(NamedTuple):
    """status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. line: text, a bar, performance data."""

    status: int
    line: str


def judge(
    mirrors: Sequence[MirrorStatus],
    alarms: Sequence[AlarmRecord],
    *,
    service_runs: bool,
    host: str = "",
) -> Verdict:
    """alarms: active ones. A schedule without a daemon is critical. host: what is wrong with this
    host, or "".
    """
    status, texts = (2, [f"host: {host}"]) if host else (0, [])
    names = {each.name for each in mirrors}
    for alarm in alarms:
        if alarm.mirror in names or alarm.mirror_id is None:
            status = max(status, _STATUS[alarm.level])
            texts.append(f"{alarm.mirror or 'host'}: {alarm.text}")
    told = {alarm.mirror for alarm in alarms}
    kinds = {(alarm.mirror, alarm.kind) for alarm in alarms}
    for each in mirrors:
        if each.reading.state is None or (each.reading.schedule and not service_runs):
            status = 2
        for fault in each.reading.faults:
            # The daemon knows the level of what it raised an alarm for.
            if (each.name, fault.kind) not in kinds:
                status = max(status, _STATUS[fault.level])
                if each.name in told:
                    texts.append(f"{each.name}: {fault.text}")
        if each.problems:
            status = max(status, 1)
            if each.name not in told:
                texts.append(f"{each.name}: {each.problems[0]}")
    if not service_runs and any(each.reading.schedule for each in mirrors):
        texts.insert(
            0, "the daemon is not running, no schedule is executed ('systemctl restart mirrord')"
        )
    if not mirrors:
        return Verdict(3, f"MIRRORD {WORDS[3]} - no mirrors are defined")
    head = "; ".join(text.replace("|", "/") for text in texts[:3])
    if len(texts) > 3:
        head += f"; and {len(texts) - 3} more"
    fine = f"{counted(len(mirrors), 'mirror')} without problems"
    data = " ".join(_performance(each, each.lag_s) for each in mirrors if each.lag_s is not None)
    return Verdict(
        status, f"MIRRORD {WORDS[status]} - {head or fine}" + (f" | {data}" if data else "")
    )


def _performance(status: MirrorStatus, lag_s: float) -> str:
    """Lag in seconds; the critical level is the RPO."""
    rpo_s = status.reading.rpo_s
    return f"'{status.name}'={lag_s:.0f}s" + (f";;{rpo_s:g}" if rpo_s else "")
