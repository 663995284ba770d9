"""One live mirror with everything that its verbs need."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.hosts import Hosts
from mirrord.core.errors import (
    ConfigError,
    Damaged,
    IoFailed,
    LinkLost,
    MirrordError,
    Refused,
    Unreachable,
)
from mirrord.core.live import COPY_RATE_MIN, LiveReading, LiveStatus, Mode
from mirrord.core.model import Definition, Endpoint
from mirrord.core.policies import DURABLE, FIXED
from mirrord.core.relationship import is_same
from mirrord.core.results import Watcher
from mirrord.core.states import Already, Refusal, State, Verb, judge
from mirrord.core.units import WINDOW, window_argument
from mirrord.drivers.contract import Driver
from mirrord.drivers.live import Live, live_of
from mirrord.engine import preempt
from mirrord.engine.limits import rate_of
from mirrord.engine.progress import RunFiles
from mirrord.live.refusals import REFUSALS, nobody_serves
from mirrord.system import clock, locks
from mirrord.system.waiting import LOOK_S, Waiting

_POLL_S = 0.1
#: How often a copy's rate is compared with the definition.
_RATE_S = 5.0
#: How long the primary may take to reach the replica, and the replica may refuse a copy.
_CONNECT_S = 30.0
#: How long a break may make no progress. The last step is a sync, which shows none.
_BREAK_STALLED_S = 600.0
_LOOPBACK = "127.0.0.1"


class Book(NamedTuple):
    """Where a mirror is recorded on the host `controller`. zone: of its rates."""

    definitions: Definitions
    catalogue: Catalogue
    hosts: Hosts
    zone: str
    controller: str


@dataclass(slots=True)
class LiveMirror:
    """An open live mirror, in its present direction. It holds no lock until a verb runs."""

    definition: Definition
    source: Live
    destination: Live
    book: Book
    run: RunFiles
    watcher: Watcher

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def id(self) -> str:
        """Its id."""
        return self.definition.id

    @property
    def waiting(self) -> Waiting:
        """How this verb waits; both ends have the same."""
        return self.source.waiting

    @property
    def catalogue(self) -> Catalogue:
        """Where its state and history are recorded."""
        return self.book.catalogue

    @property
    def state(self) -> State:
        """The recorded state."""
        row = self.catalogue.mirror(self.id)
        return row.state if row else State.UNINITIALIZED

    def known_state(self) -> State:
        """`state_by` what both ends report now."""
        return self.state_by(self.read())

    def state_by(self, reading: LiveReading) -> State:
        """The recorded state, unless the ends report another one: the catalogue may have been lost,
        or be an older one, and another host may have changed the roles. (After a `release` only the
        destination has records.)
        """
        source, destination, primary = reading.source, reading.destination, reading.primary
        roles = {end.role for end in (source, destination) if end is not None}
        if primary and primary.generation and "secondary" in roles:
            return State.MIRRORED
        is_live = destination is not None and destination.is_primary
        if (is_live or "fenced" in roles) and (source is None or source.volume):
            return State.BROKEN_OFF
        is_known = self.state is not State.UNINITIALIZED
        return State.MIRRORED if source and source.generation and not is_known else self.state

    @property
    def first_mode(self) -> Mode:
        """The mode with which its policy begins."""
        policy = self.definition.policy
        return Mode(policy) if policy in FIXED else Mode.SYNC

    def is_held(self) -> bool:
        """Whether a verb is at work."""
        return locks.holder_of(self.run.lock) is not None

    def hold(self, verb: Verb) -> AbstractContextManager[ExitStack]:
        """Hold the mirror for one verb; `Busy` names the holder."""
        return preempt.held(self, verb)

    def permit(self, verb: Verb) -> Already | State:
        """The table's verdict for `verb`; raises `Refused` when it is a refusal."""
        state = self.known_state()
        if (
            verb is Verb.INITIALIZE
            and self.state is State.UNINITIALIZED
            and state is State.MIRRORED
        ):
            state = self.state  # an interrupted one is completed
        verdict = judge(state, verb, quiesced=False)
        if isinstance(verdict, Refusal):
            why, hint = REFUSALS.get((state, verb), verdict)
            raise Refused(
                f"'{verb.value}' is not possible now",
                where=f"mirror '{self.name}'",
                why=why,
                hint=hint.format(name=self.name),
            )
        return verdict

    def record(self, state: State, text: str) -> None:
        """Record the mirror's new state, and an event."""
        self.catalogue.add_mirror(self.id, state)
        self.catalogue.end(self.id, state=state, event=("info", text))

    def turned(self) -> None:
        """Record that the sites have changed roles."""
        site = self.definition.destination_site
        self.catalogue.set_direction(self.id, site, since_ns=clock.now_ns())

    # The ends

    def status_of(self, end: Live) -> LiveStatus:
        """What an end reports. `Refused` when it has the records of another mirror, as an old copy
        of it may have.
        """
        found = end.live_status()
        if found.mirror_id not in ("", self.id):
            raise Refused(
                "the records beside the image are those of another mirror",
                where=str(end),
                why=f"the mirror {found.mirror_id}",
                hint=f"Put back the image and the records of '{self.name}'. If they were lost: "
                f"'mirrord delete {self.name} --yes' (both images are kept), then create the "
                "mirror again, from the image that has the data.",
            )
        return found

    def start(self) -> None:
        """Let the processes of both ends run, and know of each other."""
        for end in (self.destination, self.source):
            self.status_of(end)
        here, there = self._addresses()
        began = self.destination.live_start(there, "")
        peer = self.source.live_start(here, began.link).link
        self.destination.live_start("", peer)

    def _addresses(self) -> tuple[str, str]:
        """Where source and destination listen for the replica link."""
        ends = (self.definition.source, self.definition.destination)
        given = self.definition.link_addresses
        source, destination = reversed(given) if self.definition.reversed else given
        return (
            source or _address_of(ends[0], ends[1], self.book.hosts),
            destination or _address_of(ends[1], ends[0], self.book.hosts),
        )

    def read(self) -> LiveReading:
        """What both ends report, without waiting long for one that does not answer."""
        ends = [self._looked_at(end) for end in (self.source, self.destination)]
        reading = LiveReading(self.definition.policy, ends[0], ends[1], clock.now_ns())
        primary = reading.primary
        if primary is None or self.controls(primary):
            return reading
        return reading._replace(controller=primary.controller.partition("@")[2])

    def _looked_at(self, end: Live) -> LiveStatus | None:
        try:
            with end.waiting.hurried(LOOK_S):
                found = end.live_status()
        except Damaged as error:
            return LiveStatus(problem=str(error))
        except (MirrordError, OSError):
            return None
        if found.mirror_id in ("", self.id):
            return found
        return LiveStatus(problem=f"it has the records of another mirror, {found.mirror_id}")

    def primary(self) -> Live:
        """The end that serves clients, or would. After a break that is not the source while the
        destination, which has the higher epoch, does not run or cannot be asked.
        """
        reading = self.read()
        primary = self._serving(reading)
        if primary is None:
            self.permit_initialized()
            order = [(self.source, reading.source), (self.destination, reading.destination)]
            if self.state is State.BROKEN_OFF:
                order.reverse()
            for end, found in order:
                if primary is None and found is not None and found.volume:
                    end.live_start("", "")
                    reading = self.read()
                    primary = self._serving(reading)
        if primary is None:
            raise nobody_serves(self.name, reading, str(self.source), str(self.destination))
        return self.source if primary is reading.source else self.destination

    def _serving(self, reading: LiveReading) -> LiveStatus | None:
        primary, other = reading.primary, reading.destination
        is_known = other is not None and other.running
        if self.state is State.BROKEN_OFF and primary is reading.source and not is_known:
            return None
        return primary

    def permit_initialized(self) -> None:
        """`Refused` when nothing was created yet."""
        if self.state is State.UNINITIALIZED and not self.status_of(self.source).volume:
            raise Refused(
                "the mirror is not initialized",
                where=f"mirror '{self.name}'",
                hint=f"Run 'mirrord initialize {self.name}'; clients can be served meanwhile.",
            )

    def set_copy_rate(self, primary: Live, status: LiveStatus) -> None:
        """Apply the definition's `throttle`. A lower rate than the smallest possible counts as that
        one.
        """
        wanted = rate_of(self.definition, self.book.zone, clock.now_ns())
        if status.copy_rate != (max(wanted, COPY_RATE_MIN) if wanted else 0):
            primary.live_copy_rate(wanted)

    def _renew_copy_rate(self, primary: Live, status: LiveStatus) -> None:
        """Apply the rate of this hour; `mirrord throttle` may have changed the definition, too."""
        with suppress(MirrordError):
            definition = self.book.definitions.load(self.name)
            replace(self, definition=definition).set_copy_rate(primary, status)

    def set_traffic(self, status: LiveStatus) -> None:
        """Apply `merge_above`, `compress` and `ack` at both ends, which may change roles."""
        definition = self.definition
        wanted = (definition.merge_above, definition.compress, definition.ack == DURABLE)
        if wanted != (status.merge_above_bytes, status.compress, status.durable):
            self._tell_both(lambda end: end.live_traffic(*wanted))

    def changing_mode(self, patience_s: float) -> AbstractContextManager[None]:
        """Held from reading or writing the definition's policy to telling the primary, so that who
        read it earlier does not undo what `mirrord mode` sets. `Busy` after `patience_s`.
        """
        what = f"the mode of mirror '{self.name}'"
        return locks.waited_for(lambda: locks.passing(self.run.mode, what=what), patience_s)

    def set_mode(self, end: Live, mode: Mode) -> None:
        """Set the mode of the primary, which this host controls then, and the window for both
        ends.
        """
        if mode is Mode.SEMI_SYNC:
            self.set_window()
        end.live_mode(mode)
        self.take_control(end)

    def take_control(self, end: Live) -> None:
        """Let this host's policy and settings be in force at a primary, unless that cannot be
        recorded there: its disk may be full, or its mirrord an older one.
        """
        with suppress(MirrordError, OSError):
            end.live_control(self.book.controller)

    def controls(self, primary: LiveStatus) -> bool:
        """Whether this host's policy and settings are in force. Daemons of several hosts that have
        the definition would otherwise undo what the others do.
        """
        return not primary.controller or is_same(primary.controller, self.book.controller)

    def out_of_sync(self, status: LiveStatus) -> tuple[str, str]:
        """Why the ends are out of sync, and what to do until they are: a hint begins so."""
        if self.state is State.BROKEN_OFF:
            ways = f"'mirrord resync {self.name}' or 'mirrord reverse {self.name}'"
            return "the mirror is broken off", f"Run {ways}, and wait"
        if status.mode == Mode.ASYNC.value:
            return "the mode is async", f"Run 'mirrord mode {self.name} sync', and wait"
        return status.reason or status.state or status.role, "Wait"

    def set_window(self, window: str = "") -> None:
        """Set the window at both ends, which may change roles; "": that of the definition."""
        window = window or window_argument(self.definition.window or WINDOW)
        self._tell_both(lambda end: end.live_window(window))

    def _tell_both(self, tell: Callable[[Live], None]) -> None:
        """Tell both ends a setting, but for one that cannot be reached, or whose records are lost
        or those of another mirror.
        """
        for end in (self.source, self.destination):
            found = self._looked_at(end)
            if found is not None and found.volume:
                with suppress(LinkLost, Unreachable):
                    tell(end)

    # Waiting

    def wait(
        self, end: Live, what: str, is_done: Callable[[LiveStatus], bool], patience_s: float
    ) -> LiveStatus:
        """Wait until an end reports it; `LinkLost` after that time."""
        until_s = clock.monotonic_s() + patience_s
        while not is_done(status := end.live_status()):
            self.run.check_abort()
            if clock.monotonic_s() > until_s:
                raise LinkLost(
                    f"{what} takes too long",
                    where=str(end),
                    why=status.reason or status.problem or f"it is {status.state or status.role}",
                    hint=f"'mirrord status {self.name}' shows both ends; the same command "
                    "continues.",
                )
            clock.sleep_s(_POLL_S)
        return status

    def break_off(self, end: Live) -> None:
        """Make a secondary a primary. However long its disk takes, as long as there is progress; an
        interruption does not stop it.
        """
        end.live_break()
        left, since_s = None, clock.monotonic_s()
        while not (status := end.live_status()).is_primary:
            self.run.check_abort()
            if not status.breaking:
                raise Refused(
                    "this end did not become the primary",
                    where=str(end),
                    why=status.break_problem or status.problem or status.reason,
                    hint=f"'mirrord status {self.name}' shows both ends; the same command tries "
                    "again.",
                )
            now_left, now_s = (status.redo_operations, status.rollback_left), clock.monotonic_s()
            if now_left != left:
                left, since_s = now_left, now_s
            if now_s - since_s > _BREAK_STALLED_S:
                raise LinkLost(
                    "the break takes too long",
                    where=str(end),
                    why="the disk of this end does not complete what it was given",
                    hint="The break continues; the same command waits for its end.",
                )
            clock.sleep_s(_POLL_S)

    def copy(self, primary: Live, peer: Live, before: LiveStatus | None = None) -> LiveStatus:
        """Let a primary copy what the other end lacks, whatever the mode, and wait until that has
        everything; the progress is reported. An interruption does not stop the copy. Returns the
        status with the bytes that were copied since `before` (None: now).
        """
        before = before or primary.live_status()
        primary.live_resync()
        status = self.wait(
            primary, f"the connection to {peer}", lambda one: one.connected, _CONNECT_S
        )
        total = status.dirty_bytes + _copied_since(before, status)
        self.run.begin_transfer(self.name, total, 0)
        self.watcher.transfer(self.name, total, 0)
        done, silent_s = 0, clock.monotonic_s()
        rated_s = moved_s = silent_s
        while not _is_complete(status, before.generation):
            self.run.check_abort()
            clock.sleep_s(_POLL_S)
            status = primary.live_status()
            now_s = clock.monotonic_s()
            moved = max(0, total - status.dirty_bytes - done)
            done += moved
            self.watcher.moved(moved)
            self.run.moved(moved, done)
            if now_s - rated_s > _RATE_S:
                self._renew_copy_rate(primary, status)
                rated_s = now_s
            if moved:
                moved_s = now_s
            if status.connected:
                silent_s = now_s
            if now_s - silent_s > _CONNECT_S:
                raise LinkLost(
                    "the replica link is interrupted",
                    where=str(primary),
                    why=status.reason or status.problem,
                    hint="The copy continues by itself once both ends reach each other.",
                )
            if now_s - moved_s > _CONNECT_S and status.refused:
                raise IoFailed(
                    "the image cannot be copied now",
                    where=str(peer),
                    why=status.reason,
                    hint="It is tried again every few seconds, and is copied as soon as that "
                    f"works; 'mirrord status {self.name}' shows it.",
                )
        return status._replace(copied_bytes=_copied_since(before, status))


