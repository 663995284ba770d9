"""Coroutines that run beside all else on the event loop, and whose failure is a line in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mirrord.core.errors import MirrordError
from mirrord.daemon.journal import say
from mirrord.system.native import Panic

#: Runs such a coroutine.
Background = Callable[[Coroutine[Any, Any, None]], None]


class Tasks:
    """Those that run now."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside all else."""
        task = asyncio.get_running_loop().create_task(_guarded(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def ended(self, timeout_s: float) -> None:
        """Wait until all have ended, for so long at the most."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except MirrordError as error:
        say("error", str(error))
    except (Exception, Panic) as bug:
        say("error", f"unexpected: {type(bug).__name__}: {bug}")
