"""Threads that do the work: each has a `Service`, and so a catalogue's connection, to itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from mirrord.config.host import Host
from mirrord.control.api import Service
from mirrord.control.shared import Shared
from mirrord.core.results import Silent, Watcher
from mirrord.engine.limits import Limits
from mirrord.system.paths import Paths

T = TypeVar("T")

#: For verbs that do not wait for a turn: a restore of files may take hours.
VERBS = 8
#: For reports, and for abort, which no long verb must hold up.
REPORTS = 8
#: For the daemon's own looks at the ends of mirrors: a disk that hangs may hold these up only.
LOOKS = 2
#: For the daemon's own records: short, and of the catalogue only.
HOUSE = 2
#: For what tells the world of alarms: it may hang, and must hold up nobody. One, so that the end
#: of an alarm is never told before its beginning.
TELLERS = 1


class Workers:
    """Crews: transfers (as many as may run at once), verbs, reports, looks, the house, tellers."""

    def __init__(
        self, paths: Paths, host: Host, limits: Limits, in_danger: Callable[[str], bool]
    ) -> None:
        self._paths, self._host, self._limits, self._in_danger = paths, host, limits, in_danger
        self._shared = Shared()
        #: All that were made, and those of them that nobody uses now.
        self._services: list[Service] = []
        self._idle: list[Service] = []
        self._lock = threading.Lock()
        self._transfers = ThreadPoolExecutor(host.limits.transfers, "transfer")
        self._verbs = ThreadPoolExecutor(VERBS, "verb")
        self._reports = ThreadPoolExecutor(REPORTS, "report")
        self._looks = ThreadPoolExecutor(LOOKS, "look")
        self._house = ThreadPoolExecutor(HOUSE, "house")
        self._tellers = ThreadPoolExecutor(TELLERS, "teller")

    def configure(self, host: Host) -> None:
        """Other settings hold from now on."""
        with self._lock:
            if host.limits.transfers != self._host.limits.transfers:
                self._transfers.shutdown(wait=False)  # what runs there ends there
                self._transfers = ThreadPoolExecutor(host.limits.transfers, "transfer")
            self._host = host
            for service in self._services:
                service.share(host, self._limits)

    def transfer(
        self, work: Callable[[Service], T], watcher: Watcher | None = None
    ) -> asyncio.Future[T]:
        """Do it in a thread for transfers."""
        return self._run(self._transfers, work, watcher)

    def verb(
        self, work: Callable[[Service], T], watcher: Watcher | None = None
    ) -> asyncio.Future[T]:
        """Do it in a thread for verbs."""
        return self._run(self._verbs, work, watcher)

    def report(
        self, work: Callable[[Service], T], watcher: Watcher | None = None
    ) -> asyncio.Future[T]:
        """Do it in a thread for reports."""
        return self._run(self._reports, work, watcher)

    def look(self, work: Callable[[Service], T]) -> asyncio.Future[T]:
        """Do it in a thread for looks at the ends."""
        return self._run(self._looks, work, None)

    def house(self, work: Callable[[Service], T]) -> asyncio.Future[T]:
        """Do it in a thread of the house: short, without a look at any volume."""
        return self._run(self._house, work, None)

    def tell(self, work: Callable[[], None]) -> None:
        """Do it in a thread for tellers."""
        self._tellers.submit(work)

    def _run(
        self, pool: ThreadPoolExecutor, work: Callable[[Service], T], watcher: Watcher | None
    ) -> asyncio.Future[T]:
        def call() -> T:
            with self._service() as service, service.watched_by(watcher or Silent()):
                return work(service)

        return asyncio.get_running_loop().run_in_executor(pool, call)

    @contextmanager
    def _service(self) -> Iterator[Service]:
        """One that nobody else uses meanwhile: the one that was used last, or a new one."""
        with self._lock:
            service = self._idle.pop() if self._idle else self._made()
        try:
            yield service
        finally:
            with self._lock:
                self._idle.append(service)

    def _made(self) -> Service:
        service = Service(self._paths, shared=self._shared)
        service.in_danger = self._in_danger
        service.share(self._host, self._limits)
        self._services.append(service)
        return service

    def close(self) -> None:
        """Wait for what runs, then let go of the catalogues."""
        for pool in (self._transfers, self._verbs, self._reports, self._looks, self._house):
            pool.shutdown(wait=True)
        self._tellers.shutdown(wait=False, cancel_futures=True)
        for service in self._services:
            service.close()
