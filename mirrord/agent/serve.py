"""Serves this host's drivers: each method of the contract, for the volumes that a peer may use.

A peer's call is checked before it is executed: the method, the types of its arguments, and the
peer's right to use the volume in that way (rules.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mirrord.agent.pauses import HeldPause
from mirrord.agent.rules import Rules, demand, demand_pause, rights_at
from mirrord.core.endpoint import KINDS
from mirrord.core.errors import NotFound, ProtocolError, Refused, Unsupported, Untrusted
from mirrord.core.live import LiveSetup
from mirrord.core.model import Endpoint, Name, ReceiveRequest, Role, SnapshotKind, Staging
from mirrord.core.pause import PAUSE_MAX_S
from mirrord.core.relationship import Fence, Relationship, checked, encode
from mirrord.core.text import can_name, harmless
from mirrord.drivers.contract import Capability, Clones, Driver, Pool, clones_of
from mirrord.drivers.live import Live, live_of
from mirrord.drivers.streams import CHUNK_BYTES_MAX, Receiver, SendStream
from mirrord.drivers.verification import Verification, verification_of
from mirrord.link.exchange import Exchange, Incoming
from mirrord.system.explain import explained
from mirrord.system.paths import standard
from mirrord.wire.methods import METHODS, Method, Opened, PeerLock, PeerPause, Right
from mirrord.wire.values import pack, unpack

_HANDLES_MAX = 4096
_NAME_BYTES_MAX = 200


class _Opened(PeerLock):
    """A driver that a peer uses, and the peer's hold on the volume's lock.

    A call that changes the volume runs under the lock: the one that the peer holds, or one of its
    own. The lock is held until the last such call has ended, even if the peer unlocks earlier.
    """

    def __init__(self, driver: Driver, rights: Right, rules: Rules, pause: HeldPause) -> None:
        self.driver = driver
        self.pause = pause
        self.rights = rights
        self.rules = rules
        self._guard = threading.Lock()
        self._lock: ExitStack | None = None
        #: Whether the peer wants the lock, and how many calls need it.
        self._wanted = self._closed = False
        self._changing = 0

    def lock(self, purpose: str) -> bool:
        """See `PeerLock.lock`. A lock taken while the peer closes the volume is not kept."""
        with self._guard:
            # Shown on a terminal to users who find the volume locked.
            self._take(harmless(purpose[:200]))
            self._wanted = True
            held = self.driver.locked
            self._release()
        return held

    def unlock(self) -> None:
        """See `PeerLock.unlock`."""
        with self._guard:
            self._wanted = False
            self._release()

    def set_fence(self, mirror_id: Name, epoch: int) -> None:
        """See `PeerLock.set_fence`."""
        self.driver.fence = Fence(mirror_id, epoch)

    @contextmanager
    def changing(self, purpose: str) -> Iterator[None]:
        """Hold the lock while a call changes the volume. `Busy` when another process holds it."""
        with self._guard:
            self._take(purpose)
            self._changing += 1
        try:
            yield
        finally:
            with self._guard:
                self._changing -= 1
                self._release()

    def close(self) -> None:
        """The peer has closed the volume."""
        self.pause.pause_close()
        with self._guard:
            self._closed = True
        try:
            self.driver.detach()  # under the lock: it may make a frozen volume writable again
        finally:
            with self._guard:
                self._release()

    def _take(self, purpose: str) -> None:
        if self._lock is not None and (self.driver.locked or self._changing):
            return
        self._drop()  # there may be a place for the lock now
        stack = ExitStack()
        stack.enter_context(self.driver.lock(purpose))
        self._lock = stack

    def _release(self) -> None:
        if not self._changing and (self._closed or not self._wanted):
            self._drop()

    def _drop(self) -> None:
        stack, self._lock = self._lock, None
        if stack is not None:
            stack.close()


class Agent:
    """Serves one session. `handle` is the session's handler."""

    def __init__(
        self, rules: Rules, opener: Callable[[Endpoint], Driver], run: Path | None = None
    ) -> None:
        """run: the folder of the records of pauses."""
        self._rules = rules
        self._opener = opener
        self._run = run or standard().run
        #: Methods of the session itself (agent/run.py): called with the exchange and arguments.
        self.extra: dict[str, Callable[..., Any]] = {}
        self._guard = threading.Lock()
        self._opened: dict[int, _Opened] = {}
        self._last = 0

    def close(self) -> None:
        """Release all locks, after the session and its calls have ended."""
        with self._guard:
            opened, self._opened = list(self._opened.values()), {}
        with ExitStack() as stack:  # a failure at one does not keep the others locked or frozen
            for one in opened:
                stack.callback(one.close)

    def resume(self) -> None:
        """The session has ended: resume what is paused, whatever calls are still in progress."""
        for one in list(self._opened.values()):
            one.pause.pause_close()

    def _locations(self) -> list[str]:
        with self._guard:
            return [one.driver.location for one in self._opened.values()]

    def handle(self, exchange: Exchange, method: str, words: list[Any]) -> Any:
        """Answer one call."""
        if method == "open":
            return self._open(*_checked((str, str), words))
        if method == "close":
            return self._close(*_checked((int,), words))
        if method in self.extra:
            return self.extra[method](exchange, *words)
        found = METHODS.get(method)
        if found is None:
            raise ProtocolError(
                f"the other end has no method '{method}'",
                hint="Install the same version of mirrord at both ends.",
            )
        opened = self._permitted(found, *_checked((int,), words[:1]))
        checked = _checked(found.kinds.values(), words[1:], str(opened.driver))
        arguments = dict(zip(found.kinds, checked, strict=True))
        used = [opened]
        if found.role is Pool:
            numbers = {words[0], *arguments["others"]}
            if len(numbers) <= len(arguments["others"]):
                raise ProtocolError("a call names a volume twice")
            used += [self._permitted(found, number) for number in arguments["others"]]
        with explained(), ExitStack() as stack:
            if found.changes:
                for one in used:
                    stack.enter_context(one.changing(f"peer: {found.what}"))
            if method in _GUARDS:
                _GUARDS[method](opened, arguments)
            if found.role is Pool:
                arguments["others"] = _together(opened.driver, [one.driver for one in used[1:]])
            return pack(_run(found, opened, exchange, arguments))

    def _open(self, kind: str, location: str) -> Any:
        if kind not in KINDS:
            raise Unsupported(f"the other end has no driver for volumes of the kind '{kind}'")
        rights = rights_at(self._rules, location, kind=kind)
        with explained():
            driver = self._opener(Endpoint(kind, location))
        if self._rules.append_only and Capability.BLOCK_FOR_BLOCK in driver.capabilities:
            raise Untrusted(
                f"a {kind} volume cannot be the destination of a peer that may only append",
                where=str(driver),
                why="its snapshots are lost when the source reuses their blocks",
                hint="Use a btrfs or ZFS volume at both ends, or omit --append-only.",
            )
        with self._guard:
            if len(self._opened) >= _HANDLES_MAX:
                raise Refused("the peer has too many volumes open")
            self._last += 1
            self._opened[self._last] = _Opened(
                driver, rights, self._rules, HeldPause(self._run, self._locations)
            )
            number = self._last
        # A peer that may not delete must know that, so that it does not prune here.
        return pack(Opened(number, driver.capabilities.value, self._rules.append_only))

    def _close(self, number: int) -> None:
        with self._guard:
            one = self._opened.pop(number, None)
        if one is not None:
            one.close()

    def _permitted(self, method: Method, number: int) -> _Opened:
        """The volume of that number, if the peer may use it in that way. Checked at each call: a
        folder may have been replaced by a link.
        """
        with self._guard:
            opened = self._opened.get(number)
        if opened is None:
            raise NotFound("no such volume is open in this session")
        kind, location = opened.driver.kind, opened.driver.location
        opened.rights = rights_at(self._rules, location, kind=kind)
        demand(self._rules, opened.rights, method.rights, method.what, str(opened.driver))
        return opened


