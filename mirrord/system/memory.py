"""How this process reuses freed memory."""

from __future__ import annotations

import ctypes
import functools

#: The C library's numbers for these two settings.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Buffers larger than those of a stream are still returned at once.
_BUFFER_BYTES = 8 << 20
_KEPT_BYTES = 32 << 20


@functools.cache
def keep_buffers() -> None:
    """Keep up to 32 MiB of freed memory for the next buffers.

    A stream continuously needs buffers of half a megabyte, in several threads. By default the C
    library returns such memory to the kernel each time, which then clears every page of the next
    buffer: a fifth of the cost of a transfer.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library: only slower
    tune(_MMAP_THRESHOLD, _BUFFER_BYTES)
    tune(_TRIM_THRESHOLD, _KEPT_BYTES)
