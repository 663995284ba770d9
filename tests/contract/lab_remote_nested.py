"""The lab with nested subvolumes, both ends behind an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.lab import Lab
from tests.contract.remote import remote


@contextmanager
def lab(folder: Path, *, large: bool = False) -> Iterator[Lab]:
    with remote("lab_nested", folder, large=large) as made:
        yield made
