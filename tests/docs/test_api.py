"""The session of docs/api.md is executed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mirrord import __version__
from tests.support.unit import ROOT, daemon

#: What differs from run to run.
_VARY = ("confirmed_ns", "duration_s", "throttled_s", "phases", "text")


def session() -> list[tuple[str, list[Any]]]:
    """Commands, and the JSON lines of what they print."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found: list[tuple[str, list[Any]]] = []
    for line in block.splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(masked(json.loads(line)))
    return found


def masked(line: Any) -> Any:
    text = re.sub(r"mirrord\.[0-9a-f]+\.\w+Z", "mirrord.ID.TIME", json.dumps(line))
    found = json.loads(text)
    found.get("result", {}).pop("text", None)
    data = found.get("result", {}).get("data", {})
    for key in _VARY:
        data.pop(key, None)
    return found


def test_the_session_is_as_it_is_shown(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    content = tmp_path / "content"
    content.write_bytes(b"".join(b"%d\n" % number for number in range(1, 100_001)))
    with daemon(tmp_path / "home") as service:
        one, two = str(tmp_path / "one"), str(tmp_path / "two")
        for words in (
            ["volume", "create", one, "64M"],
            ["create", "home", f"block:{one}", f"block:{two}"],
            ["initialize", "home"],
            ["volume", "write", one, "--from", str(content)],
        ):
            assert service.run(*words).returncode == 0, words
        for command, expected in session():
            words = shlex.split(command.replace("/run/mirrord", str(service.home / "run")))
            shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            lines = [masked(json.loads(line)) for line in shown.splitlines()]
            assert _moved(lines) == _moved(expected)


def _moved(lines: list[Any]) -> list[Any]:
    """Without `moved`, which comes in as many parts as it takes time, but with their sum."""
    total = sum(line.get("moved", 0) for line in lines)
    return [*(line for line in lines if "moved" not in line), total]


def test_the_version_shown_is_this_one() -> None:
    [(_, [answer]), *_] = session()
    assert answer == {"mirrord": __version__, "protocol": "v2"}
