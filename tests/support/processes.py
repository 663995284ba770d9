"""Looks for processes that nobody should have left behind."""

from __future__ import annotations

import os
from pathlib import Path


def working_on(*words: str) -> list[tuple[int, str]]:
    """Other processes (pid, command line) whose command line has all these words in it."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            raw = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        line = raw.replace(b"\0", b" ").decode(errors="replace")
        if all(word in line for word in words):
            found.append((int(entry), line))
    return found
