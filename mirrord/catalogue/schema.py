"""The tables, and the migrations that create them. This is their canonical description.

Definitions are not stored here: they are TOML files. Nor is the content of volumes: the volumes
themselves have it. The catalogue records what was to be done, and what was done.
"""

#: Marks the file as ours ("mird").
APPLICATION_ID = 0x6D697264

#: Each entry leads from version n to n + 1 (PRAGMA user_version).
MIGRATIONS = (
    """
    -- One row for each mirror that was ever used here.
    -- state: as mirrord.core.states.State. quiesced: 0 or 1, survives restarts.
    -- sequence: of the last snapshot name assigned; only increases.
    -- confirmed_ns: when the destination was last known to equal the source (wall time): the
    --   time of the snapshot shown, or later, when a check found the source unchanged. 0: never.
    CREATE TABLE mirror (
        id            TEXT PRIMARY KEY,
        state         TEXT NOT NULL CHECK (state IN ('uninitialized', 'mirrored', 'broken-off')),
        quiesced      INTEGER NOT NULL DEFAULT 0 CHECK (quiesced IN (0, 1)),
        sequence      INTEGER NOT NULL DEFAULT 0,
        confirmed_ns  INTEGER NOT NULL DEFAULT 0,
        created_ns    INTEGER NOT NULL
    ) STRICT;

    -- Running operations: the intent, durable before the first effect. At most one per mirror.
    -- The row is deleted when the work is done or undone. A row found at the start of a verb was
    -- left by a crash: mirrord.engine.recovery handles it.
    -- phase: the last step that is known to be done, per verb (mirrord.engine.recovery).
    -- arguments: JSON, everything that recovery needs to finish unattended.
    CREATE TABLE operation (
        mirror_id   TEXT PRIMARY KEY REFERENCES mirror (id),
        verb        TEXT NOT NULL,
        phase       TEXT NOT NULL,
        arguments   TEXT NOT NULL CHECK (json_valid(arguments)),
        pid         INTEGER NOT NULL,
        started_ns  INTEGER NOT NULL
    ) STRICT;

    -- The snapshots that mirrord took or carried for a mirror, by identity (guid). Only these
    -- may be pruned: any other snapshot is not managed by mirrord.
    -- sequence: position in the mirror's history. kind: as mirrord.core.model.SnapshotKind.
    CREATE TABLE snapshot (
        mirror_id  TEXT NOT NULL REFERENCES mirror (id),
        guid       TEXT NOT NULL,
        name       TEXT NOT NULL,
        kind       TEXT NOT NULL,
        sequence   INTEGER NOT NULL,
        taken_ns   INTEGER NOT NULL,
        PRIMARY KEY (mirror_id, guid)
    ) STRICT;

    -- One row for each transfer of one snapshot, kept as history.
    -- base: guid, or NULL for a full transfer. why_whole: the reason, when base is NULL.
    -- result: running | done | failed | aborted. error: one line when failed or aborted.
    -- stream_bytes: what was sent; added_bytes: of blocks in state `added`; states: JSON or NULL.
    -- checksum: XXH3-128 of the stream, hex; '' until it is complete.
    CREATE TABLE transfer (
        id            TEXT PRIMARY KEY,
        mirror_id     TEXT NOT NULL REFERENCES mirror (id),
        verb          TEXT NOT NULL,
        base          TEXT,
        why_whole     TEXT NOT NULL DEFAULT '',
        guid          TEXT NOT NULL,
        name          TEXT NOT NULL,
        result        TEXT NOT NULL CHECK (result IN ('running', 'done', 'failed', 'aborted')),
        started_ns    INTEGER NOT NULL,
        duration_ms   INTEGER NOT NULL DEFAULT 0,
        stream_bytes  INTEGER NOT NULL DEFAULT 0,
        resumed_bytes INTEGER NOT NULL DEFAULT 0,
        added_bytes   INTEGER NOT NULL DEFAULT 0,
        lag_ms        INTEGER NOT NULL DEFAULT 0,
        checksum      TEXT NOT NULL DEFAULT '',
        error         TEXT NOT NULL DEFAULT ''
    ) STRICT;
    CREATE INDEX transfer_by_time ON transfer (mirror_id, started_ns);

    -- Events other than transfers, one line each: state changes, recoveries, warnings.
    CREATE TABLE event (
        id         INTEGER PRIMARY KEY,
        mirror_id  TEXT NOT NULL REFERENCES mirror (id),
        at_ns      INTEGER NOT NULL,
        level      TEXT NOT NULL CHECK (level IN ('info', 'warning', 'error')),
        text       TEXT NOT NULL
    ) STRICT;
    CREATE INDEX event_by_time ON event (mirror_id, at_ns);
    """,
    """
    -- throttled_ms: how long it waited for its rates. phases: JSON, milliseconds by phase.
    ALTER TABLE transfer ADD COLUMN throttled_ms INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE transfer ADD COLUMN phases TEXT NOT NULL DEFAULT '{}';

    -- In order of insertion, for the newest few of a mirror.
    DROP INDEX transfer_by_time;
    DROP INDEX event_by_time;
    CREATE INDEX transfer_by_mirror ON transfer (mirror_id);
    CREATE INDEX event_by_mirror ON event (mirror_id);

    -- accepted: an administrator accepted a doubt about pruning; snapshots up to this sequence
    --   are not checked again.
    ALTER TABLE mirror ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0;

    -- Failed attempts, of the scheduler and of users, each with its reason.
    -- number: 1 for the first of a run. cause: what started it (schedule, retry, asked, missed).
    CREATE TABLE attempt (
        id           INTEGER PRIMARY KEY,
        mirror_id    TEXT NOT NULL REFERENCES mirror (id),
        at_ns        INTEGER NOT NULL,
        verb         TEXT NOT NULL,
        cause        TEXT NOT NULL,
        number       INTEGER NOT NULL,
        code         TEXT NOT NULL,
        error        TEXT NOT NULL
    ) STRICT;
    CREATE INDEX attempt_by_time ON attempt (mirror_id, at_ns);

    -- Active and cleared alarms. mirror_id: NULL for an alarm of the host.
    -- level: warning | error. cleared_ns: NULL while it is active.
    CREATE TABLE alarm (
        id          INTEGER PRIMARY KEY,
        mirror_id   TEXT REFERENCES mirror (id),
        kind        TEXT NOT NULL,
        level       TEXT NOT NULL CHECK (level IN ('warning', 'error')),
        text        TEXT NOT NULL,
        raised_ns   INTEGER NOT NULL,
        cleared_ns  INTEGER
    ) STRICT;
    CREATE INDEX alarm_by_mirror ON alarm (mirror_id, raised_ns);

    -- Facts about the host. clock_doubt: JSON when the wall clock jumped and the change was not
    -- accepted since.
    CREATE TABLE host (
        key    TEXT PRIMARY KEY,
        value  TEXT NOT NULL
    ) STRICT;
    """,
    """
    -- source: the endpoint at which it was taken, or "" when that is not known: mirrors of one
    -- source may share a snapshot, and the last of them deletes it there.
    ALTER TABLE snapshot ADD COLUMN source TEXT NOT NULL DEFAULT '';
    CREATE INDEX snapshot_by_guid ON snapshot (guid);
    """,
    """
    -- confirmed_guid: the snapshot that was shown at confirmed_ns. '' when that is
    --   not known (before the first transfer, or recorded by an older version).
    ALTER TABLE mirror ADD COLUMN confirmed_guid TEXT NOT NULL DEFAULT '';

    -- Where an end of a mirror was last known to be mounted, by its endpoint.
    CREATE TABLE place (
        mirror_id  TEXT NOT NULL,
        endpoint   TEXT NOT NULL,
        mount      TEXT NOT NULL,
        filesystem TEXT NOT NULL,
        PRIMARY KEY (mirror_id, endpoint)
    ) STRICT;

    -- Commands that failed, until one of that kind succeeds: at most one row for each kind.
    -- mirror_id: also for a mirror without a row in `mirror` (which could not be written).
    -- kind: as in mirrord.engine.failures. code: of the error. error: one line.
    CREATE TABLE failure (
        mirror_id  TEXT NOT NULL,
        kind       TEXT NOT NULL,
        verb       TEXT NOT NULL,
        at_ns      INTEGER NOT NULL,
        code       TEXT NOT NULL,
        error      TEXT NOT NULL,
        PRIMARY KEY (mirror_id, kind)
    ) STRICT;
    """,
    """
    -- A copy of the relationship record that both ends of a mirror had when they were last read.
    -- record: as mirrord.core.relationship.encode. The records at the ends are authoritative.
    CREATE TABLE relationship (
        mirror_id  TEXT PRIMARY KEY,
        record     TEXT NOT NULL
    ) STRICT;

    -- spread_ms: how far apart the snapshots of the members were taken. NULL: not known.
    ALTER TABLE transfer ADD COLUMN spread_ms INTEGER;

    -- Which site of a mirror is the source: its definition only names the sites.
    -- mirror_id: also for a mirror without a row in `mirror`.
    -- since_ns: since when (wall time). 0: not known, it was read from the ends.
    CREATE TABLE direction (
        mirror_id    TEXT PRIMARY KEY,
        source_site  TEXT NOT NULL,
        since_ns     INTEGER NOT NULL
    ) STRICT;
    """,
    """
    -- full_reason: why a transfer was a full one.
    ALTER TABLE transfer RENAME COLUMN why_whole TO full_reason;
    """,
    """
    -- The last verification of each snapshot of a mirror.
    -- mode: as mirrord.core.verification.VerifyMode. differences: how many paths differ; 0: the
    --   destination equals the source. root: the digest of the source, hex; of several members
    --   joined by `+`.
    CREATE TABLE verification (
        mirror_id    TEXT NOT NULL,
        guid         TEXT NOT NULL,
        name         TEXT NOT NULL,
        at_ns        INTEGER NOT NULL,
        mode         TEXT NOT NULL,
        differences  INTEGER NOT NULL,
        root         TEXT NOT NULL,
        PRIMARY KEY (mirror_id, guid)
    ) STRICT;
    """,
    """
    -- pause: JSON, how long each member's application was paused (mirrord.core.pause). '' for none.
    ALTER TABLE transfer ADD COLUMN pause TEXT NOT NULL DEFAULT '';
    """,
    """
    -- Events and alarms: also of a mirror without a row in `mirror` (the catalogue was lost).
    ALTER TABLE event RENAME TO event_before;
    CREATE TABLE event (
        id         INTEGER PRIMARY KEY,
        mirror_id  TEXT NOT NULL,
        at_ns      INTEGER NOT NULL,
        level      TEXT NOT NULL CHECK (level IN ('info', 'warning', 'error')),
        text       TEXT NOT NULL
    ) STRICT;
    INSERT INTO event SELECT id, mirror_id, at_ns, level, text FROM event_before;
    DROP TABLE event_before;
    CREATE INDEX event_by_mirror ON event (mirror_id);

    ALTER TABLE alarm RENAME TO alarm_before;
    CREATE TABLE alarm (
        id          INTEGER PRIMARY KEY,
        mirror_id   TEXT,
        kind        TEXT NOT NULL,
        level       TEXT NOT NULL CHECK (level IN ('warning', 'error')),
        text        TEXT NOT NULL,
        raised_ns   INTEGER NOT NULL,
        cleared_ns  INTEGER
    ) STRICT;
    INSERT INTO alarm SELECT id, mirror_id, kind, level, text, raised_ns, cleared_ns
        FROM alarm_before;
    DROP TABLE alarm_before;
    CREATE INDEX alarm_by_mirror ON alarm (mirror_id, raised_ns);
    """,
    """
    -- recorded: the position in the order in which transfers (when they began), attempts and events
    --   were recorded: times are not in that order after the clock was set back. 0: recorded by an
    --   older version, before all others.
    ALTER TABLE transfer ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX transfer_by_record ON transfer (recorded);
    ALTER TABLE attempt ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX attempt_by_record ON attempt (recorded);
    ALTER TABLE event ADD COLUMN recorded INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX event_by_record ON event (recorded);
    CREATE VIEW next_record AS SELECT max(recorded) + 1 AS number FROM (
        SELECT coalesce(max(recorded), 0) AS recorded FROM transfer
        UNION ALL SELECT coalesce(max(recorded), 0) FROM attempt
        UNION ALL SELECT coalesce(max(recorded), 0) FROM event
    );
    CREATE TRIGGER transfer_recorded AFTER INSERT ON transfer BEGIN
        UPDATE transfer SET recorded = (SELECT number FROM next_record) WHERE rowid = new.rowid;
    END;
    CREATE TRIGGER attempt_recorded AFTER INSERT ON attempt BEGIN
        UPDATE attempt SET recorded = (SELECT number FROM next_record) WHERE rowid = new.rowid;
    END;
    CREATE TRIGGER event_recorded AFTER INSERT ON event BEGIN
        UPDATE event SET recorded = (SELECT number FROM next_record) WHERE rowid = new.rowid;
    END;
    """,
)
