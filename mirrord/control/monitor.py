"""The result of `mirrord monitor`, by the conventions of Nagios plugins. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


class Verdict(NamedTuple):
    """status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. line: text, a bar, performance data."""

    status: int
    line: str


def judge(
    rows: Sequence[dict[str, Any]], alarms: Sequence[dict[str, Any]], *, service_runs: bool
) -> Verdict:
    """rows: of `status`; alarms: active ones. A schedule without a daemon is critical."""
    status, texts = 0, []
    names = {row["name"] for row in rows}
    for alarm in alarms:
        if alarm["mirror"] in names or alarm["mirror_id"] is None:
            status = max(status, 2 if alarm["level"] == "error" else 1)
            where = alarm["mirror"] or "host"
            texts.append(f"{where}: {alarm['text']}")
    told = {alarm["mirror"] for alarm in alarms}
    kinds = {(alarm["mirror"], alarm["kind"]) for alarm in alarms}
    for row in rows:
        if not service_runs and row["schedule"]:
            status = 2
        if row["state"] == "unknown":
            status = max(status, 2)
        for fault in row["faults"]:
            # The daemon knows the level of what it raised an alarm for.
            if (row["name"], fault["kind"]) not in kinds:
                status = max(status, 2 if fault["level"] == "error" else 1)
                if row["name"] in told:
                    texts.append(f"{row['name']}: {fault['text']}")
        if row["rpo_used"] is not None and row["rpo_used"] >= 1 and row["name"] not in told:
            status = max(status, 1)
            texts.append(f"{row['name']}: {row['forecast']}")
        elif row["problems"] and row["name"] not in told:
            status = max(status, 1)
            texts.append(f"{row['name']}: {row['problems'][0]}")
    if not service_runs and any(row["schedule"] for row in rows):
        texts.insert(
            0, "the daemon is not running, no schedule is executed ('systemctl start mirrord')"
        )
    if not rows:
        return Verdict(3, f"MIRRORD {WORDS[3]} - no mirrors are defined")
    head = "; ".join(text.replace("|", "/") for text in texts[:3])
    if len(texts) > 3:
        head += f"; and {len(texts) - 3} more"
    fine = f"{len(rows)} mirror{'' if len(rows) == 1 else 's'} without problems"
    data = " ".join(_performance(row) for row in rows if row["lag_s"] is not None)
    return Verdict(
        status, f"MIRRORD {WORDS[status]} - {head or fine}" + (f" | {data}" if data else "")
    )


def _performance(row: dict[str, Any]) -> str:
    """Lag in seconds; warning and critical levels are those of its promise."""
    levels = f";;{row['rpo_s']:g}" if row["rpo_s"] else ""
    return f"'{row['name']}'={row['lag_s']:.0f}s{levels}"
