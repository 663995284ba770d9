"""The catalogue's one class. Each method is one transaction, durable when it returns."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mirrord.catalogue.watchbook import Watchbook
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.relationship import Relationship, decode, encode
from mirrord.core.states import State
from mirrord.system import clock

EVENTS_KEPT = 1000  # for each mirror
TRANSFERS_KEPT = 2000
_TABLES_OF_A_MIRROR = (
    "operation",
    "snapshot",
    "transfer",
    "event",
    "attempt",
    "place",
    "alarm",
    "failure",
    "relationship",
    "direction",
)


class MirrorRow(NamedTuple):
    """A mirror's standing; see the table `mirror`."""

    id: str
    state: State
    quiesced: bool
    sequence: int
    confirmed_ns: int
    accepted: int = 0
    confirmed_guid: str = ""


class Direction(NamedTuple):
    """Which site is the source; see the table `direction`."""

    source_site: str
    since_ns: int


class Confirmed(NamedTuple):
    """The destination equalled the source at that wall time, and showed this snapshot then."""

    guid: str
    at_ns: int


class Operation(NamedTuple):
    """Work under way, or what a crash left of it; see the table `operation`."""

    verb: str
    phase: str
    arguments: Mapping[str, Any]
    pid: int
    started_ns: int


class TransferBegin(NamedTuple):
    """What is known of a transfer as it begins."""

    id: str
    verb: str
    base: str | None
    why_whole: str
    snapshot: Snapshot
    sequence: int
    show: bool
    source: str = ""
    spread_ms: int | None = None


class TransferRow(NamedTuple):
    """One transfer; see the table `transfer`."""

    id: str
    verb: str
    base: str | None
    why_whole: str
    guid: str
    name: str
    result: str
    started_ns: int
    duration_ms: int
    stream_bytes: int
    resumed_bytes: int
    added_bytes: int
    lag_ms: int
    checksum: str
    error: str
    throttled_ms: int
    phases: str
    spread_ms: int | None


class EventRow(NamedTuple):
    """One event; see the table `event`."""

    at_ns: int
    level: str
    text: str


