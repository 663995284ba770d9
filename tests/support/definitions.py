"""Definitions as tests write and change them."""

from __future__ import annotations

import re
from pathlib import Path


def two_sites(source: str, destination: str, *lines: str, mirror_id: str = "a1") -> str:
    """The text of a definition; lines: at its top."""
    return "\n".join(
        [
            f'id = "{mirror_id}"',
            *lines,
            f'[site.primary]\nendpoint = "{source}"',
            f'[site.secondary]\nendpoint = "{destination}"\n',
        ]
    )


def add_lines(file: Path, *lines: str) -> None:
    """Put lines into a definition, above its tables."""
    before, table, rest = file.read_text().partition("\n[")
    file.write_text("\n".join([before, *lines]) + "\n" + table + rest)


def set_keep(file: Path, site: str, keep: str) -> None:
    """Let other reference snapshots stay at a site of a definition that has such a line."""
    before, table, rest = file.read_text().partition(f"[site.{site}]")
    changed, count = re.subn(r"(?m)^keep = .*$", f"keep = {keep}", rest, count=1)
    assert count == 1
    file.write_text(before + table + changed)
