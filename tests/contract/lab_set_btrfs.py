"""The lab of mirrors with three members that are btrfs volumes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.lab import Lab
from tests.contract.sets import three


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with three("lab_btrfs", folder, large=large) as made:
        yield made
