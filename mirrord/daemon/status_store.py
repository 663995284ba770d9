"""The status of each mirror in memory: updated on events, not on queries."""

from __future__ import annotations

import os
from typing import Any

from mirrord.core.states import Activity
from mirrord.daemon.running import Running
from mirrord.engine.report import promise
from mirrord.scheduler.scheduler import Scheduler


class StatusStore:
    """The rows of docs/cli-json.md, `status`: the last probe, with current values."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rows: dict[str, dict[str, Any]] = {}
        self.running: dict[str, Running] = {}

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Store what a probe of both ends found."""
        self._rows[name] = row

    def update(self, name: str, values: dict[str, Any]) -> None:
        """Store what has changed since."""
        if name in self._rows:
            self._rows[name] = self._rows[name] | values

    def remove(self, name: str) -> None:
        """Forget a removed mirror."""
        self._rows.pop(name, None)

    def rows(self) -> list[dict[str, Any]]:
        """All mirrors by name."""
        return [self.overlaid(self._rows[name]) for name in sorted(self._rows)]

    def overlaid(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the current lag, activity, alarms and next run."""
        name = str(row["name"])
        watched = self._scheduler.mirrors.get(name)
        if watched is None:
            return row
        running = self.running.get(name)
        lag_s = watched.lag_s()
        left_s = running.left_s() if running else None
        alarms = [
            {"kind": f.kind, "level": f.level, "text": f.text} for f in watched.alarms.up.values()
        ]
        now = row | {
            "lag_s": round(lag_s, 3) if lag_s is not None else None,
            "confirmed_ns": watched.standing.confirmed_ns,
            "next_ns": self._scheduler.timers.next_ns(name),
            "waiting": name in self._scheduler.queue.waiting,
            "alarms": alarms,
        }
        in_step = watched.standing.mirrored
        now |= promise(watched.definition.promise.rpo_s, lag_s if in_step else None, left_s=left_s)
        texts = [alarm["text"] for alarm in alarms if alarm["kind"] != "failure"]
        if watched.error:
            texts.insert(0, f"the last run failed: {watched.error}")
        known = "\n".join(row["problems"])
        now["problems"] = row["problems"] + [
            text for text in texts if text.removeprefix("the last run failed: ") not in known
        ]
        now["healthy"] = not now["problems"]
        if running is not None:
            job = self._scheduler.queue.running.get(name)
            purpose = f"{job.verb}, {job.cause}" if job else "update"
            now["running"] = running.as_dict(os.getpid(), purpose)
            now["activity"] = running.now.value
        elif row["running"] is None:
            quiesced = watched.standing.quiesced
            now["activity"] = (Activity.QUIESCED if quiesced else Activity.IDLE).value
        return now