def _copied_since(before: LiveStatus, now: LiveStatus) -> int:
    """The process counts from its start, and may have been started again in between."""
    return max(0, now.copied_bytes - before.copied_bytes)


def _is_complete(status: LiveStatus, before: int) -> bool:
    """Whether the ends are or were equal. before: the primary's generation when the copy was
    ordered; one that both ends have recorded adds to it, also in `async`, which is not in sync.
    """
    is_copied = status.mode == "async" and status.generation > before
    return status.in_sync or status.is_semi_sync or is_copied


def _address_of(end: Endpoint, other: Endpoint, hosts: Hosts) -> str:
    """Where `end` listens for the other one, unless its definition says it."""
    if end.host == other.host:
        return _LOOPBACK
    if end.host:
        return _address(end, hosts)
    return _own_address(_address(other, hosts))


def _address(end: Endpoint, hosts: Hosts) -> str:
    host = hosts.find(end.host)
    if host.transport == "unix":
        return _LOOPBACK
    from mirrord.transport.target import resolve

    if host.transport not in ("ssh", "openssh"):
        return host.address.strip("[]")
    try:
        return resolve(host).address.strip("[]")
    except MirrordError as error:
        if host.transport == "ssh":
            raise
        # The program ssh understands more than we do: there is a connection, without an address.
        raise ConfigError(
            "the address for the replica link is not known",
            where=host.name,
            why=": ".join(part for part in (error.what, error.why) if part),
            hint="Set 'link_address' of both sites in the definition (docs/live-modes.md).",
        ) from None


def _own_address(other: str) -> str:
    """The address of this host on the way to the other one. (Nothing is sent.)"""
    try:
        found = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(found[0], socket.SOCK_DGRAM)) as made:
            made.connect(found[4])
            return str(made.getsockname()[0])
    except OSError as error:
        raise LinkLost(
            "no way to the other host",
            where=other,
            why=error.strerror or str(error),
            hint="Set 'link_address' of both sites in the definition (docs/live-modes.md).",
        ) from None


def opened(
    definition: Definition,
    driver: Callable[[Endpoint], Driver],
    book: Book,
    run: RunFiles,
    watcher: Watcher,
) -> LiveMirror:
    """The live mirror of a definition."""
    ends = [driver(end) for end in (definition.source, definition.destination)]
    waiting = Waiting()
    for end in ends:
        end.waiting = waiting
    return LiveMirror(definition, live_of(ends[0]), live_of(ends[1]), book, run, watcher)
