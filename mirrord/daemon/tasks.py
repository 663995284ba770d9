"""Background tasks on the event loop; a failure is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mirrord.core.errors import MirrordError
from mirrord.daemon.journal import say
from mirrord.system.native import Panic

#: Runs such a coroutine.
Background = Callable[[Coroutine[Any, Any, None]], object]


class Tasks:
    """The running tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        #: Nobody waits for them any more.
        self._is_over = False

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def within(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Run a coroutine as a task, and wait for it, but no longer than this: then it goes on."""
        await asyncio.wait({self.begin(work)}, timeout=timeout_s)

    async def ended(self, timeout_s: float) -> None:
        """Wait until all have ended, at most so long: what others do afterwards fails for want of
        workers, and is not logged.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        self._is_over = True

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except MirrordError as error:
            say("error", str(error))
        except (Exception, Panic) as bug:
            if not self._is_over:
                say("error", f"unexpected: {type(bug).__name__}: {bug}")
