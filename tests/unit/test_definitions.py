"""Definitions: strict reading, and writing that is read again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirrord.config import host
from mirrord.config.definitions import Definitions
from mirrord.config.reading import parse, parse_both
from mirrord.config.writing import render
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, MirrordError, NotFound
from mirrord.core.model import Definition, Pace, Promise, Timing

GOOD = """\
# my own words
id = "ab12"
[site.berlin]
endpoint = "block:/srv/a"   # the first
[site.dr]
endpoint = "block:/srv/b"
"""


def top(*lines: str) -> str:
    """With these lines above the tables; the first of them is line 3."""
    head, table, rest = GOOD.partition("[site.berlin]")
    return head + "\n".join(lines) + "\n" + table + rest


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
    ("change", "says", "hints"),
    [
        ('polcy = "async"', "unknown key 'polcy'", "'policy'"),
        ("zzz = 1", "unknown key 'zzz'", "Known keys"),
        ('schedule = "0 0 31 2 *"', "never", ""),
        ('schedule = "every 0s"', "every 0s", ""),
        (
            'schedule = ["every 5m", "lag 5m"]',
            "a lag target cannot be combined with other rules",
            "",
        ),
        ('zone = "UTC"', "requires a schedule", "schedule ="),
        ('throttle = "0"', "0", "quiesce"),
        ('rpo = "soon"', "soon", ""),
        ("borrow = 0.5", "'borrow' is invalid", ""),
        ("io_pressure = 0", "'io_pressure' is invalid", ""),
        ('verify_rate = "fast"', "'verify_rate' is invalid", ""),
        ('verify_rate = "5MiB"', "'verify_rate' is invalid", ""),
        ('verify_rate = "0MiB/s"', "'verify_rate' is invalid", ""),
        ('verify_max_age = "soon"', "soon", ""),
        ("verify_updates = 1", "'verify_updates' is invalid", ""),
        ('verify_mode = "sample"', "'verify_mode' is invalid", ""),
        ('verify_mode = "full 1 %"', "'verify_mode' is invalid", ""),
        ('verify_schedule = "at noon"', "at noon", ""),
        ('policy = "fast"', "'policy' is invalid", ""),
        ('policy = "sync"', "the policy 'sync' is for images", "image:/PATH"),
        ("[section]\na = 1", "unknown key 'section'", ""),
        ("nonsense", "not valid TOML", ""),
        ('id = "again"', "not valid TOML", ""),
        ("from.berln.retries = 3", "'from.berln' is not a site", "'berlin'"),
        ("from.dr.polcy = 3", "unknown key 'from.dr.polcy'", ""),
        ("from.dr.keep.brlin = 3", "'from.dr.keep.brlin' is not a site", "'berlin'"),
        ("from.dr = {keep = {berlin = 0}}", "'from.dr.keep.berlin' is invalid", ""),
        ("from.dr = {zone = 'UTC'}", "requires a schedule", "schedule ="),
        ("from.dr.warn_percent = 300", "below 'warn_percent'", ""),
        ("from.dr.hooks.timeout = '5s'", "unknown key 'from.dr.hooks'", ""),
        (
            "[site.dr2]\nendpoint = 'block:/c'",
            "needs exactly two sites: it has",
            "a table for each",
        ),
        ("from = 3", "'from' is invalid: expected a table", ""),
        ("keep = 3", "unknown key 'keep'", "Known keys"),
    ],
)
def test_a_wrong_line_is_named(change: str, says: str, hints: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("home", top(change), "home.toml")
    where = "home.toml:1" if "below" in says else "home.toml:3"
    if "needs exactly two sites" in says:
        where = "home.toml:7"  # the last of them
    assert caught.value.where == where
    assert says in str(caught.value) and hints in caught.value.hint
    assert caught.value.exit_status == 2


def test_policies_of_other_packages_are_not_looked_for_without_need(tmp_path: Path) -> None:
    """Each command reads definitions, and the search takes milliseconds."""
    live = GOOD.replace("block:", "image:")
    (tmp_path / "home.toml").write_text(live.replace("\n", '\npolicy = "semi-sync"\n', 1))
    (tmp_path / "more.toml").write_text(
        live.replace("\n", '\npolicy = "dynamic"\n', 1) + '[dynamic]\nmax_lat = "4ms"\n'
    )
    code = (
        "import sys; from pathlib import Path; from mirrord.config.definitions import Definitions\n"
        "found = Definitions(Path(sys.argv[1]))\n"
        "print([found.load(name).policy for name in found.names()])\n"
        "print([name for name in sys.modules if name.startswith('mirrord.policies')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert done.stdout.decode() == "['semi-sync', 'dynamic']\n[]\n", done.stderr


@pytest.mark.parametrize(
    ("change", "says", "hints"),
    [
        ("keep = 0", "'site.dr.keep' is invalid", ""),
        ("keep = true", "'site.dr.keep' is invalid", ""),
        ('keep = "2 fortnightly"', "fortnightly", ""),
        ("kep = 3", "unknown key 'site.dr.kep'", "'keep'"),
        ('schedule = "hourly"', "unknown key 'site.dr.schedule'", "at the top of the file"),
        ("snapshots = 3", "'site.dr.snapshots' is invalid", ""),
        ('hooks.before_snapshot = "sync"', "'site.dr.hooks.before_snapshot' is invalid", ""),
        ('hooks = {before_snap = ["/bin/sync"]}', "site.dr.hooks.before_snap", "'before_snapshot'"),
    ],
)
def test_a_wrong_line_of_a_site_is_named(change: str, says: str, hints: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("home", GOOD + change + "\n", "home.toml")
    assert caught.value.where == "home.toml:7"
    assert says in str(caught.value) and hints in caught.value.hint


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ('id = "a"\n', "x.toml", "needs exactly two sites: it has none"),
        ('id = "a"\n[site.a]\nendpoint = "block:/a"\n', "x.toml:2", "it has a"),
        (
            'id = "a"\nsite = {a = {}, b = {}}\n',
            "x.toml:2",
            "'endpoint' of the site 'a' is missing",
        ),
        ('id = "a"\n\n[site.a]\n[site.b]\n', "x.toml:3", "'endpoint' of the site 'a' is missing"),
        (
            'id = "a"\n[site."a/b"]\nendpoint = "block:/a"\n[site.b]\n',
            "x.toml:2",
            "is not a valid name for a site",
        ),
        (
            'id = "a"\n[site.""]\nendpoint = "block:/a"\n[site.b]\n',
            "x.toml:2",
            "is not a valid name for a site",
        ),
        ('id = "a"\nsite = 3\n', "x.toml:2", "expected a table"),
        ('id = "a"\nsite.a = "block:/a"\n', "x.toml:2", "expected a table"),
        ('[site.a]\nendpoint = "block:/a"\n', "x.toml", "the key 'id' is missing"),
        ('id = "a"\nsource = "block:/a"\n', "x.toml", "format of an older version"),
        ('id = "a"\nsource = 3\nsorce = 4\n', "x.toml", "format of an older version"),
        (GOOD + '[hooks]\ntimeout = "5s"\n', "x.toml:7", "'hooks' belongs to the older format"),
        (top('source = "block:/c"'), "x.toml:3", "'source' belongs to the older format"),
        (top("", "keep_source = 3"), "x.toml:4", "'keep_source' belongs to the older format"),
        (top('schedule = "@daily"', 'zone = "No/Where"'), "x.toml:4", "is not a time zone"),
    ],
)
def test_what_is_no_definition_with_two_sites(text: str, where: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("x", text, "x.toml")
    assert caught.value.where == where and says in str(caught.value)
    if "older version" in says:
        assert "mirrord config migrate x" in caught.value.hint


def test_each_way_of_writing_it_means_the_same() -> None:
    """Tables, dotted keys, inline tables, quoted keys, odd spaces."""
    texts = (
        GOOD + "keep = 3\n[from.dr]\nretries = 2\n[site.dr.hooks]\ntimeout = '9s'\n",
        "id='ab12'\nsite.berlin.endpoint='block:/srv/a'\nsite.dr.endpoint='block:/srv/b'\n"
        "site.dr.keep=3\nsite.dr.hooks.timeout='9s'\nfrom.dr.retries=2\n",
        "id = 'ab12'\nsite = {berlin = {endpoint = 'block:/srv/a'}, "
        "dr = {endpoint = 'block:/srv/b', keep = 3, hooks = {timeout = '9s'}}}\n"
        "from = {dr = {retries = 2}}\n",
        "\t'id'  =\t'ab12' # x\n[ site . \"berlin\" ]\n  endpoint='block:/srv/a'\n"
        "[\"site\".dr]\nkeep= 3\n endpoint = 'block:/srv/b'\nhooks.timeout='9s'\n"
        "[from . dr]\n\n\nretries\t= 2",
    )
    first, *others = (parse_both("x", text, "x.toml") for text in texts)
    assert first["dr"].hooks.timeout_s == 9 and first["dr"].retries == 2
    assert all(other == first for other in others)


DIRECTED = """\
id = "ab12"
schedule = "every 5m"
blackouts = "02:00-03:00"
zone = "UTC"
throttle = "1MiB/s"
rpo = "30m"