class Catalogue(Watchbook):
    """All that is known of mirrors, and the book of what a watch saw."""

    # Mirrors

    def mirror(self, mirror_id: str) -> MirrorRow | None:
        """A mirror's standing, or None when the catalogue does not know it."""
        for row in self._rows(
            "SELECT id, state, quiesced, sequence, confirmed_ns, accepted, confirmed_guid "
            "FROM mirror WHERE id = ?",
            mirror_id,
        ):
            return MirrorRow(row[0], State(row[1]), bool(row[2]), *row[3:])
        return None

    def add_mirror(self, mirror_id: str, state: State) -> MirrorRow:
        """Begin to know a mirror; one that is known stays as it is."""
        with self._transaction("MIRROR:ADD") as db:
            db.execute(
                "INSERT INTO mirror (id, state, created_ns) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (mirror_id, state.value, clock.now_ns()),
            )
        row = self.mirror(mirror_id)
        assert row is not None
        return row

    def adopt(
        self,
        mirror_id: str,
        state: State,
        snapshots: list[Snapshot],
        *,
        sequence: int,
        confirmed: Confirmed,
    ) -> None:
        """Record what a mirror's destination holds, when the catalogue was lost or is older than
        it. An operation that it has is dropped. sequence: the greatest that was given out.
        """
        with self._transaction("MIRROR:ADOPT") as db:
            db.execute("DELETE FROM operation WHERE mirror_id = ?", (mirror_id,))
            db.execute(
                "INSERT INTO mirror (id, state, created_ns) VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET state = excluded.state",
                (mirror_id, state.value, clock.now_ns()),
            )
            db.executemany(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, '') ON CONFLICT DO NOTHING",
                [(mirror_id, s.guid, s.name, s.kind.value, 0, s.taken_at_ns) for s in snapshots],
            )
            db.execute(
                "UPDATE mirror SET sequence = max(sequence, ?) WHERE id = ?", (sequence, mirror_id)
            )
            _confirm(db, mirror_id, confirmed)

    def set_quiesced(self, mirror_id: str, quiesced: bool) -> None:
        """Record that no transfer may begin, or that it may again."""
        with self._transaction("MIRROR:QUIESCE") as db:
            db.execute("UPDATE mirror SET quiesced = ? WHERE id = ?", (int(quiesced), mirror_id))

    def set_confirmed(self, mirror_id: str, confirmed: Confirmed) -> None:
        """Record when the destination equalled the source, and what it showed then."""
        with self._transaction("MIRROR:CONFIRM") as db:
            _confirm(db, mirror_id, confirmed)

    def accept(self, mirror_id: str, sequence: int) -> None:
        """Record that the owner has looked at what pruning doubted, up to that sequence."""
        with self._transaction("MIRROR:ACCEPT") as db:
            db.execute("UPDATE mirror SET accepted = ? WHERE id = ?", (sequence, mirror_id))

    def remove_mirror(self, mirror_id: str) -> None:
        """Forget a mirror with all its history."""
        with self._transaction("MIRROR:REMOVE") as db:
            for table in _TABLES_OF_A_MIRROR:
                db.execute(f"DELETE FROM {table} WHERE mirror_id = ?", (mirror_id,))  # noqa: S608 - fixed names
            db.execute("DELETE FROM mirror WHERE id = ?", (mirror_id,))

    def set_place(self, mirror_id: str, endpoint: str, mount: str, filesystem: str) -> None:
        """Record the mount point and the file system of an end."""
        with self._transaction("MIRROR:PLACE") as db:
            db.execute(
                "INSERT OR REPLACE INTO place VALUES (?, ?, ?, ?)",
                (mirror_id, endpoint, mount, filesystem),
            )

    def place(self, mirror_id: str, endpoint: str) -> tuple[str, str] | None:
        """Mount point and file system of an end, as they were recorded."""
        for mount, filesystem in self._rows(
            "SELECT mount, filesystem FROM place WHERE mirror_id = ? AND endpoint = ?",
            mirror_id,
            endpoint,
        ):
            return str(mount), str(filesystem)
        return None

    def relationship(self, mirror_id: str) -> Relationship | None:
        """The relationship record that both ends had when they were last asked."""
        for (record,) in self._rows(
            "SELECT record FROM relationship WHERE mirror_id = ?", mirror_id
        ):
            return decode(record)
        return None

    def set_relationship(self, mirror_id: str, record: Relationship | None) -> None:
        """Remember the record that both ends have; None: they are to be asked again."""
        with self._transaction("RELATIONSHIP:SET") as db:
            if record is None:
                db.execute("DELETE FROM relationship WHERE mirror_id = ?", (mirror_id,))
            else:
                db.execute(
                    "INSERT OR REPLACE INTO relationship VALUES (?, ?)",
                    (mirror_id, encode(record).decode()),
                )

    # Directions

    def direction(self, mirror_id: str) -> Direction | None:
        """Which site of a mirror is the source; None where that is not recorded."""
        for row in self._rows(
            "SELECT source_site, since_ns FROM direction WHERE mirror_id = ?", mirror_id
        ):
            return Direction(*row)
        return None

    def set_direction(self, mirror_id: str, source_site: str, *, since_ns: int) -> None:
        """Record which site is the source, and since when; nothing changes when it was already."""
        with self._transaction("DIRECTION:SET") as db:
            db.execute(
                "INSERT INTO direction VALUES (?, ?, ?) ON CONFLICT (mirror_id) DO UPDATE "
                "SET source_site = excluded.source_site, since_ns = excluded.since_ns "
                "WHERE source_site <> excluded.source_site",
                (mirror_id, source_site, since_ns),
            )

    # Operations

    def operation(self, mirror_id: str) -> Operation | None:
        """What is under way, or was when the process ended."""
        for verb, phase, arguments, pid, started_ns in self._rows(
            "SELECT verb, phase, arguments, pid, started_ns FROM operation WHERE mirror_id = ?",
            mirror_id,
        ):
            return Operation(verb, phase, json.loads(arguments), pid, started_ns)
        return None

    def begin(
        self,
        mirror_id: str,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        name: Callable[[int], str] | None = None,
    ) -> dict[str, Any]:
        """Record the intent, before its first effect; phase `begun`.

        name: makes the name of a snapshot to be taken from a sequence number that was never
        given out before; both go into the arguments, which are returned.
        """
        full = dict(arguments)
        with self._transaction(f"{verb.upper()}:BEGIN") as db:
            if name is not None:
                row = db.execute(
                    "UPDATE mirror SET sequence = sequence + 1 WHERE id = ? RETURNING sequence",
                    (mirror_id,),
                ).fetchone()
                full |= {"sequence": row[0], "name": name(row[0])}
            db.execute(
                "INSERT INTO operation VALUES (?, ?, 'begun', ?, ?, ?)",
                (mirror_id, verb, json.dumps(full), os.getpid(), clock.now_ns()),
            )
        return full

    def advance(self, mirror_id: str, phase: str, **arguments: Any) -> None:
        """Record a phase as done, with what later phases and recovery need to know."""
        with self._transaction(f"OPERATION:{phase.upper()}") as db:
            db.execute(
                "UPDATE operation SET phase = ?, arguments = json_patch(arguments, ?) "
                "WHERE mirror_id = ?",
                (phase, json.dumps(arguments), mirror_id),
            )

    def end(
        self,
        mirror_id: str,
        *,
        state: State | None = None,
        confirmed: Confirmed | None = None,
        event: tuple[str, str] | None = None,
        transfer: tuple[str, str, Mapping[str, int | str]] | None = None,
        gone: Iterable[str] = (),
    ) -> None:
        """The operation is over; with it, in one transaction, the mirror's new standing.

        event: level and text of the line that says so. transfer: id, result and columns of one
        that ends with it. gone: guids of snapshots that are nowhere any more.
        """
        with self._transaction("OPERATION:END") as db:
            if transfer is not None:
                _finish_transfer(db, *transfer)
            db.executemany(
                "DELETE FROM snapshot WHERE mirror_id = ? AND guid = ?",
                [(mirror_id, guid) for guid in gone],
            )
            db.execute("DELETE FROM operation WHERE mirror_id = ?", (mirror_id,))
            if state is not None:
                db.execute("UPDATE mirror SET state = ? WHERE id = ?", (state.value, mirror_id))
            if confirmed is not None:
                _confirm(db, mirror_id, confirmed)
            if event is not None:
                _add_event(db, mirror_id, *event)

    # Snapshots

    def snapshots(self, mirror_id: str) -> dict[str, tuple[str, SnapshotKind, int]]:
        """This mirror's: guid -> (name, kind, sequence)."""
        return {
            guid: (name, SnapshotKind(kind), sequence)
            for guid, name, kind, sequence in self._rows(
                "SELECT guid, name, kind, sequence FROM snapshot WHERE mirror_id = ?", mirror_id
            )
        }

    def others(self, mirror_id: str, source: str, guids: Iterable[str]) -> set[str]:
        """Which of these snapshots another mirror of the same source has, too (or alone)."""
        rows = self._rows(
            "SELECT guid FROM snapshot WHERE mirror_id <> ? AND source = ? "
            "AND guid IN (SELECT value FROM json_each(?))",
            mirror_id,
            source,
            json.dumps(list(guids)),
        )
        return {guid for (guid,) in rows}

    def bases_of_others(self, mirror_id: str) -> set[str]:
        """Which of this mirror's snapshots are among the newest two of another one."""
        rows = self._rows(
            "SELECT guid FROM snapshot AS other WHERE mirror_id <> ? "
            "AND guid IN (SELECT guid FROM snapshot WHERE mirror_id = ?) "
            "AND (SELECT count(*) FROM snapshot AS newer WHERE newer.mirror_id = other.mirror_id "
            "AND newer.sequence > other.sequence) < 2",
            mirror_id,
            mirror_id,
        )
        return {guid for (guid,) in rows}

    def remove_snapshots(self, mirror_id: str, guids: list[str]) -> None:
        """Snapshots that are nowhere any more."""
        if guids:
            with self._transaction("SNAPSHOT:REMOVE") as db:
                db.executemany(
                    "DELETE FROM snapshot WHERE mirror_id = ? AND guid = ?",
                    [(mirror_id, guid) for guid in guids],
                )

    # Transfers

    def begin_transfer(self, mirror_id: str, begun: TransferBegin) -> None:
        """Record that a transfer begins or goes on, and its snapshot as this mirror's."""
        snapshot = begun.snapshot
        with self._transaction("TRANSFER:BEGIN") as db:
            db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    mirror_id,
                    snapshot.guid,
                    snapshot.name,
                    snapshot.kind.value,
                    begun.sequence,
                    snapshot.taken_at_ns,
                    begun.source,
                ),
            )
            db.execute(
                "INSERT INTO transfer (id, mirror_id, verb, base, why_whole, guid, name, "
                "spread_ms, result, started_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running', ?) "
                "ON CONFLICT (id) DO UPDATE SET result = 'running', error = ''",
                (
                    begun.id,
                    mirror_id,
                    begun.verb,
                    begun.base,
                    begun.why_whole,
                    snapshot.guid,
                    snapshot.name,
                    begun.spread_ms,
                    clock.now_ns(),
                ),
            )
            db.execute(
                "DELETE FROM transfer WHERE mirror_id = ? AND rowid <= (SELECT rowid FROM transfer "
                "WHERE mirror_id = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
                (mirror_id, mirror_id, TRANSFERS_KEPT),
            )
            known = {
                "transfer": begun.id,
                "guid": snapshot.guid,
                "base": begun.base,
                "show": begun.show,
            }
            # A verb of which a transfer is only a part keeps its own phase and arguments.
            db.execute(
                "UPDATE operation SET phase = 'transferring', "
                "arguments = json_patch(arguments, ?) "
                "WHERE mirror_id = ? AND verb IN ('initialize', 'update')",
                (json.dumps(known), mirror_id),
            )

    def finish_transfer(self, transfer_id: str, result: str, **columns: int | str) -> None:
        """Record how a transfer ended; `columns` as in the table."""
        with self._transaction("TRANSFER:FINISH") as db:
            _finish_transfer(db, transfer_id, result, columns)

    def transfers(self, mirror_id: str, *, limit: int) -> list[TransferRow]:
        """The last transfers, newest first."""
        columns = ", ".join(TransferRow._fields)
        return [
            TransferRow(*row)
            for row in self._rows(
                f"SELECT {columns} FROM transfer WHERE mirror_id = ? "  # noqa: S608 - own names
                "ORDER BY rowid DESC LIMIT ?",
                mirror_id,
                limit,
            )
        ]

    # Events

    def add_event(self, mirror_id: str, level: str, text: str) -> None:
        """Record a line of what happened; level: info, warning or error."""
        with self._transaction("EVENT:ADD") as db:
            _add_event(db, mirror_id, level, text)

    def events(self, mirror_id: str, *, limit: int) -> list[EventRow]:
        """The last events, newest first."""
        return [
            EventRow(*row)
            for row in self._rows(
                "SELECT at_ns, level, text FROM event WHERE mirror_id = ? ORDER BY id DESC LIMIT ?",
                mirror_id,
                limit,
            )
        ]


