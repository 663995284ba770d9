"""A reserve: on a file system that is full, a view cannot even be renamed, nor a record written.
Then the reserve is given up, which makes room for what must still work there: break, rollback,
deleting.

It is one file, whose removal the kernel allows on a full file system. Its extended attributes lie
in the metadata. Its data make room for records: the kernel reserves data space for the smallest
file, even where that ends in the metadata.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import TypeVar

from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import files, steps

T = TypeVar("T")

_BYTES = 8 << 20
_ATTRIBUTE_BYTES = 8000
_DATA_BYTES = 1 << 20
#: On a smaller file system, or a fuller one, it would be in the way.
_FREE_BYTES_LEAST = 16 * _BYTES
_FULL = (errno.ENOSPC, errno.EDQUOT)


def keep(place: Layout) -> None:
    """Make the reserve if it is not there and there is room for it. It need not be durable."""
    path = place.reserve_file
    if path.exists():
        return
    found = os.statvfs(place.store)
    if found.f_bavail * found.f_frsize < _FREE_BYTES_LEAST:
        return
    steps.reached("BTRFS:RESERVE:MAKE")
    with contextlib.suppress(OSError):  # all works without
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for number in range(_BYTES // _ATTRIBUTE_BYTES):
                os.setxattr(descriptor, b"user.%d" % number, bytes(_ATTRIBUTE_BYTES))
            os.posix_fallocate(descriptor, 0, _DATA_BYTES)
        finally:
            os.close(descriptor)


def use(place: Layout, work: Callable[[], T]) -> T:
    """Do it; where there is no room for it, again without the reserve."""
    try:
        return work()
    except OSError as error:
        if error.errno not in _FULL or not place.reserve_file.exists():
            raise
    files.remove_file("BTRFS:RESERVE:USE", place.reserve_file)
    files.sync_filesystem("BTRFS:RESERVE:SYNC", place.store)
    return work()
