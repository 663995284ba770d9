"""Serves this host's drivers: each method of the contract, for the volumes that a peer may use.

What a peer says is checked before anything is done with it: the method, the types of its words,
and its right to use the volume in that way (rules.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mirrord.agent.rules import Rules, demand, rights_at
from mirrord.core.endpoint import KINDS
from mirrord.core.errors import NotFound, ProtocolError, Refused, Unsupported, Untrusted
from mirrord.core.model import Endpoint, Name, ReceiveRequest, Role, SnapshotKind, Staging
from mirrord.core.relationship import Fence, Relationship
from mirrord.core.text import can_name, harmless
from mirrord.drivers.contract import Capability, Clones, Driver, Pool, clones_of
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.link.exchange import Exchange
from mirrord.system.explain import explained
from mirrord.wire.methods import METHODS, Method, Opened, PeerLock, Right
from mirrord.wire.values import pack, unpack

_HANDLES_MAX = 4096
_NAME_BYTES_MAX = 200


class _Opened(PeerLock):
    """A driver that a peer uses, and what it holds of the volume's lock.

    A call that changes the volume runs under the lock: the one that the peer holds, or one of its
    own. The lock stays until the last such call has ended, whatever the peer gives back meanwhile.
    """

    def __init__(self, driver: Driver, rights: Right, rules: Rules) -> None:
        self.driver = driver
        self.rights = rights
        self.rules = rules
        self._guard = threading.Lock()
        self._lock: ExitStack | None = None
        #: Whether the peer wants the lock, and how many calls need it.
        self._wanted = self._given_back = False
        self._changing = 0

    def lock(self, purpose: str) -> bool:
        """See `PeerLock.lock`. A lock that is taken while the peer leaves is not kept."""
        with self._guard:
            # It is shown to whoever finds the volume locked, on a terminal.
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
        """While a call changes the volume. `Busy` when somebody else holds its lock."""
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
        """The peer is done with it."""
        with self._guard:
            self._given_back = True
            self._release()
        self.driver.detach()

    def _take(self, purpose: str) -> None:
        if self._lock is not None and (self.driver.locked or self._changing):
            return
        self._drop()  # what was no lock for want of a place may be one now
        with ExitStack() as stack:
            stack.enter_context(self.driver.lock(purpose))
            self._lock = stack.pop_all()

    def _release(self) -> None:
        if not self._changing and (self._given_back or not self._wanted):
            self._drop()

    def _drop(self) -> None:
        stack, self._lock = self._lock, None
        if stack is not None:
            stack.close()


class Agent:
    """What one session may ask for. `handle` is the session's handler."""

    def __init__(self, rules: Rules, opener: Callable[[Endpoint], Driver]) -> None:
        self._rules = rules
        self._opener = opener
        #: Methods of the session itself (agent/run.py): called with the exchange and the words.
        self.extra: dict[str, Callable[..., Any]] = {}
        self._guard = threading.Lock()
        self._opened: dict[int, _Opened] = {}
        self._last = 0

    def close(self) -> None:
        """The session is over and its calls have ended: nothing stays locked."""
        with self._guard:
            opened, self._opened = list(self._opened.values()), {}
        for one in opened:
            one.close()

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
        said = dict(zip(found.kinds, checked, strict=True))
        used = [opened]
        if found.role is Pool:
            numbers = {words[0], *said["others"]}
            if len(numbers) <= len(said["others"]):
                raise ProtocolError("a call names a volume twice")
            used += [self._permitted(found, number) for number in said["others"]]
        with explained(), ExitStack() as stack:
            if found.changes:
                for one in used:
                    stack.enter_context(one.changing(f"a peer, to {found.what}"))
            if method in _GUARDS:
                _GUARDS[method](opened, said)
            if found.role is Pool:
                said["others"] = _together(opened.driver, [one.driver for one in used[1:]])
            return pack(_run(found, opened, exchange, said))

    def _open(self, kind: str, location: str) -> Any:
        if kind not in KINDS:
            raise Unsupported(f"the other end has no driver for volumes of the kind '{kind}'")
        rights = rights_at(self._rules, location, kind=kind)
        with explained():
            driver = self._opener(Endpoint(kind, location))
        if self._rules.append_only and Capability.BLOCK_FOR_BLOCK in driver.capabilities:
            raise Untrusted(
                f"a {kind} volume cannot be kept by a peer that may only append",
                where=str(driver),
                why="its snapshots go when the source reuses their blocks",
                hint="Mirror it to a btrfs volume's file, or leave out --append-only.",
            )
        with self._guard:
            if len(self._opened) >= _HANDLES_MAX:
                raise Refused("the peer holds too many volumes open")
            self._last += 1
            self._opened[self._last] = _Opened(driver, rights, self._rules)
            number = self._last
        # A peer that may not delete must know: it does not prune here then.
        return pack(Opened(number, driver.capabilities.value, self._rules.append_only))

    def _close(self, number: int) -> None:
        with self._guard:
            one = self._opened.pop(number, None)
        if one is not None:
            one.close()

    def _permitted(self, method: Method, number: int) -> _Opened:
        """The volume of that number, if the peer may use it so. That is asked anew each time: a
        folder may have become a link since.
        """
        opened = self._find(number)
        kind, location = opened.driver.kind, opened.driver.location
        opened.rights = rights_at(self._rules, location, kind=kind)
        demand(self._rules, opened.rights, method.rights, method.what, str(opened.driver))
        return opened

    def _find(self, number: int) -> _Opened:
        with self._guard:
            one = self._opened.get(number)
        if one is None:
            raise NotFound("no such volume is open in this session")
        return one


