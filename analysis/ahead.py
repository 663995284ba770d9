"""Reading ahead: a thread reads the next batches while the previous ones are replayed.

Both Parquet's decoder and the replay kernel release the GIL, so they run in parallel on two cores.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")

#: Maximum number of waiting batches, which bounds the memory.
_WAITING = 8
#: How long the reader waits on a full queue before it checks whether it is to end, seconds.
_POLL_S = 0.2


class _End:
    """The last item: the error that ended the reading, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items in the same order; an error is raised at its place among them.

    The thread ends with the iterator: close or exhaust it to end the thread.
    """
    waiting: queue.Queue[Item | _End] = queue.Queue(_WAITING)
    unwanted = threading.Event()

    def put(item: Item | _End) -> bool:
        while not unwanted.is_set():
            try:
                waiting.put(item, timeout=_POLL_S)
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
