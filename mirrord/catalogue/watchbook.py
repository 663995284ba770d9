"""The record of problems: failed attempts and commands, alarms, clock changes; verifications."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mirrord.catalogue.base import Store, keep_newest
from mirrord.core.records import AlarmKind, AlarmRecord, AttemptRecord, FailureRecord, Level
from mirrord.core.verification import Verified, VerifyMode
from mirrord.system import clock

ATTEMPTS_KEPT = 200  # for each mirror
ALARMS_KEPT = 200  # for each mirror, and for the host
VERIFICATIONS_KEPT = 100  # of each mirror, for each mode
_COLUMNS = "guid, name, at_ns, mode, differences, root"


class Watchbook(Store):
    """The tables `attempt`, `failure`, `alarm`, `host` and `verification`."""

    def add_attempt(
        self, mirror_id: str, *, verb: str, cause: str, number: int, code: str, error: str
    ) -> None:
        """Record a failed attempt."""
        with self._transaction("ATTEMPT:ADD") as db:
            db.execute(
                "INSERT INTO attempt (mirror_id, at_ns, verb, cause, number, code, error) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (mirror_id, clock.now_ns(), verb, cause, number, code, error),
            )
            keep_newest(db, "attempt", ATTEMPTS_KEPT, mirror_id=mirror_id)

    def attempts(self, mirror_id: str, *, limit: int) -> list[AttemptRecord]:
        """The last failed attempts, newest first."""
        return [
            AttemptRecord(*row)
            for row in self._rows(
                "SELECT at_ns, verb, cause, number, code, error, recorded FROM attempt "
                "WHERE mirror_id = ? ORDER BY id DESC LIMIT ?",
                mirror_id,
                limit,
            )
        ]

    def add_failure(self, mirror_id: str, failure: FailureRecord) -> None:
        """Record a failed command, replacing the previous one of that kind."""
        self._change(
            "FAILURE:ADD",
            "INSERT OR REPLACE INTO failure (mirror_id, kind, verb, at_ns, code, error) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            mirror_id,
            *failure,
        )

    def clear_failures(self, mirror_id: str, kinds: Iterable[str]) -> None:
        """Delete the failures of these kinds."""
        if {failure.kind for failure in self.failures(mirror_id)}.isdisjoint(kinds):
            return  # the usual case: nothing to write
        self._change(
            "FAILURE:CLEAR",
            "DELETE FROM failure WHERE mirror_id = ? AND kind IN (SELECT value FROM json_each(?))",
            mirror_id,
            json.dumps(list(kinds)),
        )

    def failures(self, mirror_id: str) -> list[FailureRecord]:
        """The recorded failures, oldest first."""
        columns = ", ".join(FailureRecord._fields)
        return [
            FailureRecord(*row)
            for row in self._rows(
                f"SELECT {columns} FROM failure WHERE mirror_id = ? ORDER BY at_ns, kind",  # noqa: S608 - own names
                mirror_id,
            )
        ]

    def raise_alarm(self, mirror_id: str | None, kind: str, level: str, text: str) -> None:
        """Record an alarm; an active one of that kind gets the new level and text."""
        with self._transaction("ALARM:RAISE") as db:
            changed = db.execute(
                "UPDATE alarm SET level = ?, text = ? "
                "WHERE mirror_id IS ? AND kind = ? AND cleared_ns IS NULL",
                (level, text, mirror_id, kind),
            ).rowcount
            if not changed:
                db.execute(
                    "INSERT INTO alarm (mirror_id, kind, level, text, raised_ns) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (mirror_id, kind, level, text, clock.now_ns()),
                )
                keep_newest(db, "alarm", ALARMS_KEPT, mirror_id=mirror_id)

    def clear_alarm(self, mirror_id: str | None, kind: str) -> None:
        """Record that an alarm is cleared."""
        self._change(
            "ALARM:CLEAR",
            "UPDATE alarm SET cleared_ns = ? "
            "WHERE mirror_id IS ? AND kind = ? AND cleared_ns IS NULL",
            clock.now_ns(),
            mirror_id,
            kind,
        )

    def alarms(self, *, up: bool, limit: int = 1000) -> list[AlarmRecord]:
        """Alarms, newest first: the active ones, or all."""
        condition = "WHERE cleared_ns IS NULL" if up else ""
        return [
            AlarmRecord(number, mirror_id, AlarmKind(kind), Level(level), *rest)
            for number, mirror_id, kind, level, *rest in self._rows(
                "SELECT id, mirror_id, kind, level, text, raised_ns, cleared_ns FROM alarm "  # noqa: S608 - own names
                f"{condition} ORDER BY id DESC LIMIT ?",
                limit,
            )
        ]

    def fact(self, key: str) -> Any:
        """The fact about the host under that key, or None."""
        row = self._row("SELECT value FROM host WHERE key = ?", key)
        return json.loads(row[0]) if row else None

    def set_fact(self, key: str, value: Any) -> None:
        """Record a fact about the host; None: delete it."""
        if value is None:
            self._change("HOST:SET", "DELETE FROM host WHERE key = ?", key)
            return
        sql = "INSERT INTO host VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = ?2"
        self._change("HOST:SET", sql, key, json.dumps(value))

    def add_verification(self, mirror_id: str, done: Verified) -> None:
        """Record a verification; it replaces the one before of the same snapshot."""
        with self._transaction("VERIFICATION:ADD") as db:
            db.execute(
                f"INSERT OR REPLACE INTO verification (mirror_id, {_COLUMNS}) "  # noqa: S608 - own names
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (mirror_id, *done._replace(mode=done.mode.value)),  # type: ignore[arg-type]
            )
            mode = done.mode.value
            keep_newest(db, "verification", VERIFICATIONS_KEPT, mirror_id=mirror_id, mode=mode)

    def verifications(self, mirror_id: str) -> list[Verified]:
        """The last one of each snapshot, newest first."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM verification WHERE mirror_id = ? "  # noqa: S608 - own names
            "ORDER BY rowid DESC",
            mirror_id,
        )
        return [Verified(*row)._replace(mode=VerifyMode(row[3])) for row in rows]