def _together(first: Driver, others: Collection[Driver]) -> list[Pool]:
    """The others, each of which can be used together with the first; `Refused`."""
    if isinstance(first, Pool):
        found: list[Pool] = [
            one for one in others if isinstance(one, Pool) and first.is_beside(one)
        ]
        if len(found) == len(others):
            return found
    raise Refused("these volumes cannot be used together", where=str(first))


def _checked(kinds: Collection[Any], words: list[Any], where: str = "") -> list[Any]:
    if len(kinds) != len(words):
        raise ProtocolError("a call has another number of words than its method takes")
    return [_word(kind, word, where) for kind, word in zip(kinds, words, strict=True)]


def _word(kind: Any, word: Any, where: str) -> Any:
    value = unpack(kind, word)
    names = [value] if kind == Name else []
    if isinstance(value, ReceiveRequest):
        names = [value.transfer_id, value.mirror_id, value.snapshot.name]
    for name in names:
        _check_name(name, where)
    return value


def _check_name(name: str, where: str) -> None:
    """`Refused` when what is to name something could be a path, or write on a terminal."""
    if not can_name(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise Refused(f"invalid name: {name[:100]!r}", where=where)


def _run(method: Method, opened: _Opened, exchange: Exchange, said: dict[str, Any]) -> Any:
    target: object = opened.driver
    if method.role is PeerLock:
        target = opened
    elif method.role is Clones:
        target = clones_of(opened.driver)
    if method.result not in (SendStream, Receiver):
        return method.call(target, said)
    with method.call(target, said) as stream:
        stream.waiting = exchange.waiting
        exchange.opened()
        if isinstance(stream, SendStream):
            return _send(stream, exchange)
        return _receive(stream, exchange)


def _send(stream: SendStream, exchange: Exchange) -> None:
    while stream.skip():
        exchange.check()
    while chunk := stream.read():
        exchange.send(chunk)
    exchange.end()


def _receive(receiver: Receiver, exchange: Exchange) -> Staging:
    """Nothing reaches the driver but pieces that were checked, and it finishes only a stream
    whose digest both ends agree on.
    """
    while receiver.catch_up():
        exchange.check()
    while chunk := exchange.read():
        receiver.write(chunk)
    return receiver.finish()


# The guards: what is checked of a call beside the types of its words and the peer's rights. Each
# raises, or puts another value into what was said.

_Guard = Callable[[_Opened, dict[str, Any]], None]


def _demand_own(opened: _Opened, said: dict[str, Any]) -> None:
    """Who may only send may drop the reference snapshots of a live volume that were taken there,
    and nothing else: what was received is somebody's backup.
    """
    if opened.rights & Right.REMOVE:
        return
    why = "it was received there"
    listed = {one.guid: one for one in opened.driver.snapshots()}
    one = listed.get(said["guid"])
    if one is None:
        return
    facts = opened.driver.facts()
    if opened.rules.append_only and opened.rights & Right.RECEIVE:
        why = "this peer may only append"
    elif one.kind is not SnapshotKind.REFERENCE:
        why = f"{one.name} is no reference snapshot"
    elif facts.role is Role.LIVE:
        # A volume that was a destination once: up to the snapshot that it began as.
        origin = listed.get(facts.origin or "")
        if origin is None or one.order > origin.order:
            return
    raise Untrusted(
        "this peer may not delete that snapshot",
        where=str(opened.driver),
        why=why,
        hint="Delete it on that host.",
    )


def _demand_pins(opened: _Opened, said: dict[str, Any]) -> None:
    """The mirror that has the volume as its destination may with RECEIVE, all others with SEND.
    Once it is live it may be that mirror's source, after a reverse: then with either.
    """
    if opened.rules.free:
        return
    facts, needed = opened.driver.facts(), Right.SEND
    if said["mirror_id"] == facts.mirror_id:
        needed = Right.RECEIVE if facts.role is Role.MIRROR else Right.SEND | Right.RECEIVE
    what = f"pin snapshots for the mirror {said['mirror_id']}"
    demand(opened.rules, opened.rights, needed, what, str(opened.driver))


def _demand_relation(opened: _Opened, mirror_id: str, what: str, *, raising: bool) -> None:
    """As for pins, and a destination's record is raised or removed only by who may take away what
    is there.
    """
    if opened.rules.free:
        return
    facts, where = opened.driver.facts(), str(opened.driver)
    own = mirror_id == facts.mirror_id
    mirrored = own and facts.role is Role.MIRROR
    may_be = Right.SEND | Right.RECEIVE if own else Right.SEND
    demand(opened.rules, opened.rights, Right.RECEIVE if mirrored else may_be, what, where)
    if raising and (mirrored or not opened.rights & Right.SEND):
        demand(opened.rules, opened.rights, Right.REMOVE, what, where)


def _demand_epoch(opened: _Opened, said: dict[str, Any]) -> None:
    record: Relationship = said["record"]
    _check_name(record.mirror_id, str(opened.driver))
    what = f"record an epoch of the mirror {record.mirror_id}"
    _demand_relation(opened, record.mirror_id, what, raising=said["after"] > 0)


def _demand_unrelate(opened: _Opened, said: dict[str, Any]) -> None:
    what = f"remove the record of the mirror {said['mirror_id']}"
    _demand_relation(opened, said["mirror_id"], what, raising=True)


def _demand_forward(opened: _Opened, said: dict[str, Any]) -> None:
    """Who may only append may not show a snapshot that is there already, older than what is shown:
    it would turn the view back.
    """
    if not said["show"] or not opened.rules.append_only:
        return
    listed = {one.guid: one for one in opened.driver.snapshots()}
    shown = listed.get(opened.driver.facts().shown or "")
    for staging in opened.driver.stagings():
        there = listed.get(staging.snapshot.guid)
        if staging.transfer_id != said["transfer_id"] or not shown or not there:
            continue
        if there.order < shown.order:
            demand(opened.rules, opened.rights, Right.REMOVE, "turn a view back", there.name)


def _clamp(most: int) -> _Guard:
    def guard(_opened: _Opened, said: dict[str, Any]) -> None:
        said["limit"] = max(0, min(said["limit"], most))

    return guard


def _demand_kept_name(opened: _Opened, said: dict[str, Any]) -> None:
    """The name of what was kept, or none."""
    if said["kept"]:
        _check_name(said["kept"], str(opened.driver))
    _clamp(1000)(opened, said)


def _demand_place(opened: _Opened, said: dict[str, Any]) -> None:
    """The copy must be where the peer might have its destination, too."""
    if place := said["place"]:
        rights = rights_at(opened.rules, place, kind=opened.driver.kind)
        demand(opened.rules, rights, Right.RECEIVE, "make a writable copy", place)


_GUARDS: dict[str, _Guard] = {
    "delete_snapshot": _demand_own,
    "pin": _demand_pins,
    "relate": _demand_epoch,
    "unrelate": _demand_unrelate,
    "commit": _demand_forward,
    "writers": _demand_kept_name,
    "divergence": _clamp(10_000),
    "begin_test": _demand_place,
}
