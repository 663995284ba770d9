"""The demo tells its story to the end, on both kinds of volume, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.world import ROOT

BLOCK_STORY = """
import sys
from pathlib import Path
from mirrord.cli.demo.places import BlockPlace
from mirrord.cli.demo.story import _Story
folder = Path(sys.argv[1])
_Story(folder, BlockPlace(folder)).tell()
"""


@pytest.mark.parametrize("kind", ["btrfs", "block"])
def test_the_demo_tells_its_story_and_cleans_up(tmp_path: Path, kind: str) -> None:
    words = ["-m", "mirrord", "demo"] if kind == "btrfs" else ["-c", BLOCK_STORY, str(tmp_path)]
    here = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=180,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": here, "HOME": here},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert f"two {kind}" in done.stdout.splitlines()[1]
    assert "The transfer was ended" in done.stdout and "is mirrored again" in done.stdout
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    if kind == "btrfs":
        assert list(tmp_path.glob("mirrord-demo-*")) == []
