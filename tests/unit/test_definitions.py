"""Definitions: strict reading, and writing that is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.config.definitions import Definitions, parse, render
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, MirrordError, NotFound
from mirrord.core.model import Definition, Pace, Promise, Timing

GOOD = """\
# my own words
id = "ab12"
source = "block:/srv/a"   # the first
destination = "block:/srv/b"
"""


def definition(name: str = "home", **changes: object) -> Definition:
    values = {
        "id": "ab12",
        "source": parse_endpoint("block:/srv/a"),
        "destination": parse_endpoint("block:/srv/b"),
        **changes,
    }
    return Definition(name=name, **values)  # type: ignore[arg-type]


def test_what_is_written_is_read_again() -> None:
    made = definition(
        snapshots=('odd"*\\', "x"), destination=parse_endpoint('block:/srv/with "quotes" \\ b')
    )
    again = parse("home", render(made), "")
    assert again == made


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": Timing(("every\n15m",))},
        {"pace": Pace("5MiB/s\t08:00-09:00")},
        {"snapshots": ("a\tb\x00\x7f",)},
        {"promise": Promise(200 * 86400.0)},
        {"promise": Promise(1234567.25)},
        {"promise": Promise(0.001)},
    ],
)
def test_nothing_odd_makes_a_file_that_cannot_be_read(changes: dict[str, object]) -> None:
    made = definition(**changes)  # type: ignore[arg-type]
    assert parse("home", render(made), "") == made


def test_a_definition_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="snapshots"):
        Definitions(tmp_path).add(definition(snapshots=("",)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "line", "says", "hints"),
    [
        ('sorce = "x"\n', 5, "unknown key 'sorce'", "'source'"),
        ("zzz = 1\n", 5, "unknown key 'zzz'", "Known keys"),
        ("keep_source = 0\n", 5, "'keep_source' is wrong", ""),
        ("keep_source = true\n", 5, "'keep_source' is wrong", ""),
        ('keep_source = "2 fortnightly"\n', 5, "fortnightly", ""),
        ('schedule = "0 0 31 2 *"\n', 5, "never", ""),
        ('schedule = "every 0s"\n', 5, "every 0s", ""),
        ('schedule = "every 5m"\nzone = "Europe/Berln"\n', 5, "Europe/Berln", "Europe/Berlin"),
        ('schedule = ["every 5m", "lag 5m"]\n', 5, "lag target stands alone", ""),
        ('zone = "UTC"\n', 5, "there is no schedule", "schedule ="),
        ('throttle = "0"\n', 5, "0", "quiesce"),
        ('rpo = "soon"\n', 5, "soon", ""),
        ("borrow = 0.5\n", 5, "'borrow' is wrong", ""),
        ("io_pressure = 0\n", 5, "'io_pressure' is wrong", ""),
        ('[hooks]\nbefore_snapshot = "sync"\n', 6, "'hooks.before_snapshot' is wrong", ""),
        ('[hooks]\nbefore_snap = ["/bin/sync"]\n', 6, "hooks.before_snap", "'before_snapshot'"),
        ("warn_percent = 300\n", 1, "below 'warn_percent'", ""),
        ('policy = "sync"\n', 5, "'policy' is wrong", ""),
        ("snapshots = 3\n", 5, "'snapshots' is wrong", ""),
        ("[section]\na = 1\n", 5, "unknown key 'section'", ""),
        ("nonsense\n", 5, "not valid TOML", ""),
        ('id = "again"\n', 5, "not valid TOML", ""),
    ],
)
def test_a_wrong_line_is_named(change: str, line: int, says: str, hints: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("home", GOOD + change, "home.toml")
    assert caught.value.where == f"home.toml:{line}"
    assert says in str(caught.value) and hints in caught.value.hint
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("key", ["id", "source", "destination"])
def test_a_missing_key_is_named(key: str) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(key))
    with pytest.raises(ConfigError, match=f"'{key}' is missing"):
        parse("home", text, "home.toml")


def test_a_wrong_endpoint_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("home", GOOD.replace("block:/srv/b", "blok:/srv/b"), "home.toml")
    assert caught.value.where == "home.toml:4" and "block:/srv/b" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("block:/a", "block:/a", "the same"),
        ("block:/a", "block:/a/b", "inside the source"),
        ("block:/a/b", "block:/a", "inside the destination"),
        ("block:/a", "btrfs:/b", "cannot be mirrored"),
    ],
)
def test_ends_that_cannot_be_meant_are_refused(
    tmp_path: Path, source: str, destination: str, says: str
) -> None:
    made = definition(source=parse_endpoint(source), destination=parse_endpoint(destination))
    with pytest.raises(ConfigError, match=says):
        Definitions(tmp_path).add(made)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "destination", "why", "hint"),
    [
        ("btrfs:/a", "zfs:tank/b", "not made for each other", "zvol, a block volume"),
        ("zfs:tank/a", "btrfs:/b", "not made for each other", "that will come"),
        ("zfs:tank/a", "block:/b", "a dataset's stream", "a later version"),
        ("zfs:tank/a", "zfs-tree:tank/b", "", "--recursive"),
    ],
)
def test_a_mixed_mirror_is_refused_with_the_reason(
    tmp_path: Path, source: str, destination: str, why: str, hint: str
) -> None:
    made = definition(source=parse_endpoint(source), destination=parse_endpoint(destination))
    with pytest.raises(ConfigError) as caught:
        Definitions(tmp_path).add(made)
    assert why in caught.value.why and hint in caught.value.hint


def test_a_tree_is_written_as_people_mean_it_and_stays_one(tmp_path: Path) -> None:
    folder = Definitions(tmp_path)
    ends = [parse_endpoint("zfs-tree:tank/a"), parse_endpoint("zfs-tree://dr/vault/a")]
    folder.add(definition(source=ends[0], destination=ends[1]))
    text = (tmp_path / "home.toml").read_text()
    assert 'source = "zfs:tank/a"\n' in text and "\nrecursive = true\n" in text
    after = folder.swap("home", ends[1], ends[0])
    assert (after.source, after.destination) == (ends[1], ends[0]) and folder.load("home") == after
    assert "zfs-tree" not in (tmp_path / "home.toml").read_text()
    with pytest.raises(ConfigError, match="one destination"):
        folder.add(definition("other", id="cd", source=parse_endpoint("zfs:tank/x"),
                              destination=parse_endpoint("zfs:tank/a")))  # fmt: skip
    with pytest.raises(ConfigError, match="all below it"):
        parse("home", GOOD + "recursive = true\n", "home.toml")


def test_siblings_with_a_common_beginning_are_fine(tmp_path: Path) -> None:
    made = definition(
        source=parse_endpoint("block:/srv/a"), destination=parse_endpoint("block:/srv/ab")
    )
    assert Definitions(tmp_path).add(made).file == str(tmp_path / "home.toml")


def test_two_mirrors_share_neither_destination_nor_id(tmp_path: Path) -> None:
    folder = Definitions(tmp_path)
    folder.add(definition())
    with pytest.raises(ConfigError, match="one destination"):
        folder.add(definition("other", id="cd"))
    with pytest.raises(ConfigError, match="one id"):
        folder.add(definition("other", destination=parse_endpoint("block:/srv/c")))
    with pytest.raises(MirrordError, match="exists already"):
        folder.add(definition())


def test_swapping_keeps_the_owners_words(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(GOOD)
    folder = Definitions(tmp_path)
    before = folder.load("home")
    after = folder.swap("home", before.destination, before.source)
    assert (after.source, after.destination) == (before.destination, before.source)
    assert folder.load("home") == after
    assert "# my own words" in (tmp_path / "home.toml").read_text()


def test_a_misspelt_name_finds_its_neighbour(tmp_path: Path) -> None:
    folder = Definitions(tmp_path)
    with pytest.raises(NotFound) as caught:
        folder.load("home")
    assert "mirrord create" in caught.value.hint
    folder.add(definition())
    with pytest.raises(NotFound) as caught:
        folder.load("hoem")
    assert "'home'" in caught.value.hint


def test_what_editors_leave_and_links_to_nothing(tmp_path: Path) -> None:
    folder = Definitions(tmp_path)
    (tmp_path / "home.toml").write_text(GOOD)
    (tmp_path / ".#home.toml").symlink_to("ann@host.4711")  # Emacs, while it is edited
    assert [found.name for found in folder.all()] == ["home"]
    (tmp_path / "other.toml").symlink_to("/nowhere/other.toml")
    with pytest.raises(ConfigError, match="a link to /nowhere"):
        folder.all()
    (tmp_path / "other.toml").rename(tmp_path / "an other.toml")
    with pytest.raises(ConfigError, match=r"an other.toml: 'an other' cannot name a mirror"):
        folder.all()


@pytest.mark.parametrize("line", ['rpo = "0s"', 'stall = "0 min"', '[hooks]\ntimeout = "0s"'])
def test_no_time_at_all_is_no_duration(line: str) -> None:
    with pytest.raises(ConfigError, match="no time at all"):
        parse("home", GOOD + line, "home.toml")
