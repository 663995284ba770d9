"""What reads and writes the images in a test: io_uring, where it is allowed, or threads."""

from __future__ import annotations

import ctypes
import errno

import pytest


def _has_io_uring() -> bool:
    """Whether this kernel allows it: without parameters it then fails in another way."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(425, 0, None)
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


RINGLESS = pytest.mark.skipif(not _has_io_uring(), reason="io_uring is not allowed")
#: For the fixture `pair`: what reads and writes the images.
EACH_IO = pytest.mark.parametrize(
    "pair", [pytest.param("uring", marks=RINGLESS), "threads"], indirect=True
)
