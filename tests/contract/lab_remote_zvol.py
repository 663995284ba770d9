"""The lab of OpenZFS volumes, in the virtual machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.lab import Lab
from tests.contract.zfs import zfs_lab


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with zfs_lab(volume=True, large=large) as made:
        yield made
