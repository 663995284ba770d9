"""`mirrord config migrate`: old definitions get sites, and keep every word of their owner."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.migrate import migrated
from mirrord.config.reading import parse
from mirrord.control.migrating import migrate
from mirrord.core.errors import ConfigError, IoFailed, MirrordError, NotFound, Refused
from mirrord.system import steps
from mirrord.system.paths import Paths

#: As 'mirrord create' of the version before wrote it, with hooks of the owner's.
OLD = """\
# The mirror 'home'. Keys: docs/config.md. Check it with 'mirrord config check'.
id = "7168001f"
source = "btrfs:/srv/disk1/home"
destination = "btrfs:/srv/disk2/home"
policy = "async"

# When updates run (docs/schedules.md).
schedule = "every 15m"

# Which reference snapshots stay at each end (the base is always one of them).
keep_source = 2
keep_destination = "newest 10, 7 daily"

# The source's own snapshots that go along: glob patterns of their names.
snapshots = ["daily.*"]

# Freezes the database.
[hooks]  # of ours
before_snapshot = ["/bin/freeze"]
timeout = "20s"  # enough
"""
NEW = """\
# The mirror 'home'. Keys: docs/config.md. Check it with 'mirrord config check'.
id = "7168001f"
policy = "async"

# When updates run (docs/schedules.md).
schedule = "every 15m"

[site.primary]
endpoint = "btrfs:/srv/disk1/home"
# Which reference snapshots stay at each end (the base is always one of them).
keep = 2
# The source's own snapshots that go along: glob patterns of their names.
snapshots = ["daily.*"]

# Freezes the database.
[site.primary.hooks]  # of ours
before_snapshot = ["/bin/freeze"]
timeout = "20s"  # enough

