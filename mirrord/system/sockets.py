"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATH_BYTES_MAX = 107


@contextmanager
def address(path: Path) -> Iterator[str]:
    """How to bind or connect to the socket at `path`: the kernel takes at most 107 bytes, so a
    longer path is reached through an open descriptor of its folder.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= _PATH_BYTES_MAX:
        yield text
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
