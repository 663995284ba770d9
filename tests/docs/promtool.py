"""promtool, from Debian's package `prometheus`: fetched once, unpacked, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def promtool() -> str:
    """Its path: an installed one, or that of a folder in the cache."""
    installed = shutil.which("promtool")
    if installed is not None:
        return installed
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirrord"
    kept = cache / "promtool"
    if not kept.exists():
        _fetch(cache, kept)
    return str(kept)


def _fetch(cache: Path, kept: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        if subprocess.run(download, cwd=folder, capture_output=True).returncode != 0:
            subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
            subprocess.run(download, cwd=folder, check=True, capture_output=True)
        [package] = Path(folder).glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, f"{folder}/unpacked"], check=True)
        os.replace(f"{folder}/unpacked/usr/bin/promtool", kept)
