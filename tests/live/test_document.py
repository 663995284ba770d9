"""docs/live-modes.md is executed: its console session, and what its tables say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from mirrord.core.live import Mode
from tests.live.command import WORDS, Home, Image
from tests.live.lab import ROOT

TEXT = (ROOT / "docs/live-modes.md").read_text(encoding="utf-8")
#: What differs from run to run.
_MASKS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT"),
    (r"[\d.]+ (us|ms|s|[KMG]iB/sec|ops/sec|sec)\b", "NUMBER"),
    (r"(mirrored to .*: |tracked +)[\d.]+ [KMi]*B", r"\1SIZE"),
    (r", [\d.]+ MiB sent", ", SIZE sent"),
    (r"(local|mirrored) NUMBER.*", "LATENCIES"),
)


def _masked(line: str) -> str:
    for pattern, word in _MASKS:
        line = re.sub(pattern, word, line)
    return line


def _steps() -> list[tuple[str, list[str]]]:
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("# "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def test_the_session_is_as_shown(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    ends = [Image(tmp_path / f"disk{number}/db.img") for number in (1, 2)]
    places = {  # the first one is a part of the others
        "/srv": str(tmp_path),
        "/run/mirrord": f"{home.folder}/run",
        "/etc/mirrord": f"{home.folder}/etc",
    }
    try:
        for command, shown in _steps():
            for place, own in places.items():
                command = command.replace(place, own)
            command = re.sub(r"^mirrord ", f"{' '.join(WORDS)} ", command)
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, env=home.environment
            )
            assert done.returncode == 0, (command, done.stderr)
            said = done.stdout
            for place, own in reversed(places.items()):
                said = said.replace(own, place)
            lines = [line for line in said.splitlines() if not line.startswith("Note: ")]
            assert list(map(_masked, lines)) == list(map(_masked, shown)), command
    finally:
        for end in ends:
            end.kill()


def test_each_mode_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ", TEXT, re.MULTILINE)
    assert set(rows[: len(Mode)]) == {mode.value for mode in Mode}


def test_each_state_is_explained() -> None:
    source = (ROOT / "native/live/src/control.rs").read_text(encoding="utf-8")
    names = re.findall(r'State::\w+(?: \{.*?\}|\(_\))?(?: \| .*?)? => "([a-z-]+)"', source)
    assert "in-sync" in names and len(names) > 9
    [row] = [line for line in TEXT.splitlines() if line.startswith("| after the state |")]
    missing = {name for name in names if f"`{name}`" not in row}
    assert missing == {"starting"}  # too short to be seen
