"""Reading ahead: a thread reads the next batches while the previous ones are replayed.

Both Parquet's decoder and the replay kernel release the GIL, so they run in parallel on two cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

#: Maximum number of waiting batches, which bounds the memory.
_WAITING = 8


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items in the same order, none of which is None; an error is raised at its place
    among them.

    The thread ends with the iterator: close or exhaust it to end the thread.
    """
    source = iter(items)
    reader = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        waiting = deque(reader.submit(next, source, None) for _ in range(_WAITING))
        while (item := waiting.popleft().result()) is not None:
            yield item
            waiting.append(reader.submit(next, source, None))
    finally:
        reader.shutdown(cancel_futures=True)