[site.secondary]
endpoint = "btrfs:/srv/disk2/home"
keep = "newest 10, 7 daily"
"""
ENDS = 'source = "block:/a"\ndestination = "block:/b"\n'


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "etc", tmp_path / "state", tmp_path / "run")
    made.make()
    made.mirrors.mkdir(parents=True, exist_ok=True)
    return made


def write(paths: Paths, text: str, name: str = "home") -> Path:
    file = paths.mirrors / f"{name}.toml"
    file.write_text(text)
    return file


def test_what_create_wrote_is_rewritten_with_its_comments() -> None:
    found = migrated("home", OLD, "home.toml")
    assert found is not None and found.after == NEW
    definition = found.definition
    assert str(definition.source) == "btrfs:/srv/disk1/home" and definition.keep_source == 2
    assert definition.keep_destination == "newest 10, 7 daily"
    assert definition.snapshots == ("daily.*",) and definition.hooks.timeout_s == 20
    assert migrated("home", found.after, "home.toml") is None


@pytest.mark.parametrize(
    "text",
    [
        'id="a"\n' + ENDS + 'hooks = {timeout = "5s"}',
        "# top\n\n  id\t=  'a' # x\n\"source\"   =   'block:/a'  # src\n# about dest\n# two lines\n"
        "'destination' = 'block:/b'\nhooks.timeout = '5s' # t\nrpo = '5m'\n"
        "hooks.before_snapshot = ['/bin/a',\n  # inner\n  'x']\nsnapshots = [\n  'a*', # first\n]\n"
        "# end of top\n\n",
        ENDS + 'id = "a"\n\n\n\n[ "hooks" ]\n# inner\ntimeout = "5s"\n\n# the end',
        'id = "a"\r\nsource = "block:/a"\r\n# c\r\ndestination = "block:/b"\r\n[hooks]\r\n'
        'timeout = "5s"\r\n',
        'id = "a"\nsource = """block:/a"""\ndestination = \'\'\'block:/b\'\'\'\n'
        'hooks.timeout="5s"\n',
        "recursive = true\n"
        + ENDS.replace("block:/", "zfs:tank/")
        + 'id = "a"\nhooks.timeout="5s"',
        'id = "a" # source = "x"\n'
        + ENDS
        + '# hooks = 1\n[hooks]\ntimeout = "5s"\n#keep_source = 3',
    ],
)
def test_odd_files_keep_their_values_and_every_comment(text: str) -> None:
    found = migrated("home", text, "home.toml")
    assert found is not None and found.definition.hooks.timeout_s == 5
    raw, after = tomllib.loads(text), tomllib.loads(found.after)
    assert after["site"]["primary"]["endpoint"] == raw["source"]
    assert after["site"]["secondary"]["endpoint"] == raw["destination"]
    assert {*after} == {*raw} - {"source", "destination", "snapshots", "hooks"} | {"site"}
    for line in text.splitlines():
        _, mark, comment = line.partition("#")
        assert mark + comment in found.after
    assert migrated("home", found.after, "home.toml") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ENDS, "the key 'id' is missing"),
        ('id = "a"\nsource = "block:/a"\n', "the key 'destination' is missing"),
        ('id = "a"\n' + ENDS + "sorce = 1\n", "home.toml:4: unknown key 'sorce'"),
        ('id = "a"\n' + ENDS + "keep_source = 0\n", "home.toml:4: 'keep_source' is invalid"),
        ('id = "a"\n' + ENDS + "nonsense\n", "not valid TOML"),
        ('id = "a"\n' + ENDS + "error_percent = 1\n", "below 'warn_percent'"),
        (
            'id = "a"\n' + ENDS + "[site.a]\n[site.b]\n",
            "home.toml:2: 'source' belongs to the older format",
        ),
        (NEW + "[site.third]\nendpoint = 'btrfs:/x'\n", "needs exactly two sites"),
        (
            NEW.replace('id = "7168001f"', "keep_source = 3"),
            "'keep_source' belongs to the older format",
        ),
        ("", "the key 'id' is missing"),
    ],
)
def test_a_wrong_file_is_not_touched(paths: Paths, text: str, says: str) -> None:
    """Nor is any other one."""
    file, fine = write(paths, text), write(paths, OLD, "all-right")
    with pytest.raises(ConfigError) as caught:
        migrate(paths, [], dry_run=False)
    assert says in str(caught.value) and "home.toml" in caught.value.where
    assert file.read_text() == text and fine.read_text() == OLD
    assert len(list(paths.mirrors.iterdir())) == 2


def test_files_are_rewritten_once_and_kept(paths: Paths) -> None:
    file, new = (
        write(paths, OLD),
        write(paths, NEW.replace("7168001f", "b2").replace("disk2", "disk3"), "new"),
    )
    shown = migrate(paths, [], dry_run=True)
    assert shown.status == "planned" and shown.data["migrated"] == ["home"]
    assert "-source = " in shown.text and "+[site.primary]" in shown.text
    assert file.read_text() == OLD and len(list(paths.mirrors.iterdir())) == 2
    with pytest.raises(ConfigError, match="older version") as caught:
        Definitions(paths.mirrors).all()
    assert "mirrord config migrate home" in caught.value.hint
    done = migrate(paths, [], dry_run=False)
    assert done.status == "done" and done.data == {"migrated": ["home"]}
    assert file.read_text() == NEW
    assert file.with_name("home.toml.before-migrate").read_text() == OLD
    again = migrate(paths, ["home", "new"], dry_run=False)
    assert again.status == "already_migrated" and file.read_text() == NEW
    assert "b2" in new.read_text() and migrate(paths, [], dry_run=True).data["diff"] == ""
    assert [one.name for one in Definitions(paths.mirrors).all()] == ["home", "new"]


def test_a_link_to_a_file_and_its_permissions_stay(paths: Paths, tmp_path: Path) -> None:
    link, file = write(paths, OLD), tmp_path / "kept elsewhere"
    link.rename(file)
    file.chmod(0o600)
    link.symlink_to(file)
    migrate(paths, [], dry_run=False)
    assert link.readlink() == file and file.read_text() == NEW
    copy = link.with_name("home.toml.before-migrate")
    assert [one.stat().st_mode & 0o7777 for one in (file, copy)] == [0o600, 0o600]


def test_an_earlier_copy_is_not_overwritten(paths: Paths) -> None:
    file = write(paths, OLD)
    copy = file.with_name("home.toml.before-migrate")
    copy.write_text("an earlier one")
    with pytest.raises(Refused, match="earlier copy"):
        migrate(paths, [], dry_run=False)
    assert file.read_text() == OLD and copy.read_text() == "an earlier one"
    copy.write_text(OLD)  # as a crash between the two leaves it
    assert migrate(paths, [], dry_run=False).status == "done" and file.read_text() == NEW


def test_an_unknown_mirror_and_one_that_cannot_be_read(paths: Paths) -> None:
    with pytest.raises(NotFound, match="no mirror is called 'hoem'"):
        migrate(paths, ["hoem"], dry_run=False)
    assert migrate(paths, [], dry_run=False).text == "No definitions."
    (paths.mirrors / "home.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        migrate(paths, [], dry_run=False)


@pytest.mark.parametrize("label", ["MIGRATE:COPY:WRITE", "MIGRATE:DEFINITION:WRITE"])
def test_a_folder_that_cannot_be_written_leaves_the_old_file(paths: Paths, label: str) -> None:
    file = write(paths, OLD)

    def read_only(reached: str) -> None:
        if reached == label:
            raise OSError(30, "Read-only file system", str(file))

    steps.observe(read_only)
    try:
        with pytest.raises(IoFailed, match="read-only") as caught:
            migrate(paths, [], dry_run=False)
    finally:
        steps.observe(None)
    assert isinstance(caught.value, MirrordError) and file.read_text() == OLD
    assert migrate(paths, [], dry_run=False).status == "done" and file.read_text() == NEW


def test_the_source_of_the_old_form_is_the_source_of_the_new(paths: Paths) -> None:
    """Also of a mirror that was reversed: the catalogue learns it before the file is rewritten."""
    write(paths, OLD)
    Catalogue(paths.catalogue).close()
    migrate(paths, [], dry_run=False)
    catalogue = Catalogue(paths.catalogue)
    found = catalogue.direction("7168001f")
    catalogue.close()
    assert found is not None and found.source_site == "primary"
    assert parse("home", NEW, "").source_site == "primary"