[site.berlin]
endpoint = "block:/srv/a"
keep = 3
snapshots = ["daily.*"]
hooks.before_snapshot = ["/bin/freeze"]

[site.dr]
endpoint = "block:/srv/b"

[from.dr]
schedule = []
throttle = "unlimited"
retries = 9
keep.berlin = "newest 5"
"""


def test_settings_of_a_definition_depend_on_the_direction() -> None:
    forth = parse("x", DIRECTED, "")
    back = parse("x", DIRECTED, "", "dr")
    assert parse_both("x", DIRECTED, "") == {"berlin": forth, "dr": back}
    assert not forth.reversed and back.reversed and forth.sites == back.sites
    assert [site.name for site in forth.sites] == ["berlin", "dr"] == list(forth.site_names)
    assert (back.source, back.destination) == (forth.destination, forth.source)
    assert (back.source_site, back.destination_site) == ("dr", "berlin")
    assert (forth.keep_source, forth.keep_destination) == (3, 10)
    assert (back.keep_source, back.keep_destination) == (2, "newest 5"), (
        "by role where none is given"
    )
    assert forth.snapshots == ("daily.*",) and back.snapshots == ()
    assert forth.hooks.before_snapshot == ("/bin/freeze",) and back.hooks.before_snapshot == ()
    assert forth.timing.rules == ("every 5m",) and back.timing == Timing()
    assert forth.pace.throttle == "1MiB/s" and back.pace.throttle == "unlimited"
    assert (forth.retries, back.retries) == (5, 9)
    assert forth.promise == back.promise == Promise(1800.0)


def test_a_wrong_endpoint_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("home", GOOD.replace("block:/srv/b", "blok:/srv/b"), "home.toml")
    assert caught.value.where == "home.toml:6" and "block:/srv/b" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("block:/a", "block:/a", "the same"),
        ("block:/a", "block:/a/b", "inside the source"),
        ("block:/a/b", "block:/a", "inside the destination"),
        ("block:/a", "btrfs:/b", "cannot be mirrored"),
    ],
)
def test_invalid_pairs_of_endpoints_are_refused(
    tmp_path: Path, source: str, destination: str, says: str
) -> None:
    made = definition(source=parse_endpoint(source), destination=parse_endpoint(destination))
    with pytest.raises(ConfigError, match=says):
        Definitions(tmp_path).add(made)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "destination", "why", "hint"),
    [
        (
            "btrfs:/a",
            "zfs:tank/b",
            "send streams of the two file systems are incompatible",
            "zvol, a block volume",
        ),
        (
            "zfs:tank/a",
            "btrfs:/b",
            "send streams of the two file systems are incompatible",
            "a later version will support that",
        ),
        (
            "zfs:tank/a",
            "block:/b",
            "a dataset's stream",
            "A later version will support this for a zvol",
        ),
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
    assert 'endpoint = "zfs:tank/a"\n' in text and "\nrecursive = true\n" in text
    loaded = folder.load("home", "secondary")
    assert (loaded.source, loaded.destination) == (ends[1], ends[0]) and loaded.reversed
    assert (
        folder.set_endpoint("home", "primary", ends[0]._replace(location="tank/c")).reversed
        is False
    )
    assert "zfs-tree" not in (tmp_path / "home.toml").read_text()
    folder.set_endpoint("home", "primary", ends[0])
    folder = Definitions(tmp_path, {"ab12": "secondary"}.get)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="have the same destination"):
        folder.add(
            definition(
                "other",
                id="cd",
                source=parse_endpoint("zfs:tank/x"),
                destination=parse_endpoint("zfs:tank/a"),
            )
        )
    with pytest.raises(ConfigError, match="cannot be mirrored recursively"):
        parse("home", top("recursive = true"), "home.toml")


def test_siblings_with_a_common_beginning_are_fine(tmp_path: Path) -> None:
    made = definition(
        source=parse_endpoint("block:/srv/a"), destination=parse_endpoint("block:/srv/ab")
    )
    assert Definitions(tmp_path).add(made).file == str(tmp_path / "home.toml")


def test_two_mirrors_share_neither_destination_nor_id(tmp_path: Path) -> None:
    folder = Definitions(tmp_path)
    folder.add(definition())
    with pytest.raises(ConfigError, match="have the same destination"):
        folder.add(definition("other", id="cd"))
    with pytest.raises(ConfigError, match="have the same id"):
        folder.add(definition("other", destination=parse_endpoint("block:/srv/c")))
    with pytest.raises(MirrordError, match="already exists"):
        folder.add(definition())


def test_directions_decide_what_fits_together(tmp_path: Path) -> None:
    """Of two mirrors between the same three volumes, by which of the first one's is the source."""
    recorded = {"ab12": "primary"}
    folder = Definitions(tmp_path, lambda mirror_id: recorded.get(mirror_id, ""))
    folder.add(definition())
    far = definition(
        "far",
        id="cd",
        source=parse_endpoint("block:/srv/c"),
        destination=parse_endpoint("block:/srv/a"),
    )
    folder.add(far)
    assert [one.source_site for one in folder.all()] == ["primary", "primary"]
    recorded["ab12"] = "secondary"
    with pytest.raises(ConfigError, match="'far' and 'home' have the same destination"):
        folder.all()
    recorded["ab12"] = "renamed"
    assert folder.load("home").source_site == "primary", "the catalogue knows no site of it"
    with pytest.raises(
        ConfigError, match="has no site 'berlin': its sites are primary and secondary"
    ):
        folder.load("home", "berlin")