def _confirm(db: sqlite3.Connection, mirror_id: str, confirmed: Confirmed) -> None:
    db.execute(
        "UPDATE mirror SET confirmed_guid = ?, confirmed_ns = ? WHERE id = ?",
        (*confirmed, mirror_id),
    )


def _finish_transfer(
    db: sqlite3.Connection, transfer_id: str, result: str, columns: Mapping[str, int | str]
) -> None:
    known = {
        "duration_ms",
        "stream_bytes",
        "resumed_bytes",
        "added_bytes",
        "lag_ms",
        "checksum",
        "error",
        "throttled_ms",
        "phases",
    }
    assert columns.keys() <= known
    settings = "".join(f", {name} = ?" for name in columns)
    db.execute(
        f"UPDATE transfer SET result = ?{settings} WHERE id = ?",  # noqa: S608 - known names
        (result, *columns.values(), transfer_id),
    )


def _add_event(db: sqlite3.Connection, mirror_id: str, level: str, text: str) -> None:
    db.execute(
        "INSERT INTO event (mirror_id, at_ns, level, text) VALUES (?, ?, ?, ?)",
        (mirror_id, clock.now_ns(), level, text),
    )
    db.execute(
        "DELETE FROM event WHERE mirror_id = ? AND id <= (SELECT id FROM event "
        "WHERE mirror_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (mirror_id, mirror_id, EVENTS_KEPT),
    )
