"""System calls that Python does not have, by the C library."""

from __future__ import annotations

import ctypes
import os

lib = ctypes.CDLL(None, use_errno=True)


def checked(result: int, *paths: str | None) -> int:
    """The result of a call; if it failed, its `OSError`, with the paths as `OSError` takes them."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), *paths)
    return result
