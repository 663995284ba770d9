"""The demo tells its story to the end, on both kinds of volume, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.world import ROOT

BLOCK_STORY = """
import sys
from pathlib import Path
from mirrord.cli.demo.places import BlockPlace
from mirrord.cli.demo.story import Story
folder = Path(sys.argv[1])
Story(folder, BlockPlace(folder)).tell()
"""


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_the_demo_tells_its_story_and_cleans_up(tmp_path: Path, kind: str) -> None:
    words = ["-m", "mirrord", "demo"] if kind == "btrfs" else ["-c", BLOCK_STORY, str(tmp_path)]
    here = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": here, "HOME": here},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert f"two {kind}" in done.stdout.splitlines()[1]
    assert "The transfer was aborted" in done.stdout and "is mirrored again" in done.stdout
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    if kind == "btrfs":
        assert list(tmp_path.glob("mirrord-demo-*")) == []


REMOTE_STORY = """
import sys
from pathlib import Path
from mirrord.cli.demo.other_host import OtherHost
from mirrord.cli.demo.places import BlockPlace
from mirrord.cli.demo.remote import RemoteStory
folder = Path(sys.argv[1])
host = OtherHost(folder, namespaced=False)
try:
    RemoteStory(folder, BlockPlace(folder), host).tell()
finally:
    host.close()
"""


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_the_demo_with_another_host(tmp_path: Path, kind: str) -> None:
    """As root: btrfs, in a namespace. As others have it: block volumes, on loopback."""
    words = ["-m", "mirrord", "demo", "--remote"]
    if kind == "block":
        words = ["-c", REMOTE_STORY, str(tmp_path)]
    here = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": here, "HOME": here},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "may not use that path" in done.stdout and "resumed" in done.stdout
    assert "Data is sent over TLS beside SSH." in done.stdout
    assert "mirrord-demo" not in subprocess.check_output(["ip", "netns"], text=True)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    if kind == "btrfs":
        assert list(tmp_path.glob("mirrord-demo-*")) == []


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    here = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "mirrord", "demo", "--remote"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": here, "HOME": here},
    ) as demo:
        assert demo.stdout is not None
        while "mirrord update" not in (line := demo.stdout.readline()):
            assert line, demo.stderr and demo.stderr.read()
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=120)
    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert list(tmp_path.glob("mirrord-demo-*")) == []
    assert here not in Path("/proc/self/mountinfo").read_text()
    assert f"mirrord-demo-{demo.pid}" not in subprocess.check_output(["ip", "netns"], text=True)
    assert not Path(f"/sys/class/net/md{demo.pid % 100_000}").exists()
    left = [one for one in Path("/proc").glob("[0-9]*/cmdline") if here in _read(one)]
    assert left == []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
