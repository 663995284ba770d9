"""promtool, from Debian's package `prometheus`: fetched once, unpacked, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def promtool() -> str | None:
    """Its path: an installed one, or that of a folder in the cache; None where neither can be."""
    installed = shutil.which("promtool")
    if installed is not None:
        return installed
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirrord"
    kept = cache / "promtool"
    if not kept.exists() and not _fetch(cache, kept):
        return None
    return str(kept)


def _fetch(cache: Path, kept: Path) -> bool:
    if shutil.which("apt-get") is None:
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        for words in (
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"],
            ["sh", "-c", "dpkg-deb -x prometheus_*.deb unpacked"],
        ):
            if subprocess.run(words, cwd=folder, capture_output=True).returncode != 0:
                return False
        os.replace(f"{folder}/unpacked/usr/bin/promtool", kept)
    return True
