"""Pauses the applications of a mirror while the snapshots of a set are taken.

*Software-defined Consistency Group Abstractions for Virtual Machines* (DCC 2016), section 3:
everything is paused, all confirm, the snapshots are taken at the same time, everything is resumed.
If any pause ended before the last snapshot was complete, the set is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mirrord.core.errors import MirrordError, PauseFailed
from mirrord.core.model import Snapshot
from mirrord.core.pause import LeftPaused, MemberPause, PauseReport
from mirrord.core.states import Activity
from mirrord.drivers.contract import Driver
from mirrord.engine import stillpaused
from mirrord.system import clock, steps

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror
    from mirrord.link.driver import RemoteDriver
    from mirrord.pausers.session import Guarding

#: How long to wait for a host after all pauses have ended by themselves.
_LATE_S = 1.0


def take(mirror: Mirror, name: str) -> Snapshot:
    """Take a set of the source, while its applications are paused. Its report is in
    `mirror.source.pauses`.
    """
    stillpaused.resume(mirror)
    if not any(mirror.definition.pausers):
        return mirror.take_snapshot(name)
    mirror.watcher.activity(Activity.SNAPSHOTTING, name)
    mirror.run.enter(Activity.SNAPSHOTTING)
    with mirror.source_locked(), _Guards(mirror) as guards:
        guards.prepare(mirror.run.check_abort)
        mirror.source.make_ready(name)
        steps.reached("ENGINE:PAUSE:BEGIN")
        guards.pause()
        steps.reached("ENGINE:PAUSE:CONFIRMED")
        with mirror.waiting.once(), mirror.waiting.cancellable(guards.check):
            taken = mirror.source.take_snapshot(name)
        steps.reached("ENGINE:PAUSE:TAKEN")
        guards.resume()
        steps.reached("ENGINE:PAUSE:RESUMED")
    mirror.source.pauses[taken.guid] = _report(mirror, guards)
    return taken


class _Host:
    """A host that has applications to pause. name: "" for this one. remote: the driver of one of
    its volumes, None for this one. unsure: whether it was asked to pause, and has not confirmed
    that everything was resumed. times: of each pauser, in milliseconds: confirm, resume, pause,
    network.
    """

    def __init__(self, name: str, remote: RemoteDriver | None) -> None:
        self.name, self.remote = name, remote
        self.times: dict[str, list[float]] = {}
        self.guard: Guarding | None = None
        self.unsure = False

    def note(self, seconds: list[float]) -> None:
        """Add a time of each pauser."""
        for times, one in zip(self.times.values(), seconds, strict=True):
            times.append(round(1000 * one, 1))


class _Guards:
    """The guards of all hosts that have an application to pause, used as one: two-phase, with this
    process as the coordinator.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._max_s, self._until_s = mirror.definition.pausing.max_s, 0.0
        #: By connection; None: this host.
        self.hosts: dict[object, _Host] = {}
        for host, driver, text in _wanted(mirror):
            remote = _remote(driver) if host else None
            found = self.hosts.setdefault(_place(driver, host), _Host(host, remote))
            found.times[text] = []
        #: What may still be paused: before, and after the end.
        self._before = stillpaused.listed(mirror)
        self.left: list[LeftPaused] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """End all: what is still paused is resumed, everywhere at the same time."""
        for _, guard in self._started():
            guard.leave()
        try:
            with ExitStack() as stack:  # all of it, whatever fails
                stack.callback(self._note_left)
                for _, guard in self._started():
                    stack.callback(guard.close)
        except (MirrordError, OSError) as second:
            if error is None:
                raise
            error.add_note(f"what may still be paused was not recorded: {second}")
        if error is not None:
            for one in self.left:
                error.add_note(one.line())

    def _note_left(self) -> None:
        """Record what may still be paused."""
        elsewhere = [
            left
            for host, _ in self._started()
            if host.unsure and host.remote is not None
            for left in stillpaused.ask(host.remote, host.name, list(host.times))
        ]
        stillpaused.note(self._mirror, elsewhere)
        self.left = stillpaused.listed(self._mirror)
        for one in self.left:
            if one not in self._before:
                self._mirror.catalogue.add_event(self._mirror.id, "error", one.line())

    def prepare(self, check: Callable[[], None]) -> None:
        """Start all, and wait until everything can be paused. Hosts are prepared one after the
        other, in an order that is the same for every mirror: two mirrors that pause the same
        applications do not wait for each other.
        """
        hosts = list(self.hosts.values())
        if len(hosts) > 1:
            hosts.sort(key=lambda host: (_identity(host), host.name))
        for host in hosts:
            host.guard = _guard(self._mirror, host)
            host.guard.ready(check)

    def pause(self) -> None:
        """Pause everything at the same time, and wait until all have confirmed."""
        self._until_s = clock.monotonic_s() + self._max_s + _LATE_S
        for host, guard in self._started():
            host.unsure = True
            guard.ask_pause()
        for host, guard in self._started():
            host.note(guard.paused())

    def check(self) -> None:
        """`PauseFailed` when every pause has ended by itself: a host that has still not answered is
        not awaited.
        """
        if clock.monotonic_s() > self._until_s:
            raise PauseFailed(
                "the snapshots took longer than the pause may last",
                why="a host did not answer in time; every pause has ended by itself, and the "
                "snapshots were discarded",
                hint="Check the connection to each host, and run the same command again.",
            )

    def resume(self) -> None:
        """Resume everything at the same time. Raises when any of the pauses had ended before."""
        for _, guard in self._started():
            guard.ask_resume()
        failure: MirrordError | None = None
        for host, guard in self._started():
            try:
                found = guard.resumed()
            except MirrordError as error:
                failure = failure or error
                continue
            host.unsure = bool(found.problems)
            host.note(found.resume_s)
            host.note(found.pause_s)
            host.note([guard.network_s] * len(found.pause_s))
            for problem in found.problems:
                text = f"not resumed at once: {problem}"
                self._mirror.catalogue.add_event(self._mirror.id, "warning", text)
        if failure is not None:
            raise failure

    def _started(self) -> Iterator[tuple[_Host, Guarding]]:
        for host in self.hosts.values():
            if host.guard is not None:
                yield host, host.guard


