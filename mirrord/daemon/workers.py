"""Worker threads: each has its own `Service`, and so its own connection to the catalogue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from mirrord.config.host import Host
from mirrord.control.api import Service
from mirrord.control.shared import Shared
from mirrord.core.errors import Aborted, IoFailed
from mirrord.core.results import Silent, Watcher
from mirrord.engine.limits import Limits
from mirrord.system import files
from mirrord.system.paths import Paths

T = TypeVar("T")

#: For verbs that are not queued: a restore of files may take hours.
VERBS = 8
#: For scheduled verifications: each keeps two disks busy.
VERIFICATIONS = 2
#: For reports, and for abort, which must not wait for a long verb.
REPORTS = 8
#: For the daemon's probes of the ends of mirrors: a disk that hangs delays only these.
PROBES = 2
#: For the loops of live mirrors' policies: one for each, as long as the daemon runs. No limit, as a
#: loop that waited for another one to end would wait for ever; threads are started when needed.
STEERED = 1 << 30
#: For the loops that wait for full windows of semi-sync. Further mirrors are only probed. Each
#: occupies a thread at the primary's host, too (`mirrord.link.session.CALLS_MAX`).
WINDOWS = 32
#: For the daemon's own records: short, and of the catalogue only.
RECORDS = 2
#: For resuming what a pause has left paused: long verbs must not delay that.
RESUMES = 4
#: For notification of alarms, which may hang. One thread, so that an alarm is never reported as
#: cleared before it was reported as active.
NOTIFIERS = 1


def _check_state(paths: Paths, held: tuple[int, int] | None) -> None:
    """`IoFailed` when the daemon's lock is not where it was: another daemon may run, or a catalogue
    that was made in the folder below would say, for one, that nothing is quiesced.
    """
    if files.identity(paths.daemon_lock) != held:
        raise IoFailed(
            "the state folder is not the one that the daemon has locked",
            where=str(paths.catalogue),
            why="it was unmounted, moved or replaced, or its file daemon.lock was removed",
            hint="Mount it or move it back. To begin with a new one, in which no mirror is "
            "quiesced: 'systemctl restart mirrord'.",
        )


class Crew:
    """A pool of threads. Called with work, it does that with a service that is not in use."""

    def __init__(
        self, size: int, name: str, service: Callable[[], AbstractContextManager[Service]]
    ) -> None:
        self.pool, self._service = ThreadPoolExecutor(size, name), service

    def __call__(
        self, work: Callable[[Service], T], watcher: Watcher | None = None
    ) -> asyncio.Future[T]:
        """Do the work in a thread; its progress is reported to the watcher."""

        def call() -> T:
            with self._service() as service, service.watched_by(watcher or Silent()):
                return work(service)

        return asyncio.get_running_loop().run_in_executor(self.pool, call)


class Workers:
    """Pools: transfers (as many as may run at once), verbs, verifications, reports, probes,
    records, loops of policies, loops that wait for full windows, resumes, notifiers.
    """

    def __init__(
        self, paths: Paths, host: Host, limits: Limits, rpo_at_risk: Callable[[str], bool]
    ) -> None:
        self.paths, self._host, self._limits, self._rpo_at_risk = paths, host, limits, rpo_at_risk
        self._shared = Shared()
        self._shared.check_state = partial(_check_state, paths, files.identity(paths.daemon_lock))
        #: All services that were made, and the unused ones of them.
        self._services: list[Service] = []
        self._idle: list[Service] = []
        self._lock = threading.Lock()
        #: Set when the daemon is stopping.
        self.stopping = threading.Event()
        self.transfer = Crew(host.limits.transfers, "transfer", self._service)
        self.verb = Crew(VERBS, "verb", self._service)
        self.verify = Crew(VERIFICATIONS, "verify", self._service)
        self.report = Crew(REPORTS, "report", self._service)
        self.probe = Crew(PROBES, "probe", self._service)
        self.steer = Crew(STEERED, "steer", self._service)
        self.window = Crew(WINDOWS, "window", self._service)
        self.resume = Crew(RESUMES, "resume", self._service)
        self.record = Crew(RECORDS, "record", self._service)
        self._notifiers = ThreadPoolExecutor(NOTIFIERS, "notifier")

    def configure(self, host: Host) -> None:
        """Apply new settings."""
        with self._lock:
            if host.limits.transfers != self._host.limits.transfers:
                self.transfer.pool.shutdown(wait=False)  # its running transfers finish
                self.transfer = Crew(host.limits.transfers, "transfer", self._service)
            self._host = host
            for service in self._services:
                service.share(host, self._limits)

    def notify(self, work: Callable[[], None]) -> None:
        """Run it in the pool for notifiers."""
        self._notifiers.submit(work)

    @contextmanager
    def _service(self) -> Iterator[Service]:
        """A service that is not in use: the one used last, or a new one."""
        with self._lock:
            service = self._idle.pop() if self._idle else self._made()
        try:
            service.refresh()
            yield service
        finally:
            with self._lock:
                self._idle.append(service)

    def _made(self) -> Service:
        service = Service(self.paths, shared=self._shared)
        service.rpo_at_risk = self._rpo_at_risk
        service.may_verify = self._may_verify
        service.share(self._host, self._limits)
        self._services.append(service)
        return service

    def _may_verify(self) -> None:
        if self.stopping.is_set():
            raise Aborted("the verification was ended", why="the daemon is stopping")

    def close(self) -> None:
        """Wait for what runs, then close the catalogues."""
        crews = (self.transfer, self.verb, self.verify, self.report, self.probe, self.record)
        for crew in (*crews, self.steer, self.window, self.resume):
            crew.pool.shutdown(wait=True)
        self._notifiers.shutdown(wait=False, cancel_futures=True)
        for service in self._services:
            service.close()
