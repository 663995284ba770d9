"""Mounts of tests, also where pytest is not installed (the OpenZFS machine)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unmount(mount: Path) -> None:
    """Unmount, also when a child that was killed is still on its way out."""
    if subprocess.run(["umount", mount], check=False, capture_output=True).returncode != 0:
        subprocess.run(["umount", "--lazy", mount], check=True)
