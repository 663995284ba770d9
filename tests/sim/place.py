"""Where a simulation keeps its catalogue and run files: in memory, where there is such a place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = "/dev/shm"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mirrord-sim-", dir=where) as name:
        yield Path(name)
