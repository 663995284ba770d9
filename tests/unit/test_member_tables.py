"""Definitions with [[member]] tables: read strictly, written, turned round, refused."""

from __future__ import annotations

import pytest

from mirrord.config.members import parse_pairs
from mirrord.config.reading import parse
from mirrord.config.together import check_together
from mirrord.config.writing import render
from mirrord.core.errors import ConfigError, MirrordError, UsageError
from tests.support.definitions import two_sites

TEXT = """\
id = "ab12"

[site.here]
keep = 3

[site.there]

[site.there.hooks]
timeout = "5s"

# The database.
[[member]]
name = "data"
here = "btrfs:/db/data"
there = "btrfs:/backup/data"

[[member]]
name = "log"
here = "btrfs:/db/log"  # another disk
there = "btrfs://dr.example.org/backup/log"
"""


def test_members_are_read_and_written() -> None:
    found = parse("db", TEXT, "db.toml")
    assert [one.name for one in found.members] == ["data", "log"] == [m.name for m in found.pairs]
    assert found.source == found.members[0].source
    assert str(found.members[1].destination) == "btrfs://dr.example.org/backup/log"
    again = parse("db", render(found), "db.toml")
    assert again.members == found.members and again.keep_source == 3
    assert again.sites == found.sites


def test_a_definition_without_tables_has_one_member() -> None:
    found = parse("one", two_sites("block:/a", "block:/b"), "one.toml")
    [pair] = found.pairs
    assert found.members == ()
    assert (pair.name, pair.source, pair.destination) == ("", found.source, found.destination)


def test_in_the_other_direction_each_member_is_turned() -> None:
    turned = parse("db", TEXT, "db.toml", "there")
    assert [str(one.source) for one in turned.members] == [
        "btrfs:/backup/data",
        "btrfs://dr.example.org/backup/log",
    ]
    assert [str(one.destination) for one in turned.members] == ["btrfs:/db/data", "btrfs:/db/log"]
    assert (turned.source, turned.hooks.timeout_s) == (turned.members[0].source, 5.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "log"', 'name = "data"', "two members have the same name"),
        ('"btrfs:/db/log"', '"btrfs:/db/data"', "volumes are the same"),
        ('"btrfs:/db/log"', '"btrfs:/db/data/log"', "inside the other"),
        ('"btrfs:/db/log"', '"btrfs:/backup/data/log"', "inside the other"),
        ('"btrfs:/db/log"', '"block:/db/log"', "cannot be mirrored to"),
        (
            '"btrfs://dr.example.org/backup/log"',
            '"btrfs:/backup/data"',
            "same destination|volumes are the same",
        ),
        ('name = "log"\n', "", "each needs a name"),
        ('name = "log"', 'name = "log"\nextra = 1', "expected a string"),
        ('name = "log"', 'name = "log"\nelsewhere = "btrfs:/x"', "endpoint for each site"),
        ('here = "btrfs:/db/log"', "", "endpoint for each site"),
        ('name = "log"', 'name = "../log"', "is not a valid name for a member"),
        ("keep = 3", 'endpoint = "btrfs:/db"', "cannot be combined"),
        ("keep = 3", 'snapshots = ["daily.*"]', "cannot be combined"),
        ('id = "ab12"', 'id = "ab12"\nrecursive = true', "cannot be combined"),
    ],
)
def test_contradictory_settings_are_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(MirrordError, match=message):
        check_together([parse("db", TEXT.replace(old, new), "db.toml")])


def test_members_of_two_kinds_and_an_empty_list_are_refused() -> None:
    block = TEXT.replace("btrfs:/db/log", "block:/db/log").replace(
        "btrfs://dr.example.org/backup/log", "block:/backup/log"
    )
    with pytest.raises(ConfigError, match="different kinds"):
        check_together([parse("db", block, "db.toml")])
    with pytest.raises(ConfigError, match="at least one"):
        parse("db", f"member = []\n{TEXT.partition('# The')[0]}", "db.toml")


def test_a_part_of_another_mirrors_sets_is_not_mirrored_further() -> None:
    first = parse("db", TEXT, "db.toml")
    alone = two_sites("btrfs:/backup/data", "btrfs:/far/data", mirror_id="cd34")
    with pytest.raises(ConfigError, match="only some members"):
        check_together([first, parse("far", alone, "far.toml")])
    whole = (
        TEXT.replace("ab12", "cd34")
        .replace("btrfs:/db/data", "btrfs:/far/data")
        .replace("btrfs:/db/log", "btrfs:/far/log")
    )
    turned = parse("far", whole, "far.toml")
    members = tuple(
        one._replace(source=one.destination, destination=one.source) for one in turned.members
    )
    check_together(
        [
            first,
            turned._replace(
                members=members, source=members[0].source, destination=members[0].destination
            ),
        ]
    )
    other = turned._replace(destination=first.source)
    assert other.destination == first.source
    with pytest.raises(ConfigError, match="have the same destination"):
        check_together([first, parse("far", TEXT.replace("ab12", "cd34"), "far.toml")])


def test_members_of_a_command_line() -> None:
    pairs = parse_pairs(["btrfs:/db/data=btrfs:/b/data", "btrfs:/x=y/data=btrfs://h/b/data2"])
    assert [one.name for one in pairs] == ["data", "data-2"]
    assert str(pairs[1].source) == "btrfs:/x=y/data"
    with pytest.raises(UsageError, match="two volumes"):
        parse_pairs(["btrfs:/db/data"])
