"""The catalogue: durable, strict about what it opens, and one transaction for each method."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from mirrord.catalogue import base
from mirrord.catalogue.arguments import Arguments
from mirrord.catalogue.schema import APPLICATION_ID, MIGRATIONS
from mirrord.catalogue.store import Catalogue, Confirmed, TransferBegin
from mirrord.core.errors import Busy, Damaged, MirrordError, ProtocolError
from mirrord.core.model import Snapshot, SnapshotKind
from mirrord.core.records import FailureRecord
from mirrord.core.states import State
from mirrord.system import steps

SNAPSHOT = Snapshot("g1", "s1", SnapshotKind.REFERENCE, 1, 1)


def begun(transfer: str = "t1") -> TransferBegin:
    return TransferBegin(transfer, "update", None, "first", SNAPSHOT, 1, show=True)


def test_what_was_recorded_is_there_after_reopening(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.UNINITIALIZED)
    arguments = catalogue.begin("m", "update", Arguments(mark="x"), name=lambda n: f"name.{n}")
    assert arguments == Arguments(mark="x", sequence=1, name="name.1")
    catalogue.begin_transfer("m", begun())
    catalogue.close()
    again = Catalogue(tmp_path / "c")
    operation = again.operation("m")
    assert operation is not None and operation.phase == "transferring"
    assert operation.arguments == arguments._replace(transfer="t1", guid="g1", show=True)
    again.end(
        "m",
        state=State.MIRRORED,
        confirmed=Confirmed("g1", 5),
        transfer=("t1", "done", {"lag_ms": 3}),
    )
    assert again.operation("m") is None
    row = again.mirror("m")
    assert row is not None and row.state is State.MIRRORED and row.confirmed_ns == 5
    assert row.confirmed_guid == "g1"
    [transfer] = again.transfers("m", limit=5)
    assert transfer.result == "done" and transfer.lag_ms == 3 and transfer.full_reason == "first"
    assert again.snapshots("m") == {"g1": ("s1", SnapshotKind.REFERENCE, 1)}
    again.close()


def test_a_sequence_number_is_never_given_out_twice(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.MIRRORED)
    given = []
    for _ in range(3):
        given.append(catalogue.begin("m", "update", name=str).sequence)
        catalogue.end("m")
    assert given == [1, 2, 3]
    catalogue.close()


def test_one_operation_at_a_time(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.MIRRORED)
    catalogue.begin("m", "update")
    with pytest.raises(MirrordError):
        catalogue.begin("m", "break")
    catalogue.close()


def test_a_failing_transaction_leaves_nothing(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.MIRRORED)

    def fail(label: str) -> None:
        raise OSError(5, "injected", label)

    steps.observe(fail)
    with pytest.raises(OSError, match="injected"):
        catalogue.begin("m", "update")
    steps.observe(None)
    assert catalogue.operation("m") is None
    catalogue.close()


def test_who_was_awaited_in_vain_is_awaited_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_OTHERS_S", 4.0)
    monkeypatch.setattr(base, "_AGAIN_S", 0.1)
    catalogue = Catalogue(tmp_path / "catalogue.sqlite")
    other = sqlite3.connect(tmp_path / "catalogue.sqlite", isolation_level=None)

    def waited_s() -> float:
        other.execute("BEGIN IMMEDIATE")
        began_s = time.monotonic()
        with pytest.raises(Busy, match="locked by another process"):
            catalogue.set_fact("a", 1)
        other.execute("COMMIT")
        return time.monotonic() - began_s

    first_s = waited_s()
    assert first_s > 3
    assert waited_s() < first_s / 2
    catalogue.set_fact("a", 1)
    assert waited_s() > 3
    catalogue.close()
    other.close()


def test_a_number_of_another_host_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.UNINITIALIZED)
    with pytest.raises(ProtocolError, match="too large for the catalogue"):
        catalogue.end("m", state=State.MIRRORED, confirmed=Confirmed("g1", 2**63))
    row = catalogue.mirror("m")
    assert row is not None and row.state is State.UNINITIALIZED
    catalogue.close()


def test_a_catalogue_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Catalogue(tmp_path / "c").close()
    raw = sqlite3.connect(tmp_path / "c")
    raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.close()
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(Damaged, match="newer mirrord"):
        Catalogue(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 999]
)
def test_a_corrupt_catalogue_is_named_with_the_way_on(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(Damaged) as caught:
        Catalogue(tmp_path / "c")
    assert "Move the file away, and restart the daemon" in caught.value.hint
    assert (tmp_path / "c").read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "c")
    raw.execute("PRAGMA user_version = 3")
    raw.close()
    with pytest.raises(Damaged, match="not a mirrord catalogue"):
        Catalogue(tmp_path / "c")


def test_the_catalogue_is_for_its_owner_only(tmp_path: Path) -> None:
    Catalogue(tmp_path / "c").close()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600


def test_the_last_rows_of_a_mirror_are_found_without_sorting_its_history(tmp_path: Path) -> None:
    Catalogue(tmp_path / "catalogue.sqlite").close()
    raw = sqlite3.connect(tmp_path / "catalogue.sqlite")
    for table in ("transfer", "event"):
        plan = raw.execute(
            f"EXPLAIN QUERY PLAN SELECT * FROM {table} WHERE mirror_id = 'x' "
            "ORDER BY rowid DESC LIMIT 1"
        ).fetchall()
        assert not any("TEMP" in row[3] for row in plan)
    raw.close()


def older(path: Path, version: int) -> sqlite3.Connection:
    """An empty catalogue of an earlier version."""
    raw = sqlite3.connect(path)
    for script in MIGRATIONS[:version]:
        raw.executescript(script)
    raw.execute(f"PRAGMA user_version = {version}")
    raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return raw


def test_what_an_older_version_recorded_is_before_all_that_follows(tmp_path: Path) -> None:
    """It did not record in which order things happened."""
    raw = older(tmp_path / "c", 9)
    raw.execute("INSERT INTO event (mirror_id, at_ns, level, text) VALUES ('m', 1, 'info', 'old')")
    raw.commit()
    raw.close()
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_mirror("m", State.MIRRORED)
    catalogue.add_event("m", "info", "new")
    catalogue.add_attempt("m", verb="update", cause="retry", number=1, code="x", error="why")
    catalogue.add_event("m", "info", "newer")
    assert [one.recorded for one in catalogue.events("m", limit=9)] == [3, 1, 0]
    assert [one.recorded for one in catalogue.attempts("m", limit=9)] == [2]
    catalogue.close()


def test_a_time_of_an_older_version_is_bound_to_no_snapshot(tmp_path: Path) -> None:
    """What was shown then was not recorded: nobody may guess it."""
    raw = older(tmp_path / "c", 3)
    raw.execute(
        "INSERT INTO mirror (id, state, quiesced, sequence, confirmed_ns, created_ns) "
        "VALUES ('m', 'mirrored', 1, 7, 99, 1)"
    )
    raw.commit()
    raw.close()
    catalogue = Catalogue(tmp_path / "c")
    row = catalogue.mirror("m")
    assert row is not None and row.confirmed_guid == ""
    assert row.state is State.MIRRORED and row.quiesced
    assert row.sequence == 7 and row.confirmed_ns == 99
    catalogue.set_confirmed("m", Confirmed("g", 100))
    row = catalogue.mirror("m")
    assert row is not None and (row.confirmed_guid, row.confirmed_ns) == ("g", 100)
    assert catalogue.failures("m") == []
    catalogue.close()


def test_failures_are_kept_by_kind_until_they_are_crossed_out(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c")
    for verb, at_ns in (("update", 1), ("break", 2), ("reverse", 3)):
        kind = "break" if verb == "break" else "update"
        catalogue.add_failure("unknown", FailureRecord(kind, verb, at_ns, "io", f"{verb}: why"))
    assert [each.verb for each in catalogue.failures("unknown")] == ["break", "reverse"]
    catalogue.clear_failures("unknown", ["update", "prune"])
    assert [each.verb for each in catalogue.failures("unknown")] == ["break"]
    catalogue.remove_mirror("unknown")
    assert catalogue.failures("unknown") == []
    catalogue.close()


def test_events_and_alarms_of_a_mirror_that_the_catalogue_does_not_know(tmp_path: Path) -> None:
    raw = older(tmp_path / "c", len(MIGRATIONS) - 1)
    raw.execute("INSERT INTO mirror (id, state, created_ns) VALUES ('m', 'mirrored', 1)")
    raw.execute("INSERT INTO event (mirror_id, at_ns, level, text) VALUES ('m', 1, 'info', 'old')")
    raw.execute(
        "INSERT INTO alarm (mirror_id, kind, level, text, raised_ns) "
        "VALUES (NULL, 'lag', 'error', 'old', 2)"
    )
    raw.commit()
    raw.close()
    catalogue = Catalogue(tmp_path / "c")
    catalogue.add_event("unknown", "warning", "new")
    catalogue.raise_alarm("unknown", "lag", "error", "new")
    assert [each.text for each in catalogue.events("unknown", limit=9)] == ["new"]
    assert [each.text for each in catalogue.events("m", limit=9)] == ["old"]
    assert [each.text for each in catalogue.alarms(up=True)] == ["new", "old"]
    catalogue.close()


def test_the_reason_of_a_full_transfer_is_kept_under_its_new_name(tmp_path: Path) -> None:
    raw = older(tmp_path / "c", 5)
    raw.execute("INSERT INTO mirror (id, state, created_ns) VALUES ('m', 'mirrored', 1)")
    raw.execute(
        "INSERT INTO transfer (id, mirror_id, verb, why_whole, guid, name, result, started_ns) "
        "VALUES ('t', 'm', 'initialize', 'first transfer', 'g', 'n', 'done', 5)"
    )
    raw.commit()
    raw.close()
    catalogue = Catalogue(tmp_path / "c")
    [transfer] = catalogue.transfers("m", limit=9)
    assert (transfer.id, transfer.full_reason) == ("t", "first transfer")
    catalogue.close()
