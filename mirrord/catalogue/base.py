"""The catalogue's file: opening, migration, transactions, and error messages."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from mirrord.catalogue.schema import APPLICATION_ID, MIGRATIONS
from mirrord.core.errors import Busy, Damaged, IoFailed, MirrordError, NoSpace, ProtocolError
from mirrord.system import files, steps

#: The path of a catalogue in memory, which is lost when it is closed.
IN_MEMORY = Path(":memory:")
_CACHE_KIB = 256
#: How long another process may take to record something; how long one that took longer is awaited
#: again: an emergency `break` goes on without the catalogue, and has several things to record.
_OTHERS_S, _AGAIN_S = 30.0, 1.0


class Store:
    """A catalogue in a file. Opening creates or migrates it, without loss of data.

    It has one connection: use from one thread at a time.
    """

    def __init__(
        self, path: Path, turn: threading.Lock | None = None, *, brief: bool = False
    ) -> None:
        """turn: serializes writers in other threads of this process. SQLite would make them poll,
        and on a slow disk one might never succeed. brief: for one command, which reads a copy when
        the disk is full.
        """
        self.path = path
        self._brief, self._is_copy = brief, False
        self._turn = turn or threading.Lock()
        self._patience_s = _OTHERS_S
        self._db = self._open()
        self._file = files.identity(path)

    def is_replaced(self) -> bool:
        """Whether the file that is open was removed, or another one is in its place."""
        return files.identity(self.path) != self._file

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # Opening

    def _open(self) -> sqlite3.Connection:
        fresh = self.path != IN_MEMORY and not self.path.exists()
        try:
            db = sqlite3.connect(
                self.path, timeout=_OTHERS_S, isolation_level=None, check_same_thread=False
            )
            if fresh:
                self.path.chmod(0o600)
            try:
                self._prepare(db)
            except sqlite3.OperationalError as error:
                db.close()
                if not self._brief or error.sqlite_errorname != "SQLITE_IOERR_SHMSIZE":
                    raise
                db = self._copied()
            except BaseException:
                db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        return db

    def _copied(self) -> sqlite3.Connection:
        """A copy in memory, to read. On a full disk SQLite cannot make the file that processes need
        to share a catalogue, so nobody else has it open: this one reads it alone, and with it what
        a crash has left in the log.
        """
        copy = sqlite3.connect(IN_MEMORY, isolation_level=None, check_same_thread=False)
        with closing(sqlite3.connect(self.path, timeout=_OTHERS_S)) as file:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.backup(copy)
        self._prepare(copy)
        copy.execute("PRAGMA query_only = ON")
        self._is_copy = True
        return copy

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA foreign_keys = ON")
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        owner = int(db.execute("PRAGMA application_id").fetchone()[0])
        if owner not in (0, APPLICATION_ID) or (owner == 0 and version):
            raise Damaged(
                "this is not a mirrord catalogue",
                where=str(self.path),
                hint="Move the file away, and restart the daemon if it runs; mirrord then rebuilds "
                "the state of the mirrors.",
            )
        if version > len(MIGRATIONS):
            raise Damaged(
                "the catalogue was written by a newer mirrord",
                where=str(self.path),
                why=f"its version is {version}, this mirrord supports {len(MIGRATIONS)}",
                hint="Install the newer mirrord again.",
            )
        if str(db.execute("PRAGMA journal_mode").fetchone()[0]) != "wal":
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        # The daemon has a connection per thread, so caches are small; the data in them is hot.
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        for number in range(version, len(MIGRATIONS)):
            steps.reached("CATALOGUE:MIGRATE")
            db.execute("BEGIN IMMEDIATE")
            if int(db.execute("PRAGMA user_version").fetchone()[0]) == number:
                for statement in _statements(MIGRATIONS[number]):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute("COMMIT")

    def _explained(self, error: sqlite3.DatabaseError | OverflowError) -> MirrordError:
        where, text = str(self.path), str(error)
        if isinstance(error, OverflowError):
            return ProtocolError(
                "a number is too large for the catalogue",
                where=where,
                why=f"{text}: it is from a damaged record of a volume, or from another host",
                hint="Install the same version of mirrord at both ends.",
            )
        if not isinstance(error, sqlite3.OperationalError):
            return Damaged(
                "the catalogue is damaged",
                where=where,
                why=text,
                hint="Move the file away, and restart the daemon if it runs; mirrord then rebuilds "
                "the state of each mirror from its two ends. Only history and 'quiesce' are lost.",
            )
        if "full" in text or (self._is_copy and "readonly" in text):
            return NoSpace(
                "the catalogue cannot be written: no space is left",
                where=where,
                hint="Free space there; nothing that was recorded is lost.",
            )
        if "locked" in text or "busy" in text:
            return Busy("the catalogue is locked by another process", where=where)
        return IoFailed(
            "the catalogue cannot be used",
            where=where,
            why=text,
            hint="Check that the folder exists, that you may write to it (as root), and that its "
            "disk is not full.",
        )

    @contextmanager
    def _transaction(self, label: str) -> Iterator[sqlite3.Connection]:
        steps.reached(f"CATALOGUE:{label}")
        with self._turn:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._wait_for_others(_OTHERS_S)
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except (sqlite3.DatabaseError, OverflowError) as error:
                explained = self._explained(error)
                if isinstance(explained, Busy):
                    self._wait_for_others(_AGAIN_S)
                raise explained from error

    def _wait_for_others(self, patience_s: float) -> None:
        if patience_s != self._patience_s:
            self._db.execute(f"PRAGMA busy_timeout = {patience_s * 1000:.0f}")
            self._patience_s = patience_s

    def _change(self, label: str, sql: str, *values: Any) -> None:
        """A transaction of one statement."""
        with self._transaction(label) as db:
            db.execute(sql, values)

    def _row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row, if there is one."""
        rows = self._rows(sql, *values)
        return rows[0] if rows else None

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except (sqlite3.DatabaseError, OverflowError) as error:
            raise self._explained(error) from error


def keep_newest(db: sqlite3.Connection, table: str, most: int, **values: str | None) -> None:
    """Of the rows with these values, delete all but the newest."""
    having = " AND ".join(f"{column} IS ?" for column in values)
    db.execute(
        f"DELETE FROM {table} WHERE {having} AND rowid <= (SELECT rowid FROM {table} "  # noqa: S608 - own names
        f"WHERE {having} ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
        (*values.values(), *values.values(), most),
    )


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends with a semicolon"
