"""The demo tells its story to the end, on both kinds of volume, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.lab import small_file_system, wait_until
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
    # (What it has killed on the other host may still be about to end.)
    wait_until(lambda: not _processes(here), "the end of its processes")


_STATES = ("in-sync", "semi-sync", "in-sync")


def _started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(folder), "HOME": str(folder)},
    )


def test_the_demo_of_a_live_mirror(tmp_path: Path) -> None:
    with _started(tmp_path, "-m", "mirrord", "demo", "--live") as demo:
        said, errors = demo.communicate(timeout=200)
    assert demo.returncode == 0, said[-3000:] + errors
    states = re.findall(r"^ +[0-9.]+ s  (in-sync|semi-sync) ", said, re.MULTILINE)
    assert tuple(state for state, _ in itertools.groupby(states)) == _STATES, said
    assert "semi-sync (policy dynamic)" in said and "'db' is broken off" in said
    [written] = re.findall(r"^  writes acknowledged +([0-9,]+)$", said, re.MULTILINE)
    assert int(written.replace(",", "")) > 500
    assert re.search(r"^  blocks that lack the last write +0$", said, re.MULTILINE)
    assert "No acknowledged write was lost." in said
    assert list(tmp_path.iterdir()) == []
    assert _processes(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("mirrord initialize", signal.SIGINT),
        ("mirrord daemon", signal.SIGTERM),
        ("The link becomes slow", signal.SIGINT),
        ("mirrord break", signal.SIGHUP),
    ],
)
def test_an_interrupted_demo_of_a_live_mirror_leaves_nothing(
    tmp_path: Path, line: str, number: signal.Signals
) -> None:
    with _started(tmp_path, "-m", "mirrord", "demo", "--live") as demo:
        assert demo.stdout is not None
        while line not in (shown := demo.stdout.readline()):
            assert shown, demo.stderr and demo.stderr.read()
        os.killpg(demo.pid, number)
        _, said = demo.communicate(timeout=120)
    assert demo.returncode == 128 + number, said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    assert _processes(str(tmp_path)) == []


@pytest.mark.parametrize("line", ["mirrord initialize", "The link becomes slow"])
def test_a_killed_demo_of_a_live_mirror_leaves_nothing(tmp_path: Path, line: str) -> None:
    with _started(tmp_path, "-m", "mirrord", "demo", "--live") as demo:
        assert demo.stdout is not None
        while line not in (shown := demo.stdout.readline()):
            assert shown, demo.stderr and demo.stderr.read()
        assert _processes(str(tmp_path)) != []
        demo.kill()
    wait_until(lambda: not (list(tmp_path.iterdir()) or _processes(str(tmp_path))), "the end")


LOSING_STORY = """
import sys
from pathlib import Path
from mirrord.cli.demo.guard import guarded
from mirrord.cli.demo.live import LiveStory
class Losing(LiveStory):
    def _change_link(self, relay):
        self._watch("in-sync", 2.0)
    def _fail(self, daemon):
        super()._fail(daemon)
        with self._destination.image.open("r+b") as image:
            image.write(bytes(4096))
folder = Path(sys.argv[1])
story = Losing(folder)
with guarded(folder, story.home):
    story.tell()
"""


def test_the_demo_of_a_live_mirror_finds_a_lost_write(tmp_path: Path) -> None:
    with _started(tmp_path, "-c", LOSING_STORY, str(tmp_path)) as demo:
        said, errors = demo.communicate(timeout=200)
    assert demo.returncode == 1, said
    assert re.search(r"^  blocks that lack the last write +1$", said, re.MULTILINE), said
    assert "No acknowledged write was lost." not in said
    assert "writes that were acknowledged in sync are missing" in errors


def test_the_demo_of_a_live_mirror_says_how_much_space_it_needs(tmp_path: Path) -> None:
    with (
        small_file_system(tmp_path / "small", "50m") as folder,
        _started(folder, "-m", "mirrord", "demo", "--live") as demo,
    ):
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert errors.startswith(f"error: {folder}: the demo needs 400 MiB: ")


def test_live_and_remote_are_different_demos(tmp_path: Path) -> None:
    with _started(tmp_path, "-m", "mirrord", "demo", "--live", "--remote") as demo:
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert errors.startswith("error: --live and --remote cannot be combined")


def _processes(folder: str) -> list[Path]:
    """Those with the folder in their command line or environment."""
    files = [
        each for name in ("cmdline", "environ") for each in Path("/proc").glob(f"[0-9]*/{name}")
    ]
    return [each for each in files if folder in _read(each)]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
