"""The ZFS driver's own books, without a pool: marks, listings, names, tokens that are believed."""

from __future__ import annotations

import pytest

from mirrord.agent.rules import parse_rules, rights_at
from mirrord.core.endpoint import is_dataset, parse_endpoint
from mirrord.core.errors import CheckpointUseless, Refused, Untrusted, UsageError
from mirrord.core.model import Endpoint, ReceiveRequest, Role, Snapshot, SnapshotKind
from mirrord.drivers.zfs.dataset import marks, names, place
from mirrord.drivers.zfs.dataset.marks import Mark, SnapshotMark
from mirrord.drivers.zfs.driver import ZfsDriver
from mirrord.drivers.zfs.snapshots import listing
from mirrord.drivers.zfs.stream.send import Sending, check_token
from mirrord.drivers.zfs.volume import place_facts
from mirrord.wire.methods import Right

SNAPSHOT = Snapshot("123", "mirrord.a b", SnapshotKind.OWN, 7, 1_795_000_000_000_000_001)
SENDING = Sending("tank/home@a", "1", "tank/home@b", "2", raw=False)


# Marks


@pytest.mark.parametrize(
    "mark",
    [
        Mark(role="mirror", mirror_id="m1"),
        Mark(role="mirror", mirror_id="m1", pin=""),
        Mark(role="live", mirror_id="m1", origin="5", kept=("tank/home.mirrord-a", "b")),
    ],
)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert marks.parse_mark(mark.text()) == mark


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "-",
        "mirror",
        "{",
        "[]",
        "{}",
        '{"v":2,"role":"mirror"}',
        '{"v":1,"role":3}',
        '{"v":1,"kept":"a"}',
        '{"v":1,"kept":[1]}',
    ],
)
def test_what_is_no_mark_is_none(value: str | None) -> None:
    assert marks.parse_mark(value) is None


def test_a_transfer_that_is_begun_is_read_as_it_was_written() -> None:
    request = ReceiveRequest("t 1", "m1", None, SNAPSHOT, resumable=True)
    assert marks.parse_staging(marks.staging_text(request)) == request
    for value in (None, "{}", '{"v":1}', marks.staging_text(request).replace("own", "odd")):
        assert marks.parse_staging(value) is None


def test_the_mark_of_a_snapshot_is_read_as_it_was_written() -> None:
    for mark in (
        SnapshotMark(SnapshotKind.REFERENCE, "", 12),
        SnapshotMark(SnapshotKind.DIVERGED, "a transfer with spaces", 1),
    ):
        assert marks.parse_snapshot(mark.text()) == mark
    for value in ("-", "", "reference", "reference - soon", "something - 12"):
        assert marks.parse_snapshot(value) is None


# Places


def test_a_missing_parent_or_pool_is_in_the_facts() -> None:
    pool, parent = (place.Dataset(name, {}) for name in ("tank", "tank/backup"))
    for above, root, missing in (
        (None, None, "the pool 'tank' is not imported"),
        (None, pool, "the dataset tank/backup does not exist"),
        (parent, pool, ""),
    ):
        there = place.Place("tank/backup/home", None, None, above, root, "")
        facts = place_facts.facts_of(there, None)
        assert facts.role is Role.ABSENT and facts.parent_missing is bool(missing)
        assert facts.notes == ((missing,) if missing else ())


# Listings


LINES = (
    "tank/home@mirrord.1\t11\t40\t1795000000\toff\t1\t-\treference - 1795000000123456789\n"
    "tank/home@daily 1\t12\t41\t1795000001\toff\t0\t-\t-\n"
    "tank/home#mirrord.0\t10\t39\t1794000000\t-\t-\t-\t-\n"
    "tank/home@old\t9\t20\t1793000000\ton\t0\ttank/home.mirrord-a\treference - 1\n"
)


def test_a_listing_keeps_snapshots_bookmarks_and_owners_apart() -> None:
    found = listing.made("tank/home", listing.parse(LINES), None)
    assert [one.full for one in found.entries] == [
        "tank/home@old",
        "tank/home#mirrord.0",
        "tank/home@mirrord.1",
        "tank/home@daily 1",
    ]
    assert [one.guid for one in found.snapshots()] == ["11", "12"], "one that goes counts no more"
    assert [one.guid for one in found.ours()] == ["11"]
    assert found.find("10") is None
    bookmark = found.bookmark("10")
    assert bookmark is not None and bookmark.full == "tank/home#mirrord.0"


def test_the_history_of_a_clone_has_what_it_begins_with_even_when_that_goes() -> None:
    found = listing.made(
        "tank/home",
        listing.parse(
            "tank/home.mirrord-a@one\t1\t10\t1793000000\toff\t0\t-\treference - 1\n"
            "tank/home.mirrord-a@two\t2\t20\t1793000000\ton\t0\ttank/home\treference - 2\n"
            "tank/home.mirrord-a@three\t3\t25\t1793000000\toff\t0\t-\treference - 3\n"
            "tank/home@four\t4\t30\t1793000000\toff\t0\t-\treference - 4\n"
        ),
        None,
    )
    past = {one.name: found.is_past(one) for one in found.entries}
    assert past == {"one": True, "two": True, "three": False, "four": True}


