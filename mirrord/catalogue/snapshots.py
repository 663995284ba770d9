"""Which snapshots the mirrors have, and which of several mirrors of a source deletes one there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Set

from mirrord.catalogue.base import Store
from mirrord.core.model import Snapshot, SnapshotKind

#: Before the source of a snapshot that the mirror has left to others there (`leave`).
_LEFT = "left:"


class Snapshots(Store):
    """The table `snapshot`."""

    def snapshots(
        self, mirror_id: str, *, at: str = ""
    ) -> dict[str, tuple[str, SnapshotKind, int]]:
        """This mirror's: guid -> (name, kind, sequence); without those that it has left to other
        mirrors at the source `at`.
        """
        sql = "SELECT guid, name, kind, sequence FROM snapshot WHERE mirror_id = ? AND source <> ?"
        return {
            guid: (name, SnapshotKind(kind), sequence)
            for guid, name, kind, sequence in self._rows(sql, mirror_id, _LEFT + at)
        }

    def snapshot_name(self, mirror_id: str, guid: str) -> str:
        """The name of one of this mirror's, or ""."""
        sql = "SELECT name FROM snapshot WHERE mirror_id = ? AND guid = ?"
        row = self._row(sql, mirror_id, guid)
        return str(row[0]) if row else ""

    def add_shared(self, mirror_id: str, snapshot: Snapshot, sequence: int, source: str) -> None:
        """Record that a run has taken this snapshot, or uses it as another mirror does."""
        with self._transaction("SNAPSHOT:SHARE") as db:
            add_snapshot(db, mirror_id, snapshot, sequence, source)
            db.execute(
                "UPDATE operation SET arguments = json_patch(arguments, ?) "
                "WHERE mirror_id = ? AND verb IN ('initialize', 'update')",
                (json.dumps({"guid": snapshot.guid}), mirror_id),
            )

    def others(self, mirror_id: str, source: str, guids: Iterable[str]) -> set[str]:
        """Which of these snapshots belong to another mirror of the same source, perhaps also."""
        asked = list(guids)
        if not asked:
            return set()
        rows = self._rows(
            "SELECT guid FROM snapshot WHERE mirror_id <> ? AND source = ? "
            "AND guid IN (SELECT value FROM json_each(?))",
            mirror_id,
            source,
            json.dumps(asked),
        )
        return {guid for (guid,) in rows}

    def leave(self, mirror_id: str, source: str, guids: Iterable[str]) -> None:
        """Record that it is other mirrors that delete these at the source."""
        with self._transaction("SNAPSHOT:LEAVE") as db:
            db.executemany(
                "UPDATE snapshot SET source = ? WHERE mirror_id = ? AND guid = ?",
                [(_LEFT + source, mirror_id, guid) for guid in guids],
            )

    def hand_over(self, mirror_id: str, guid: str, to: Iterable[str]) -> None:
        """Make a snapshot of the mirror that of one of these, which deletes it at the source then;
        nothing when none of them is known here.
        """
        self._change(
            "SNAPSHOT:HAND-OVER",
            "UPDATE OR IGNORE snapshot SET mirror_id = mirror.id FROM mirror "
            "WHERE mirror_id = ? AND guid = ? AND mirror.id IN (SELECT value FROM json_each(?))",
            mirror_id,
            guid,
            json.dumps(sorted(to)),
        )

    def bases_of_others(self, mirror_id: str) -> set[str]:
        """Which of this mirror's snapshots are among the newest two of another mirror."""
        rows = self._rows(
            "SELECT guid FROM snapshot AS other WHERE mirror_id <> ? "
            "AND guid IN (SELECT guid FROM snapshot WHERE mirror_id = ?) "
            "AND (SELECT count(*) FROM snapshot AS newer WHERE newer.mirror_id = other.mirror_id "
            "AND newer.sequence > other.sequence) < 2",
            mirror_id,
            mirror_id,
        )
        return {guid for (guid,) in rows}

    def keep_snapshots(self, mirror_id: str, left: Set[str]) -> None:
        """Remove all of this mirror's but these: they no longer exist."""
        gone = self.snapshots(mirror_id).keys() - left
        if gone:
            with self._transaction("SNAPSHOT:REMOVE") as db:
                db.executemany(
                    "DELETE FROM snapshot WHERE mirror_id = ? AND guid = ?",
                    [(mirror_id, guid) for guid in gone],
                )


def add_snapshot(
    db: sqlite3.Connection, mirror_id: str, snapshot: Snapshot, sequence: int, source: str
) -> None:
    """Record a snapshot of the mirror, unless it is."""
    db.execute(
        "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            mirror_id,
            snapshot.guid,
            snapshot.name,
            snapshot.kind.value,
            sequence,
            snapshot.taken_at_ns,
            source,
        ),
    )
