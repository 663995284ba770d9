"""Several jobs at once, each in a thread, for the thread that waits for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from mirrord.core.errors import Aborted

T = TypeVar("T")
_ASK_S = 0.1


class Crew:
    """Runs the jobs. The first failure ends the rest: each job calls `check` often enough."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._over = threading.Event()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def check(self) -> None:
        """Raise `Aborted` when another job has failed, or the waiting thread has left."""
        if self._over.is_set():
            raise Aborted("another member's transfer failed", hint="Run the same command again.")

    def outside(self, work: Callable[[], object]) -> None:
        """Called by a job: let the waiting thread do this, and wait for it."""
        done: Future[object] = Future()

        def call() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._calls.put(call)
        while not wait([done], timeout=_ASK_S).done:
            self.check()
        done.result()

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Run all, and return what each returned. Raises the first failure, once all have ended."""
        failures: list[BaseException] = []

        def one(work: Callable[[], T]) -> T:
            try:
                self.check()
                return work()
            except BaseException as error:
                if not self._over.is_set():
                    failures.append(error)
                    self._over.set()
                raise

        with ThreadPoolExecutor(self._at_once, thread_name_prefix="member") as pool:
            futures = [pool.submit(one, work) for work in works]
            for future in futures:
                future.add_done_callback(lambda _future: self._calls.put(None))
            try:
                self._serve(futures)
            finally:
                self._over.set()
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    def _serve(self, futures: Sequence[Future[T]]) -> None:
        """Do what the jobs pass to `outside` until all have ended."""
        while not all(future.done() for future in futures):
            call = self._calls.get()
            if call is not None:
                call()
