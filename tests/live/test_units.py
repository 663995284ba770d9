"""With systemd an end is a unit: its file, and what mirrord asks of systemctl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mirrord.core.live import LiveSetup
from mirrord.drivers.image import process
from mirrord.drivers.image.driver import ImageDriver
from mirrord.system import native
from tests.live.lab import ROOT, wait_until

UNIT = ROOT / "packaging/mirrord-live@.service"
#: Starts and ends a unit as its file says, and notes what it is asked for.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {folder}/asked
name=${{2#mirrord-live@}}; name=${{name%.service}}
cd {folder}/home/state/live/units/$name || exit 1
case $1 in
restart) setsid --fork {program} run --config config > log 2>&1;;
esac
"""


def _settings(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def test_systemd_takes_the_unit_file(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here (Debian package systemd)")
    copy = tmp_path / "mirrord-live@db-primary.service"
    text = UNIT.read_text().replace("/usr/local/bin/mirrord-live", native.live_program())
    copy.write_text(text)
    done = subprocess.run([analyze, "verify", copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What systemctl was asked for, a line each."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stub = programs / "systemctl"
    stub.write_text(SYSTEMCTL.format(folder=tmp_path, program=native.live_program()))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(process, "has_systemd", lambda: True)
    return tmp_path / "asked"


def test_an_end_is_a_unit_where_systemd_runs(tmp_path: Path, asked: Path) -> None:
    image = tmp_path / "db.img"
    image.write_bytes(bytes(1 << 20))
    end = ImageDriver.at(str(image))
    end.live_create(LiveSetup("m1", "db", "primary", "0" * 31 + "1", True, 1 << 20))
    assert end.live_start("127.0.0.1", "").running
    unit = "mirrord-live@db-primary-m1.service"
    assert asked.read_text().splitlines() == [f"enable {unit}", f"restart {unit}"]
    # The unit's folder is where the file says, and has what it starts with.
    [folder] = _settings("WorkingDirectory")
    assert folder == "/var/lib/mirrord/live/units/%i"
    [line] = _settings("ExecStart")
    assert line.split()[1:] == ["run", "--config", "config"]
    assert _settings("StandardError") == [f"append:{folder}/log"]
    end.live_remove()
    assert asked.read_text().splitlines()[2:] == [f"disable {unit}", f"stop {unit}"]
    wait_until(lambda: not end.live_status().running, "its end")
    assert not (tmp_path / ".mirrord").exists()


def test_mirrors_of_one_name_have_units_of_their_own(tmp_path: Path, asked: Path) -> None:
    """Two hosts may call their mirrors to this one the same."""
    ends = []
    for number in (1, 2):
        image = tmp_path / f"{number}.img"
        end = ImageDriver.at(str(image))
        mirror_id = f"{number}" * 32
        end.live_create(LiveSetup(mirror_id, "db", "secondary", mirror_id, False, 1 << 20))
        assert end.live_start("127.0.0.1", "").running
        ends.append(end)
    units = [f"mirrord-live@db-secondary-{number * 8}.service" for number in "12"]
    assert [line for line in asked.read_text().splitlines() if "restart" in line] == [
        f"restart {unit}" for unit in units
    ]
    links = tmp_path / "home/state/live/units"
    assert sorted(link.resolve().parent.name for link in links.iterdir()) == ["1.img", "2.img"]
    ends[1].live_remove()
    assert units[0] not in "".join(asked.read_text().splitlines()[4:])
    assert ends[0].live_status().running
    ends[0].live_remove()
    for end in ends:
        wait_until(lambda end=end: not end.live_status().running, "its end")  # type: ignore[misc]


def test_records_below_a_folder_of_their_own_have_no_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be the units of another mirror with that name."""
    monkeypatch.setattr(process, "_SYSTEMD", tmp_path)
    monkeypatch.delenv("MIRRORD_HOME", raising=False)
    assert process.has_systemd()
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path))
    assert not process.has_systemd()
    monkeypatch.delenv("MIRRORD_HOME")
    monkeypatch.setattr(process, "_SYSTEMD", tmp_path / "absent")
    assert not process.has_systemd()
