"""Libraries in C that stand between a program and the system (LD_PRELOAD)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build(source: str, library: Path) -> Path:
    """Compile a text of C to a library; returns `library`."""
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-x", "c", "-o", str(library), "-", "-ldl"]
    subprocess.run(words, input=source, text=True, check=True)
    return library
