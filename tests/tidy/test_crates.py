"""Debian's own Rust builds everything: no crate in the lock file asks for a newer one."""

from __future__ import annotations

import json
import re
import subprocess

from tests.tidy.test_tidy import ROOT


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def test_no_crate_asks_for_a_newer_rust_than_setup_accepts() -> None:
    command = ["cargo", "metadata", "--locked", "--format-version=1"]
    found = subprocess.run(
        [ROOT / ".venv/bin/with-cargo", *command], cwd=ROOT / "native", capture_output=True
    )
    assert found.returncode == 0, found.stderr.decode()
    packages = json.loads(found.stdout)["packages"]
    needs = {
        f"{one['name']} {one['version']}": _version(one["rust_version"])
        for one in packages
        if one["rust_version"]
    }
    [oldest] = re.findall(r"\[ \"\$version\" -ge (\d+) \]", (ROOT / "setup.sh").read_text())
    assert needs["mirrord-receive 0.1.0"] == (1, int(oldest))
    assert {name for name, version in needs.items() if version > (1, int(oldest))} == set()
