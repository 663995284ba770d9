"""Reading ahead: a thread reads the next batches while those before are replayed.

Both Parquet's decoder and the kernel let other threads run, so on two cores they share the work.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")

#: Batches that wait at the most: memory is bounded by them.
_WAITING = 8
#: So long a full queue is waited for before the reader looks whether it is still wanted, seconds.
_LOOK_S = 0.2


class _End:
    """What comes last: the error that ended the reading, or none."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items in the same order; an error comes where it would have come.

    The thread ends with the iterator: close it (or use it up) to leave none behind.
    """
    waiting: queue.Queue[Item | _End] = queue.Queue(_WAITING)
    unwanted = threading.Event()

    def put(item: Item | _End) -> bool:
        while not unwanted.is_set():
            try:
                waiting.put(item, timeout=_LOOK_S)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as raised:
            error = raised
        put(_End(error))

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        unwanted.set()
        thread.join()
