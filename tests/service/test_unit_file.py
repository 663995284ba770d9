"""packaging/mirrord.service: systemd takes it, and what it says of the daemon is so."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.btrfs import filesystem, make_subvolume
from tests.support.unit import INSTALLED, OWN, ROOT, UNIT, daemon, environment, settings


def test_the_service_tells_systemd_how_it_is(tmp_path: Path) -> None:
    assert settings("Type") == ["notify"]
    with daemon(tmp_path / "home") as service:
        told = [line for line in service.lines if line != "WATCHDOG=1"]
        assert told == ["READY=1", "STATUS=serving 0 mirrors"]
        service.hears("WATCHDOG=1")

        assert settings("ExecReload") == ["/bin/kill -HUP $MAINPID"]
        service.process.send_signal(signal.SIGHUP)
        service.hears("RELOADING=1")
        assert any(re.fullmatch(r"MONOTONIC_USEC=\d+", line) for line in service.lines)
        service.hears("READY=1")
        service.hears("WATCHDOG=1")

        service.process.terminate()
        service.hears("STOPPING=1")
        assert service.process.wait(timeout=90) == 0


def test_the_watchdog_hears_of_the_service_often_enough(tmp_path: Path) -> None:
    [limit_s] = settings("WatchdogSec")
    with daemon(tmp_path / "home") as service:
        for _ in range(3):
            service.hears("WATCHDOG=1", timeout_s=int(limit_s) / 2)


def test_a_systemd_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as service:
        service.fill()
        time.sleep(2)  # it would have told something meanwhile
        assert service.run("status").returncode == 0
        service.hears("WATCHDOG=1")
        service.fill()
        assert service.ends() == 0


def test_the_folders_are_those_of_the_daemon() -> None:
    from mirrord.daemon.build import _SYSTEM

    named = [settings(f"{each}Directory") for each in ("Configuration", "State", "Runtime")]
    assert named == [["mirrord"]] * 3
    assert (Path("/etc/mirrord"), Path("/var/lib/mirrord"), Path("/run/mirrord")) == _SYSTEM
    assert settings("RuntimeDirectoryPreserve") == ["yes"]  # the locks of commands are there


def test_systemd_takes_the_unit_file(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here (Debian package systemd)")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(INSTALLED, OWN))
    done = subprocess.run([analyze, "verify", copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_btrfs_works_with_the_capabilities_of_the_unit_file_alone(tmp_path: Path) -> None:
    with filesystem(size_mib=256) as source, filesystem(size_mib=256) as backup:
        volume = make_subvolume(source / "home")
        _owners_work(volume)
        script = (
            f"umask {settings('UMask')[0]}; set -e;"
            f"{OWN} create home btrfs:{volume} btrfs:{backup}/home; {OWN} initialize home;"
            f"echo more > {volume}/more; {OWN} update home; {OWN} break home;"
            f"{OWN} resync home --yes; {OWN} reverse home --yes; {OWN} reverse home --yes;"
            f"{OWN} restore home tool --overwrite; {OWN} restore home --all --yes"
        )
        done = subprocess.run(
            [*_prefix(), "bash", "-c", script], env=environment(tmp_path), capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        tool = (backup / "home/current/tool").stat()
        assert (tool.st_uid, tool.st_gid, tool.st_mode & 0o7777) == (1234, 5678, 0o4755)
        assert (backup / "home/current/null").is_char_device()


def _prefix() -> list[str]:
    """Confines a command to the capabilities of the unit file."""
    [line] = settings("CapabilityBoundingSet")
    bounding = "-all," + ",".join(f"+{each.removeprefix('CAP_').lower()}" for each in line.split())
    return ["setpriv", "--no-new-privs", f"--bounding-set={bounding}", "--inh-caps=-all"]


def test_open_files_are_seen_with_these_capabilities(tmp_path: Path) -> None:
    script = (
        "import os, sys; from mirrord.system.openers import sees_all, writers_on;"
        "found = writers_on(os.stat(sys.argv[1]).st_dev, limit=100_000);"
        "assert sees_all() and any(one.path == sys.argv[1] for one in found), found"
    )
    path = tmp_path / "held"
    with path.open("w"):
        subprocess.run([*_prefix(), sys.executable, "-c", script, path], check=True)


def _owners_work(volume: Path) -> None:
    """Files that need each of the privileges: owners, modes, capabilities, devices."""
    (volume / "tool").write_bytes(b"tool")
    os.chown(volume / "tool", 1234, 5678)
    (volume / "tool").chmod(0o4755)
    raw = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw+ep
    os.setxattr(volume / "tool", "security.capability", raw)
    os.mknod(volume / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (volume / "private").mkdir(mode=0o700)
    (volume / "private/file").write_text("private")
    for path in (volume / "private/file", volume / "private"):
        path.chmod(path.stat().st_mode & 0o700)
        os.chown(path, 1234, 5678)


def test_the_unit_file_is_where_the_guide_says() -> None:
    assert f"packaging/{UNIT.name}" in (ROOT / "docs/operator-guide.md").read_text()
