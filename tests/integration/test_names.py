"""Names are bytes: mirrored, listed, planned and restored, in every locale and over every way."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mirrord.core.text import escaped
from mirrord.drivers.contract import Capability
from tests.contract.zfs import ZvolLab
from tests.support.files import DEEP, HOSTILE
from tests.support.world import NAME, ROOT, World

LOCALES = ["C", "POSIX", "C.UTF-8", "en_US.UTF-8", "en_US.ISO-8859-1"]


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with locales that Debian does not install by default."""
    folder = tmp_path_factory.mktemp("locales")
    for name in LOCALES[3:]:
        words = ["localedef", "-i", "en_US", "-f", name.partition(".")[2], str(folder / name)]
        subprocess.run(words, check=True, capture_output=True)
    return folder


def run(world: World, folder: Path, locale: str, *words: str | bytes) -> bytes:
    environment = {**world.environment(), "LC_ALL": locale, "LOCPATH": str(folder)}
    done = subprocess.run(
        [*world.command(), *words], env=environment, cwd=ROOT, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def has_files(world: World) -> bool:
    lab = world.lab
    return Capability.FILES in lab.destination().capabilities and not isinstance(lab, ZvolLab)


def test_every_name_is_mirrored_listed_and_restored_in_every_locale(
    world: World, locales: Path, tmp_path: Path
) -> None:
    if not has_files(world):
        return
    world.initialized()
    assert world.in_step()
    world.lab.change(world.lab.source(), 1)
    changed = {os.fsdecode(name) for name in HOSTILE[:3]}
    listed = set()
    here = type(world) is World
    for locale in LOCALES if here else LOCALES[-1:]:
        output = run(world, locales, locale, "delta", NAME, "--files")
        assert b"\x1b" not in output
        for name in HOSTILE[:3]:
            assert escaped(os.fsdecode(name)).encode() in output, locale
        output = run(world, locales, locale, "delta", NAME, "--files", "--json")
        output.decode("ascii")
        found = {one["path"] for one in json.loads(output)["changes"]}
        assert changed <= found
        listed.add(frozenset(found))
    assert len(listed) == 1
    world.service.update(NAME)
    assert world.in_step()
    if world.lab.kind != "btrfs" or not here:
        return  # single files are restored where both volumes are on this host
    for locale in LOCALES:
        out = tmp_path / locale
        out.mkdir()
        wanted = [b"./" + name for name in (*HOSTILE, DEEP + b"/file")]
        output = run(world, locales, locale, "restore", NAME, *wanted, "--to", str(out))
        assert b"\x1b" not in output and output.count(b"\n") == len(wanted)
        restored = {os.fsencode(one.name): one.read_bytes() for one in out.iterdir()}
        assert set(restored) == {*HOSTILE, b"file"}
        for name in HOSTILE:
            assert restored[name] == name + (b"more" if name in HOSTILE[:3] else b"")


def test_the_plan_of_a_resync_escapes_names(world: World) -> None:
    if not has_files(world) or world.lab.kind != "btrfs":
        return
    world.initialized()
    world.service.break_off(NAME)
    view = Path(world.lab.destination().facts().view)
    for name in HOSTILE:
        (view / os.fsdecode(name)).write_bytes(b"changed")
    plan = world.service.resync(NAME, yes=False)
    shown = plan.text.splitlines()
    assert "\x1b" not in plan.text
    for name in HOSTILE:
        assert any(line.rstrip().endswith(escaped(os.fsdecode(name)).rstrip()) for line in shown)
    assert set(map(os.fsdecode, HOSTILE)) <= set(json.loads(json.dumps(plan.data))["lost_files"])