def test_a_change_keeps_a_link_to_the_file_and_its_permissions(tmp_path: Path) -> None:
    """Definitions may be kept elsewhere, and their hooks may name what others must not read."""
    file = tmp_path / "kept elsewhere"
    file.write_text(GOOD)
    file.chmod(0o640)
    folder = tmp_path / "mirrors.d"
    folder.mkdir()
    (folder / "home.toml").symlink_to(file)
    Definitions(folder).set_throttle("home", "5MiB/s")
    assert 'throttle = "5MiB/s"' in file.read_text()
    assert (folder / "home.toml").readlink() == file
    assert file.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("text", [GOOD, DIRECTED])
def test_changes_keep_the_owners_words(tmp_path: Path, text: str) -> None:
    text += "# the end\n"
    (tmp_path / "home.toml").write_text(text)
    folder = Definitions(tmp_path)
    folder.set_throttle("home", "5MiB/s")
    assert folder.load("home").pace.throttle == "5MiB/s"
    folder.set_throttle("home", "")
    assert folder.load("home").pace.throttle == ""
    folder.set_throttle("home", "1MiB/s")
    folder.set_endpoint("home", "berlin", parse_endpoint("block:/srv/c"))
    changed = (tmp_path / "home.toml").read_text()
    assert changed.replace("/srv/c", "/srv/a").replace('throttle = "1MiB/s"\n', "").split() == (
        text.replace('throttle = "1MiB/s"\n', "").split()
    )