def _together(first: Driver, others: Collection[Driver]) -> list[Pool]:
    """The others, if each of them can be used together with the first; else `Refused`."""
    if isinstance(first, Pool):
        found: list[Pool] = [
            one for one in others if isinstance(one, Pool) and first.is_beside(one)
        ]
        if len(found) == len(others):
            return found
    raise Refused("these volumes cannot be used together", where=str(first))


def _checked(kinds: Collection[Any], words: list[Any], where: str = "") -> list[Any]:
    if len(kinds) != len(words):
        raise ProtocolError("a call has the wrong number of arguments")
    return [_word(kind, word, where) for kind, word in zip(kinds, words, strict=True)]


def _word(kind: Any, word: Any, where: str) -> Any:
    value = unpack(kind, word)
    names = [value] if kind == Name else []
    if isinstance(value, ReceiveRequest):
        names = [value.transfer_id, value.mirror_id, value.snapshot.name]
    if isinstance(value, LiveSetup):
        names = [value.mirror_id, value.name, value.site]
    for name in names:
        _check_name(name, where)
    return value


def _check_name(name: str, where: str) -> None:
    """`Refused` when a name could be a path, or has control characters."""
    if not can_name(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise Refused(f"invalid name: {name[:100]!r}", where=where)


#: What serves the methods of a role; the driver those of the others.
_TARGETS: dict[type, Callable[[_Opened], object]] = {
    PeerLock: lambda opened: opened,
    PeerPause: lambda opened: opened.pause,
    Clones: lambda opened: clones_of(opened.driver),
    Verification: lambda opened: verification_of(opened.driver),
    Live: lambda opened: live_of(opened.driver),
}


def _run(method: Method, opened: _Opened, exchange: Exchange, arguments: dict[str, Any]) -> Any:
    target = _TARGETS[method.role](opened) if method.role in _TARGETS else opened.driver
    if method.result not in (SendStream, Receiver):
        return method.call(target, arguments)
    with method.call(target, arguments) as stream:
        stream.waiting = exchange.waiting
        exchange.opened()
        if isinstance(stream, SendStream):
            return _send(stream, exchange)
        return _receive(stream, exchange)


def _send(stream: SendStream, exchange: Exchange) -> None:
    while stream.skip():
        exchange.check()
    sink = exchange if exchange.pumps else None
    while (moved := stream.pass_on(sink, CHUNK_BYTES_MAX) if sink else None) != 0:
        if moved is not None:
            continue
        if not (chunk := stream.read()):
            break
        exchange.send(chunk)
    exchange.end()


def _receive(receiver: Receiver, exchange: Exchange) -> Staging:
    """The driver gets only verified pieces, and finishes only a stream whose digest matches."""
    stream = Incoming(exchange)
    stream.waiting = exchange.waiting
    while True:
        if receiver.take_from(stream, CHUNK_BYTES_MAX):
            continue
        if not (chunk := stream.read()):
            break
        receiver.write(chunk)
    return receiver.finish()


# The guards: checks of a call in addition to the types of its arguments and the peer's rights.
# Each raises, or replaces a value of the arguments.

_Guard = Callable[[_Opened, dict[str, Any]], None]


def _demand_own(opened: _Opened, arguments: dict[str, Any]) -> None:
    """A peer that may only send may delete the reference snapshots of a live volume that were taken
    there, and no others: what was received is a backup.
    """
    if opened.rights & Right.REMOVE:
        return
    why = "it was received on that host"
    listed = {one.guid: one for one in opened.driver.snapshots()}
    one = listed.get(arguments["guid"])
    if one is None:
        return
    facts = opened.driver.facts()
    if opened.rules.append_only and opened.rights & Right.RECEIVE:
        why = "this peer may only append"
    elif one.kind is not SnapshotKind.REFERENCE:
        why = f"{one.name} is not a reference snapshot"
    elif facts.role is Role.LIVE:
        # A former destination: not the snapshot that it was promoted from, nor older ones.
        origin = listed.get(facts.origin or "")
        if origin is None or one.order > origin.order:
            return
    raise Untrusted(
        "this peer may not delete that snapshot",
        where=str(opened.driver),
        why=why,
        hint="Delete it on that host.",
    )


def _demand_pins(opened: _Opened, arguments: dict[str, Any]) -> None:
    """The mirror whose destination is the volume needs RECEIVE, all others need SEND. A live volume
    may be that mirror's source, after a reverse: then either is enough.
    """
    if opened.rules.free:
        return
    facts, needed = opened.driver.facts(), Right.SEND
    if arguments["mirror_id"] == facts.mirror_id:
        needed = Right.RECEIVE if facts.role is Role.MIRROR else Right.SEND | Right.RECEIVE
    what = f"pin snapshots for the mirror {arguments['mirror_id']}"
    demand(opened.rules, opened.rights, needed, what, str(opened.driver))


def _demand_relation(opened: _Opened, mirror_id: str, what: str, *, raising: bool) -> None:
    """As for pins; in addition, to raise or remove a destination's record the peer needs REMOVE."""
    if opened.rules.free:
        return
    facts, where = opened.driver.facts(), str(opened.driver)
    own = mirror_id == facts.mirror_id
    mirrored = own and facts.role is Role.MIRROR
    may_be = Right.SEND | Right.RECEIVE if own else Right.SEND
    demand(opened.rules, opened.rights, Right.RECEIVE if mirrored else may_be, what, where)
    if raising and (mirrored or not opened.rights & Right.SEND):
        demand(opened.rules, opened.rights, Right.REMOVE, what, where)


def _demand_epoch(opened: _Opened, arguments: dict[str, Any]) -> None:
    record: Relationship = arguments["record"]
    _check_name(record.mirror_id, str(opened.driver))
    if checked(record) is None:
        encode(record)  # says it when its epoch is too high
        raise ProtocolError("malformed relationship record", where=str(opened.driver))
    what = f"record an epoch of the mirror {record.mirror_id}"
    _demand_relation(opened, record.mirror_id, what, raising=arguments["after"] > 0)


def _demand_unrelate(opened: _Opened, arguments: dict[str, Any]) -> None:
    what = f"remove the record of the mirror {arguments['mirror_id']}"
    _demand_relation(opened, arguments["mirror_id"], what, raising=True)


def _demand_forward(opened: _Opened, arguments: dict[str, Any]) -> None:
    """A peer that may only append may not show a committed snapshot older than the shown one: that
    would roll back the view.
    """
    if not arguments["show"] or not opened.rules.append_only:
        return
    listed = {one.guid: one for one in opened.driver.snapshots()}
    shown = listed.get(opened.driver.facts().shown or "")
    for staging in opened.driver.stagings():
        there = listed.get(staging.snapshot.guid)
        if staging.transfer_id != arguments["transfer_id"] or not shown or not there:
            continue
        if there.order < shown.order:
            demand(opened.rules, opened.rights, Right.REMOVE, "roll back a view", there.name)


def _clamp(most: int) -> _Guard:
    def guard(_opened: _Opened, arguments: dict[str, Any]) -> None:
        arguments["limit"] = max(0, min(arguments["limit"], most))

    return guard


def _demand_kept_name(opened: _Opened, arguments: dict[str, Any]) -> None:
    """Check the name of the kept snapshot, if there is one."""
    if arguments["kept"]:
        _check_name(arguments["kept"], str(opened.driver))
    _clamp(1000)(opened, arguments)


def _demand_place(opened: _Opened, arguments: dict[str, Any]) -> None:
    """The copy must be in a place where the peer may have a destination."""
    if place := arguments["place"]:
        rights = rights_at(opened.rules, place, kind=opened.driver.kind)
        demand(opened.rules, rights, Right.RECEIVE, "create a writable copy", place)


def _demand_readable(opened: _Opened, arguments: dict[str, Any]) -> None:
    """Digests and names tell what a snapshot holds: of a live volume, to who may read it only."""
    if not opened.rules.free and opened.driver.facts().role is not Role.MIRROR:
        demand(opened.rules, opened.rights, Right.SEND, "verify snapshots", str(opened.driver))


def _demand_own_end(opened: _Opened, arguments: dict[str, Any]) -> None:
    """A replica is received into: who may only send changes nothing of it."""
    if not opened.rights & Right.RECEIVE and opened.driver.facts().role is Role.MIRROR:
        demand(opened.rules, opened.rights, Right.RECEIVE, "change a replica", str(opened.driver))


def _demand_end(opened: _Opened, arguments: dict[str, Any]) -> None:
    """A primary is sent from, a replica received into."""
    _demand_own_end(opened, arguments)
    needed = Right.SEND if arguments["setup"].primary else Right.RECEIVE
    demand(opened.rules, opened.rights, needed, "mirror an image", str(opened.driver))


def _demand_clients(opened: _Opened, arguments: dict[str, Any]) -> None:
    """A unix socket must be in a place that the peer may use. Over TCP clients on other hosts,
    which that peer may be, write to the image.
    """
    scheme, _, path = arguments["address"].partition(":")
    if scheme == "unix":
        rights_at(opened.rules, path)
    if scheme not in ("", "unix") or arguments["allowed"]:
        what = "serve an image over TCP"
        demand(opened.rules, opened.rights, Right.REMOVE, what, str(opened.driver))


def _demand_pause(opened: _Opened, arguments: dict[str, Any]) -> None:
    """Only what the rules name, and not for long."""
    if not arguments["pausers"]:
        raise ProtocolError("a pause names nothing to pause")
    demand_pause(opened.rules, arguments["pausers"])
    if not 0 < arguments["max_s"] <= PAUSE_MAX_S:
        raise Refused("a pause of that length is not allowed", why=f"at most {PAUSE_MAX_S} s are")
    arguments["pausers"] = tuple(dict.fromkeys(arguments["pausers"]))


def _demand_resume(opened: _Opened, arguments: dict[str, Any]) -> None:
    demand_pause(opened.rules, arguments["pausers"])


_GUARDS: dict[str, _Guard] = {
    "pause_open": _demand_pause,
    "pause_left": _demand_resume,
    "verify_step": _demand_readable,
    "verify_nodes": _demand_readable,
    "verify_blocks": _demand_readable,
    "delete_snapshot": _demand_own,
    "in_use": _demand_own,
    "pin": _demand_pins,
    "relate": _demand_epoch,
    "unrelate": _demand_unrelate,
    "commit": _demand_forward,
    "writers": _demand_kept_name,
    "divergence": _clamp(10_000),
    "begin_test": _demand_place,
    "live_create": _demand_end,
    "live_serve": _demand_clients,
    "live_start": _demand_own_end,
    "live_unserve": _demand_own_end,
    "live_control": _demand_own_end,
    "live_window": _demand_own_end,
    "live_traffic": _demand_own_end,
    "live_copy_rate": _demand_own_end,
    "live_remove": _demand_own_end,
}
