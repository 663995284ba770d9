"""The catalogue. Each method is one transaction, durable when it returns."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mirrord.catalogue.arguments import Arguments
from mirrord.catalogue.arguments import decode as decode_arguments
from mirrord.catalogue.arguments import encode as encode_arguments
from mirrord.catalogue.base import keep_newest
from mirrord.catalogue.snapshots import Snapshots, add_snapshot
from mirrord.catalogue.watchbook import Watchbook
from mirrord.core.model import Snapshot
from mirrord.core.pause import PauseReport
from mirrord.core.records import EventRecord, TransferRecord
from mirrord.core.relationship import Relationship, decode, encode
from mirrord.core.states import State
from mirrord.system import clock

EVENTS_KEPT = 1000  # for each mirror
TRANSFERS_KEPT = 2000
_NO_ARGUMENTS = Arguments()
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
    "verification",
)


class MirrorRow(NamedTuple):
    """The state of a mirror; see the table `mirror`."""

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
    """The wall time at which the destination equalled the source, and the snapshot shown then."""

    guid: str
    at_ns: int


class Operation(NamedTuple):
    """A running operation, or one left by a crash; see the table `operation`."""

    verb: str
    phase: str
    arguments: Arguments
    pid: int
    started_ns: int


class TransferBegin(NamedTuple):
    """What is known of a transfer as it begins."""

    id: str
    verb: str
    base: str | None
    full_reason: str
    snapshot: Snapshot
    sequence: int
    show: bool
    source: str = ""
    spread_ms: int | None = None
    pause: PauseReport | None = None


class Catalogue(Snapshots, Watchbook):
    """The tables of mirrors, and those of its bases."""

    # Mirrors

    def mirror(self, mirror_id: str) -> MirrorRow | None:
        """The state of a mirror, or None when it is not in the catalogue."""
        row = self._row(
            "SELECT state, quiesced, sequence, confirmed_ns, accepted, confirmed_guid "
            "FROM mirror WHERE id = ?",
            mirror_id,
        )
        return MirrorRow(State(row[0]), bool(row[1]), *row[2:]) if row else None

    def add_mirror(self, mirror_id: str, state: State) -> None:
        """Add a mirror; an existing one is left as it is."""
        self._change(
            "MIRROR:ADD",
            "INSERT INTO mirror (id, state, created_ns) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            mirror_id,
            state.value,
            clock.now_ns(),
        )

    def adopt(
        self,
        mirror_id: str,
        state: State,
        snapshots: list[Snapshot],
        *,
        sequence: int,
        confirmed: Confirmed,
    ) -> None:
        """Record what is at a mirror's destination, when the catalogue was lost or is older.
        Deletes a recorded operation. sequence: the greatest one that was assigned.
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
        """Record whether the mirror is quiesced: no transfer may begin."""
        sql = "UPDATE mirror SET quiesced = ? WHERE id = ?"
        self._change("MIRROR:QUIESCE", sql, int(quiesced), mirror_id)

    def set_confirmed(self, mirror_id: str, confirmed: Confirmed) -> None:
        """Record when the destination equalled the source, and what it showed then."""
        with self._transaction("MIRROR:CONFIRM") as db:
            _confirm(db, mirror_id, confirmed)

    def accept(self, mirror_id: str, sequence: int) -> None:
        """Record that doubts about pruning were accepted, up to that sequence."""
        sql = "UPDATE mirror SET accepted = ? WHERE id = ?"
        self._change("MIRROR:ACCEPT", sql, sequence, mirror_id)

    def remove_mirror(self, mirror_id: str) -> None:
        """Delete a mirror and all its history."""
        with self._transaction("MIRROR:REMOVE") as db:
            for table in _TABLES_OF_A_MIRROR:
                db.execute(f"DELETE FROM {table} WHERE mirror_id = ?", (mirror_id,))  # noqa: S608 - fixed names
            db.execute("DELETE FROM mirror WHERE id = ?", (mirror_id,))

    def set_place(self, mirror_id: str, endpoint: str, mount: str, filesystem: str) -> None:
        """Record the mount point and the file system of an end."""
        sql = "INSERT OR REPLACE INTO place VALUES (?, ?, ?, ?)"
        self._change("MIRROR:PLACE", sql, mirror_id, endpoint, mount, filesystem)

    def place(self, mirror_id: str, endpoint: str) -> tuple[str, str] | None:
        """The recorded mount point and file system of an end."""
        row = self._row(
            "SELECT mount, filesystem FROM place WHERE mirror_id = ? AND endpoint = ?",
            mirror_id,
            endpoint,
        )
        return (str(row[0]), str(row[1])) if row else None

    def relationship(self, mirror_id: str) -> Relationship | None:
        """The relationship record that both ends had when they were last read."""
        row = self._row("SELECT record FROM relationship WHERE mirror_id = ?", mirror_id)
        return decode(row[0]) if row else None

    def relationships(self) -> list[Relationship]:
        """Those of all mirrors."""
        found = [decode(row[0]) for row in self._rows("SELECT record FROM relationship")]
        return [record for record in found if record is not None]

    def set_relationship(self, mirror_id: str, record: Relationship | None) -> None:
        """Store the record that both ends have; None: it must be read from them again."""
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
        """The source site of a mirror; None when that is not recorded."""
        row = self._row(
            "SELECT source_site, since_ns FROM direction WHERE mirror_id = ?", mirror_id
        )
        return Direction(*row) if row else None

    def set_direction(self, mirror_id: str, source_site: str, *, since_ns: int = 0) -> None:
        """Record the source site, and since when (0: it was found rather than changed); no change
        when it is already recorded.
        """
        self._change(
            "DIRECTION:SET",
            "INSERT INTO direction VALUES (?, ?, ?) ON CONFLICT (mirror_id) DO UPDATE "
            "SET source_site = excluded.source_site, since_ns = excluded.since_ns "
            "WHERE source_site <> excluded.source_site",
            mirror_id,
            source_site,
            since_ns,
        )

    # Operations

    def operation(self, mirror_id: str) -> Operation | None:
        """The running operation, or the one that was running when the process ended."""
        row = self._row(
            "SELECT verb, phase, arguments, pid, started_ns FROM operation WHERE mirror_id = ?",
            mirror_id,
        )
        return Operation(row[0], row[1], decode_arguments(row[2]), *row[3:]) if row else None

    def begin(
        self,
        mirror_id: str,
        verb: str,
        arguments: Arguments = _NO_ARGUMENTS,
        *,
        name: Callable[[int], str] | None = None,
    ) -> Arguments:
        """Record the intent, before its first effect; phase `begun`.

        name: makes the name of a snapshot to be taken from a sequence number that was never
        assigned before; both are added to the arguments, which are returned.
        """
        with self._transaction(f"{verb.upper()}:BEGIN") as db:
            if name is not None:
                row = db.execute(
                    "UPDATE mirror SET sequence = sequence + 1 WHERE id = ? RETURNING sequence",
                    (mirror_id,),
                ).fetchone()
                arguments = arguments._replace(sequence=row[0], name=name(row[0]))
            db.execute(
                "INSERT INTO operation VALUES (?, ?, 'begun', ?, ?, ?)",
                (mirror_id, verb, encode_arguments(arguments), os.getpid(), clock.now_ns()),
            )
        return arguments

    def advance(self, mirror_id: str, phase: str, **arguments: Any) -> None:
        """Record a phase as done, with the arguments that later phases and recovery need."""
        self._change(
            f"OPERATION:{phase.upper()}",
            "UPDATE operation SET phase = ?, arguments = json_patch(arguments, ?) "
            "WHERE mirror_id = ?",
            phase,
            json.dumps(arguments),
            mirror_id,
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
        """End the operation and, in the same transaction, record the mirror's new state.

        event: level and text of the event. transfer: id, result and columns of a transfer that ends
        with it. gone: guids of snapshots that no longer exist at either end.
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

    # Transfers

    def begin_transfer(self, mirror_id: str, begun: TransferBegin) -> None:
        """Record that a transfer begins or resumes, and its snapshot as one of this mirror."""
        snapshot = begun.snapshot
        with self._transaction("TRANSFER:BEGIN") as db:
            add_snapshot(db, mirror_id, snapshot, begun.sequence, begun.source)
            db.execute(
                "INSERT INTO transfer (id, mirror_id, verb, base, full_reason, guid, name, "
                "spread_ms, pause, result, started_ns) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', ?) "
                "ON CONFLICT (id) DO UPDATE SET result = 'running', error = ''",
                (
                    begun.id,
                    mirror_id,
                    begun.verb,
                    begun.base,
                    begun.full_reason,
                    snapshot.guid,
                    snapshot.name,
                    begun.spread_ms,
                    begun.pause.encoded() if begun.pause else "",
                    clock.now_ns(),
                ),
            )
            keep_newest(db, "transfer", TRANSFERS_KEPT, mirror_id=mirror_id)
            known = {
                "transfer": begun.id,
                "guid": snapshot.guid,
                "base": begun.base,
                "show": begun.show,
            }
            # A verb that includes a transfer keeps its own phase and arguments.
            db.execute(
                "UPDATE operation SET phase = 'transferring', "
                "arguments = json_patch(arguments, ?) "
                "WHERE mirror_id = ? AND verb IN ('initialize', 'update')",
                (json.dumps(known), mirror_id),
            )

    def finish_transfer(self, transfer_id: str, result: str, **columns: int | str) -> None:
        """Record the end of a transfer; `columns` as in the table."""
        with self._transaction("TRANSFER:FINISH") as db:
            _finish_transfer(db, transfer_id, result, columns)

    def transfers(self, mirror_id: str, *, limit: int) -> list[TransferRecord]:
        """The last transfers, newest first."""
        columns = ", ".join(TransferRecord._fields)
        return [
            TransferRecord(*row)
            for row in self._rows(
                f"SELECT {columns} FROM transfer WHERE mirror_id = ? "  # noqa: S608 - own names
                "ORDER BY rowid DESC LIMIT ?",
                mirror_id,
                limit,
            )
        ]

    # Events

    def add_event(self, mirror_id: str, level: str, text: str) -> None:
        """Record an event; level: info, warning or error."""
        with self._transaction("EVENT:ADD") as db:
            _add_event(db, mirror_id, level, text)

    def events(self, mirror_id: str, *, limit: int) -> list[EventRecord]:
        """The last events, newest first."""
        return [
            EventRecord(*row)
            for row in self._rows(
                "SELECT at_ns, level, text, recorded FROM event WHERE mirror_id = ? "
                "ORDER BY id DESC LIMIT ?",
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
    keep_newest(db, "event", EVENTS_KEPT, mirror_id=mirror_id)