def test_the_rates_are_set_where_they_hold(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(DIRECTED)
    folder = Definitions(tmp_path, lambda _id: "dr")
    assert folder.set_throttle("home", "7MiB/s").pace.throttle == "7MiB/s"
    assert folder.load("home", "berlin").pace.throttle == "1MiB/s"
    assert folder.set_throttle("home", "").pace.throttle == "unlimited"


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
    with pytest.raises(
        ConfigError, match=r"an other.toml: 'an other' is not a valid name for a mirror"
    ):
        folder.all()


def test_what_is_no_text_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    folder, file = Definitions(tmp_path), tmp_path / "home.toml"
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=r"home\.toml: .* cannot be read: it is a named pipe"):
        folder.load("home")
    file.unlink()
    file.write_bytes(GOOD.encode() + b"# \xff\n")
    with pytest.raises(ConfigError, match=rf"home\.toml:{len(GOOD.splitlines()) + 1}: .* UTF-8"):
        folder.load("home")
    file.write_text(top("keep = " + "1" * 5000))
    with pytest.raises(ConfigError, match=r"home\.toml: .* too many digits"):
        folder.load("home")
    for number in ("²", "1" * 5000):
        (tmp_path / "mirrord.toml").write_text(f'[daemon]\nmetrics = "127.0.0.1:{number}"\n')
        with pytest.raises(ConfigError, match="expected an address and a port"):
            host.load(tmp_path / "mirrord.toml")


def test_files_of_windows_editors_are_read_and_keep_their_lines(tmp_path: Path) -> None:
    folder, file = Definitions(tmp_path), tmp_path / "home.toml"
    text = GOOD.replace("\n", "\r\n").encode()
    file.write_bytes(b"\xef\xbb\xbf" + text)
    assert folder.load("home").id == "ab12"
    folder.set_throttle("home", "5MiB/s")
    lines = file.read_bytes().splitlines(keepends=True)
    assert set(text.splitlines(keepends=True)) <= set(lines)
    assert folder.load("home").pace.throttle == "5MiB/s"


@pytest.mark.parametrize("line", ['rpo = "0s"', 'stall = "0 min"', 'from.dr.rpo = "0s"'])
def test_no_time_at_all_is_no_duration(line: str) -> None:
    with pytest.raises(ConfigError, match="is not longer than 0 s"):
        parse("home", top(line), "home.toml")
