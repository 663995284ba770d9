"""How this process keeps the memory that it has used."""

from __future__ import annotations

import ctypes
import functools

#: The C library's numbers for these two settings.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Larger buffers than any of a stream are still given back at once.
_BUFFER_BYTES = 8 << 20
_KEPT_BYTES = 32 << 20


@functools.cache
def keep_buffers() -> None:
    """Keep up to 32 MiB of what is freed, for the next buffers.

    A stream needs buffers of half a megabyte all the time, in several threads. The C library gives
    such memory back to the kernel each time, which then clears every page of the next one anew:
    a fifth of all that a transfer costs.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library: it costs time, and nothing else
    tune(_MMAP_THRESHOLD, _BUFFER_BYTES)
    tune(_TRIM_THRESHOLD, _KEPT_BYTES)