def _wanted(mirror: Mirror) -> Iterator[tuple[str, Driver, str]]:
    """What is to be paused: the host ("" is this one), a volume there, and the pauser."""
    members = zip(
        mirror.definition.pairs, mirror.source.drivers, mirror.definition.pausers, strict=True
    )
    for pair, driver, text in members:
        if text:
            yield pair.source.host, driver, text


def _remote(driver: Driver) -> RemoteDriver:
    from mirrord.link.driver import RemoteDriver

    assert isinstance(driver, RemoteDriver), driver
    return driver


def _place(driver: Driver, host: str) -> object:
    """What members on one host have in common: the connection, however the host is written."""
    return _remote(driver).connection if host else None


def _identity(host: _Host) -> str:
    """What tells a host from others, at whichever host a mirror is controlled."""
    if host.remote is None:
        return clock.boot_id()
    from mirrord.link.pausing import host_of

    return host_of(host.remote)


def _guard(mirror: Mirror, host: _Host) -> Guarding:
    pairs, max_s = mirror.definition.pairs, mirror.definition.pausing.max_s
    if host.remote is not None:
        from mirrord.link.pausing import RemoteGuard

        return RemoteGuard(host.remote, list(host.times), max_s)
    from mirrord.pausers.guard import Order
    from mirrord.pausers.session import Guard

    record = str(stillpaused.record_of(mirror))
    here = [one.source.location for one in pairs if not one.source.host]
    return Guard(Order(list(host.times), max_s, [record, *here], record))


def _report(mirror: Mirror, guards: _Guards) -> PauseReport:
    left = {(one.host, one.pauser): one.why for one in guards.left}
    source = mirror.source
    found = []
    for name, pair, driver, text, took_s in zip(
        source.names,
        mirror.definition.pairs,
        source.drivers,
        mirror.definition.pausers,
        source.took_s,
        strict=True,
    ):
        if text:
            host = guards.hosts[_place(driver, pair.source.host)]
            confirm_ms, resume_ms, pause_ms, network_ms = host.times[text]
            took_ms = round(1000 * took_s, 1)
            problem = left.get((host.name, text), "")
            times = confirm_ms, took_ms, resume_ms, pause_ms, network_ms
            found.append(MemberPause(name, text, *times, problem))
    return PauseReport(tuple(found))
