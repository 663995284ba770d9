"""The space reserve. On a full file system not even a view can be renamed or a record written. Then
the reserve is deleted, which frees space for what must still work: break, rollback, deletion.

It is one file, which the kernel allows to be removed on a full file system. Its extended attributes
reserve metadata space. Its data reserves space for records: the kernel reserves data space even for
the smallest file that ends up in the metadata.
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
#: With less free space than this no reserve is created.
_FREE_BYTES_LEAST = 16 * _BYTES
_FULL = (errno.ENOSPC, errno.EDQUOT)


def keep(place: Layout) -> None:
    """Create the reserve if it is missing and there is space for it. It need not be durable."""
    path = place.reserve_file
    if path.exists():
        return
    found = os.statvfs(place.store)
    if found.f_bavail * found.f_frsize < _FREE_BYTES_LEAST:
        return
    steps.reached("BTRFS:RESERVE:MAKE")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    # (Everything works without it.)
    with contextlib.suppress(OSError), files.opened(path, flags, 0o600) as descriptor:
        for number in range(_BYTES // _ATTRIBUTE_BYTES):
            os.setxattr(descriptor, b"user.%d" % number, bytes(_ATTRIBUTE_BYTES))
        os.posix_fallocate(descriptor, 0, _DATA_BYTES)


def use(place: Layout, work: Callable[[], T]) -> T:
    """Call `work`; when no space is left, delete the reserve and call it again."""
    try:
        return work()
    except OSError as error:
        if error.errno not in _FULL or not place.reserve_file.exists():
            raise
    files.remove_file("BTRFS:RESERVE:USE", place.reserve_file)
    files.sync_filesystem("BTRFS:RESERVE:SYNC", place.store)
    return work()