def test_an_entry_is_written_as_zfs_writes_it() -> None:
    for line in LINES.splitlines():
        [one] = listing.parse(line)
        assert listing.parse(one.line()) == [one]


def test_a_snapshot_is_ours_from_the_moment_it_is_received() -> None:
    received = SNAPSHOT._replace(guid="12")
    request = ReceiveRequest("t", "m1", None, received)
    found = listing.made("tank/home", listing.parse(LINES), request)
    [_, own] = found.ours()
    assert own.mark == SnapshotMark(SnapshotKind.OWN, "t", received.taken_at_ns)
    assert not own.marked


def test_a_mark_that_is_inherited_does_not_count() -> None:
    text = Mark(role="mirror", mirror_id="m1").text()
    said = (
        f"tank/a\ttype\tfilesystem\t-\ntank/a\tmirrord:mark\t{text}\tinherited from tank\n"
        f"tank/b\tmirrord:mark\t{text}\tlocal\ntank/c\tmirrord:mark\t{text}\treceived\n"
    )
    found = place.parse(said)
    assert found["tank/a"].mark is None and found["tank/c"].mark is None
    assert found["tank/b"].mark == Mark(role="mirror", mirror_id="m1")


# Names


@pytest.mark.parametrize("name", ["tank", "tank/home", "tank/a b/c", "t/A-1_x.y:z"])
def test_names_of_datasets(name: str) -> None:
    assert is_dataset(name)
    assert ZfsDriver(name).location == name
    assert parse_endpoint(f"zfs:{name}") == Endpoint("zfs", name)
    remote = Endpoint("zfs", name, "me@dr:22")
    assert parse_endpoint(str(remote)) == remote and "//me@dr:22/" in str(remote)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/tank",
        "tank/",
        "tank//a",
        "tank/..",
        "tank/./a",
        "tank/a@b",
        "tank/a#b",
        "tank/%recv",
        "1tank",
        "tank/ a",
        "tank/a\n",
        "tank/a\tb",
        "tank/ä",
        "tank/" + 300 * "a",
        "-tank",
    ],
)
def test_what_is_no_dataset_is_refused(name: str) -> None:
    assert not is_dataset(name)
    with pytest.raises(UsageError):
        ZfsDriver(name)
    with pytest.raises(UsageError):
        parse_endpoint(f"zfs:{name}")


def test_what_the_driver_keeps_for_itself_is_no_volume() -> None:
    for name in (names.fresh("tank/home"), names.set_aside("tank/home", "123")):
        with pytest.raises(UsageError):
            ZfsDriver(name)
    with pytest.raises(Refused):
        names.check_snapshot("a@b", "x")
    assert names.prepared_property("tank/A b") != names.prepared_property("tank/a b")


# What a peer may use


def test_a_rule_for_a_dataset_ends_at_its_border() -> None:
    rules = parse_rules(["receive=tank/backup", "send=tank/data"], append_only=False)
    for inside in ("tank/backup", "tank/backup/a/b"):
        assert rights_at(rules, inside, kind="zfs") == Right.RECEIVE | Right.REMOVE
    assert rights_at(rules, "tank/data/x", kind="zfs") == Right.SEND
    for outside in (
        "tank",
        "tank/backup2",
        "tank/backup2/a",
        "tank/back",
        "tank/backup/../data",
        "tank/other",
        "tank/backup/",
        "/tank/backup",
        "tank/backup@x",
        "tank/backup#x",
        "tank/backup/%recv",
        "tank/backup/a.mirrord-1f",
        "other/backup",
        "",
        "tank/backup\n",
        "tank/backup/a\0",
    ):
        with pytest.raises(Untrusted):
            rights_at(rules, outside, kind="zfs")


def test_a_rule_for_datasets_says_nothing_of_folders_and_the_other_way_round() -> None:
    named = parse_rules(["receive=tank/backup"], append_only=False)
    folders = parse_rules(["receive=/tank/backup"], append_only=False)
    for kind in ("btrfs", "block"):
        for location in ("tank/backup", "/tank/backup", "tank/backup/a"):
            with pytest.raises(Untrusted):
                rights_at(named, location, kind=kind)
    with pytest.raises(Untrusted):
        rights_at(folders, "tank/backup", kind="zfs")


def test_who_may_only_append_removes_no_dataset() -> None:
    rules = parse_rules(["receive=tank/backup"], append_only=True)
    assert rights_at(rules, "tank/backup/a", kind="zfs") == Right.RECEIVE


@pytest.mark.parametrize("word", ["receive=tank", "receive=tank/..", "receive=tank/a@b"])
def test_a_rule_names_a_dataset_plainly_and_no_whole_pool(word: str) -> None:
    with pytest.raises(UsageError):
        parse_rules([word], append_only=False)


# Tokens


@pytest.mark.parametrize("checkpoint", [{"token": "1-0-0-0"}, {"token": 7}, {"bytes": 3}])
def test_what_is_no_token_is_refused(checkpoint: dict[str, int | str]) -> None:
    with pytest.raises(CheckpointUseless):
        check_token(checkpoint, SENDING, "here")
    assert check_token(None, SENDING, "here") is None
