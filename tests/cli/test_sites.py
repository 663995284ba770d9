"""Sites on the command line: their names, the older form, and invalid ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_cli import refused
from tests.contract.lab_block import lab
from tests.support.world import NAME, World

OLD = """\
# mine
id = "a1"
source = "{0}"  # here
destination = "{1}"
keep_source = 3
"""


@pytest.fixture
def block(tmp_path: Path) -> World:
    with lab(tmp_path) as made:
        return World(made, tmp_path / "home")


def create(world: World, sites: str) -> subprocess.CompletedProcess[str]:
    ends = world.end("source"), world.end("destination")
    return world.cli("create", NAME, *ends, "--sites", sites)


def older(world: World) -> Path:
    """A definition of the older form."""
    world.paths.mirrors.mkdir(parents=True)
    file = world.paths.mirrors / f"{NAME}.toml"
    file.write_text(OLD.format(world.end("source"), world.end("destination")))
    return file


def test_sites_have_the_names_that_create_was_told(block: World) -> None:
    assert create(block, "berlin, dr").returncode == 0
    definition = block.service.definitions.load(NAME)
    assert definition.site_names == ("berlin", "dr") and definition.source_site == "berlin"
    assert str(definition.source) == block.end("source")
    assert block.service.definitions.both(NAME)["dr"].source == definition.destination


@pytest.mark.parametrize(
    ("sites", "says"),
    [
        ("berlin", "sites of a mirror need different names: given: berlin"),
        ("", "'--sites' is empty"),
        ("a,b,c", "sites of a mirror need different names: given: a, b, c"),
        ("a,a", "sites of a mirror need different names"),
        ("a,", "'' is not a valid name for a site"),
        ("a/b,c", "'a/b' is not a valid name for a site"),
        ("../x,c", "'../x' is not a valid name for a site"),
        ("a.b,c", "'a.b' is not a valid name for a site"),
        ("a" * 65 + ",c", "is not a valid name for a site"),
        ("a\nb,c", "is not a valid name for a site"),
    ],
)
def test_what_cannot_name_two_sites(block: World, sites: str, says: str) -> None:
    done = create(block, sites)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert any(one in done.stderr for one in says.split("|")), done.stderr
    assert not list(block.paths.mirrors.glob("*.toml"))


def test_an_older_definition_is_refused_until_it_is_migrated(block: World) -> None:
    file = older(block)
    text = file.read_text()
    for words in (("update", NAME), ("config", "check"), ("status", NAME)):
        refused(block.cli(*words), 2, str(file), "older version", f"mirrord config migrate {NAME}")
    assert "older version" in block.cli("status").stdout
    shown = block.cli("config", "migrate", "--dry-run")
    assert shown.returncode == 0 and "+[site.primary]" in shown.stdout and file.read_text() == text
    done = block.cli("config", "migrate", "--json")
    assert json.loads(done.stdout) == {"status": "done", "migrated": [NAME]}
    assert "# mine" in file.read_text() and "# here" in file.read_text()
    assert block.cli("initialize", NAME).returncode == 0
    assert block.service.definitions.load(NAME).keep_source == 3
    again = block.cli("config", "migrate", NAME)
    assert again.returncode == 0 and "Nothing to migrate" in again.stdout
    refused(block.cli("config", "migrate", "hoem"), 1, "no mirror is called", "'home'")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_read_only_folder_is_named_and_nothing_is_half_done(block: World) -> None:
    file = older(block)
    text, folder = file.read_text(), str(block.paths.mirrors)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        refused(block.cli("config", "migrate"), 1, "read-only", str(file.parent))
        shown = block.cli("config", "migrate", "--dry-run")
        assert shown.returncode == 0 and "+[site.primary]" in shown.stdout
    finally:
        subprocess.run(["umount", folder], check=True)
    assert file.read_text() == text and len(list(block.paths.mirrors.iterdir())) == 1
    assert block.cli("config", "migrate").returncode == 0


def test_takeover_may_be_told_a_site(block: World) -> None:
    block.initialized()
    words = "takeover", NAME, "--source"
    refused(block.cli(*words, "dr"), 2, "no site 'dr'", "primary and secondary")
    refused(block.cli(*words, "secondary"), 1, "'secondary' is not the source", "mirrord reverse")
    assert block.cli(*words, "primary").returncode == 0
    assert block.cli("update", NAME).returncode == 0
