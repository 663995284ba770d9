"""Serves this host's drivers: each method of the contract, for the volumes that a peer may use.

What a peer says is checked before anything is done with it: the method, the types of its words,
and its right to use the volume in that way (rules.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, NewType

from mirrord.agent.rules import Right, Rules, demand, rights_at
from mirrord.core.endpoint import KINDS
from mirrord.core.errors import NotFound, ProtocolError, Refused, Unsupported, Untrusted
from mirrord.core.model import Endpoint, ReceiveRequest, Role, SnapshotKind, Staging
from mirrord.core.text import can_name, harmless
from mirrord.drivers.base import Capability, Driver
from mirrord.link.exchange import Exchange
from mirrord.system.explain import explained
from mirrord.wire.values import pack, unpack

#: Among the types of a method's words: a string that is to name something at this end.
Name = NewType("Name", str)

_HANDLES_MAX = 4096
_NAME_BYTES_MAX = 200


class _Opened:
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
        """Hold it for the peer; False: there is no place for a lock yet. A lock that is taken while
        the peer leaves is not kept.
        """
        with self._guard:
            self._take(purpose)
            self._wanted = True
            held = self.driver.locked
            self._release()
        return held

    def unlock(self) -> None:
        """The peer does not want it any more."""
        with self._guard:
            self._wanted = False
            self._release()

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


class Method(NamedTuple):
    """rights: one of them is needed. kinds: of its words. run: does it. what: for a refusal.
    changes: it changes the volume or what is kept of it, and runs under the volume's lock.
    """

    rights: Right
    kinds: tuple[Any, ...]
    run: Callable[..., Any]
    what: str
    changes: bool = False


_ANY = Right.SEND | Right.RECEIVE


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
        opened = self._find(*_checked((int,), words[:1]))
        # Asked anew each time: a folder may have become a link since.
        kind, location = opened.driver.kind, opened.driver.location
        opened.rights = rights_at(self._rules, location, kind=kind)
        demand(self._rules, opened.rights, found.rights, found.what, str(opened.driver))
        checked = _checked(found.kinds, words[1:], str(opened.driver))
        with explained(), ExitStack() as stack:
            if found.changes:
                stack.enter_context(opened.changing(f"a peer, to {found.what}"))
            return pack(found.run(opened, exchange, *checked))

    def _open(self, kind: str, location: str) -> list[Any]:
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
        keeps = self._rules.append_only
        return [number, driver.capabilities.value, keeps]

    def _close(self, number: int) -> None:
        with self._guard:
            one = self._opened.pop(number, None)
        if one is not None:
            one.close()

    def _find(self, number: int) -> _Opened:
        with self._guard:
            one = self._opened.get(number)
        if one is None:
            raise NotFound("no such volume is open in this session")
        return one


def _checked(kinds: tuple[Any, ...], words: list[Any], where: str = "") -> list[Any]:
    if len(kinds) != len(words):
        raise ProtocolError("a call has another number of words than its method takes")
    return [_word(kind, word, where) for kind, word in zip(kinds, words, strict=True)]


def _word(kind: Any, word: Any, where: str) -> Any:
    value = unpack(str if kind is Name else kind, word)
    names = [value] if kind is Name else []
    if isinstance(value, ReceiveRequest):
        names = [value.transfer_id, value.mirror_id, value.snapshot.name]
    for name in names:
        _check_name(name, where)
    return value


def _check_name(name: str, where: str) -> None:
    """`Refused` when what is to name something could be a path, or write on a terminal."""
    if not can_name(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise Refused(f"invalid name: {name[:100]!r}", where=where)


# The methods


def _lock(opened: _Opened, _exchange: Exchange, purpose: str) -> bool:
    """False: there is no place for a lock yet (`prepare` makes one), and nothing is held."""
    # It is shown to whoever finds the volume locked, on a terminal.
    return opened.lock(harmless(purpose[:200]))


def _unlock(opened: _Opened, _exchange: Exchange) -> None:
    opened.unlock()


def _delete_snapshot(opened: _Opened, _exchange: Exchange, guid: str) -> None:
    if not opened.rights & Right.REMOVE:
        _demand_own(opened, guid)
    opened.driver.delete_snapshot(guid)


def _demand_own(opened: _Opened, guid: str) -> None:
    """Who may only send may drop the reference snapshots of a live volume that were taken there,
    and nothing else: what was received is somebody's backup.
    """
    why = "it was received there"
    listed = {one.guid: one for one in opened.driver.snapshots()}
    one = listed.get(guid)
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
        "this peer may not delete that snapshot", where=str(opened.driver), why=why,
        hint="Delete it on that host.",
    )  # fmt: skip


def _send(
    opened: _Opened, exchange: Exchange, base: str | None, incremental: str,
    checkpoint: dict[str, int | str] | None,
) -> None:  # fmt: skip
    with opened.driver.send(base, incremental, checkpoint=checkpoint) as stream:
        stream.waiting = exchange.waiting
        exchange.opened()
        while stream.skip():
            exchange.check()
        while chunk := stream.read():
            exchange.send(chunk)
        exchange.end()


def _receive(opened: _Opened, exchange: Exchange, request: ReceiveRequest) -> Staging:
    """Nothing reaches the driver but pieces that were checked, and it finishes only a stream
    whose digest both ends agree on.
    """
    with opened.driver.receive(request) as receiver:
        receiver.waiting = exchange.waiting
        exchange.opened()
        while receiver.catch_up():
            exchange.check()
        while chunk := exchange.read():
            receiver.write(chunk)
        return receiver.finish()


def _plain(name: str) -> Callable[..., Any]:
    def run(opened: _Opened, _exchange: Exchange, *words: Any) -> Any:
        return getattr(opened.driver, name)(*words)

    return run


def _delta(opened: _Opened, _e: Exchange, base: str | None, incremental: str,
           states: bool, files: bool) -> Any:  # fmt: skip
    return opened.driver.delta(base, incremental, states=states, files=files)


def _prepare(opened: _Opened, _e: Exchange, mirror_id: str, in_place: bool) -> None:
    opened.driver.prepare(mirror_id, in_place=in_place)


def _commit(opened: _Opened, _e: Exchange, transfer_id: str, show: bool) -> Any:
    if show and opened.rules.append_only:
        _demand_forward(opened, transfer_id)
    return opened.driver.commit(transfer_id, show=show)


def _demand_forward(opened: _Opened, transfer_id: str) -> None:
    """A snapshot that is there already, older than what is shown, would turn the view back."""
    listed = {one.guid: one for one in opened.driver.snapshots()}
    shown = listed.get(opened.driver.facts().shown or "")
    for staging in opened.driver.stagings():
        there = listed.get(staging.snapshot.guid)
        if staging.transfer_id == transfer_id and shown and there and there.order < shown.order:
            demand(opened.rules, opened.rights, Right.REMOVE, "turn a view back", there.name)


def _divergence(opened: _Opened, _e: Exchange, guid: str, limit: int) -> Any:
    return opened.driver.divergence(guid, limit=max(0, min(limit, 10_000)))


def _rollback(opened: _Opened, _e: Exchange, guid: str, mirror_id: str, keep_as: str) -> str | None:
    return opened.driver.rollback(guid, mirror_id=mirror_id, keep_as=keep_as)


def _writers(opened: _Opened, _e: Exchange, kept: str, limit: int) -> Any:
    if kept:
        _check_name(kept, str(opened.driver))
    return opened.driver.writers(kept, limit=max(0, min(limit, 1000)))


def _begin_test(opened: _Opened, _e: Exchange, place: str) -> Any:
    """The copy must be where the peer might have its destination, too."""
    if place:
        rights = rights_at(opened.rules, place, kind=opened.driver.kind)
        demand(opened.rules, rights, Right.RECEIVE, "make a writable copy", place)
    return opened.driver.begin_test(place)


_MAYBE = str | None
_CHECKPOINT = dict[str, int | str] | None
_S, _R = Right.SEND, Right.RECEIVE

METHODS: dict[str, Method] = {
    "facts": Method(_ANY, (), _plain("facts"), "look at a volume"),
    "lock": Method(_ANY, (str,), _lock, "lock a volume"),
    "unlock": Method(_ANY, (), _unlock, "unlock a volume"),
    "snapshots": Method(_ANY, (), _plain("snapshots"), "list snapshots"),
    "own_snapshots": Method(
        _S, (tuple[str, ...],), _plain("own_snapshots"), "list the owner's snapshots"
    ),
    "take_snapshot": Method(_S, (Name,), _plain("take_snapshot"), "take snapshots", changes=True),
    "delete_snapshot": Method(
        _S | Right.REMOVE, (str,), _delete_snapshot, "delete snapshots", changes=True
    ),
    "reclaim": Method(_ANY, (), _plain("reclaim"), "reclaim space", changes=True),
    "base_left": Method(_S, (str,), _plain("base_left"), "look for what is left of a base"),
    "members": Method(_ANY, (str,), _plain("members"), "look at a snapshot"),
    "changed_since": Method(_ANY, (str,), _plain("changed_since"), "compare snapshots"),
    "delta": Method(_S, (_MAYBE, str, bool, bool), _delta, "compute deltas"),
    "changes": Method(_S, (str, str), _plain("changes"), "compute deltas"),
    "send": Method(_S, (_MAYBE, str, _CHECKPOINT), _send, "send from a volume"),
    "prepare": Method(_R, (Name, bool), _prepare, "make a destination", changes=True),
    "receive": Method(_R, (ReceiveRequest,), _receive, "receive into a volume", changes=True),
    "stagings": Method(_ANY, (), _plain("stagings"), "look at transfers"),
    "commit": Method(_R, (Name, bool), _commit, "commit a transfer", changes=True),
    "discard": Method(_R, (Name,), _plain("discard"), "discard a transfer", changes=True),
    "promote": Method(
        Right.REMOVE, (_MAYBE,), _plain("promote"), "make a destination writable", changes=True
    ),
    "writers": Method(Right.REMOVE, (str, int), _writers, "see who writes to a volume"),
    "freeze": Method(Right.REMOVE, (), _plain("freeze"), "freeze a volume", changes=True),
    "thaw": Method(Right.REMOVE, (), _plain("thaw"), "thaw a volume", changes=True),
    "mark": Method(Right.REMOVE, (), _plain("mark"), "mark a volume", changes=True),
    "is_marked": Method(_ANY, (str,), _plain("is_marked"), "look at a volume"),
    "begin_test": Method(Right.REMOVE, (str,), _begin_test, "make a writable copy", changes=True),
    "end_test": Method(
        Right.REMOVE, (), _plain("end_test"), "remove a writable copy", changes=True
    ),
    "divergence": Method(_ANY, (str, int), _divergence, "compare snapshots"),
    "rollback": Method(
        Right.REMOVE, (str, Name, Name), _rollback, "turn a volume back", changes=True
    ),
    "reinstate": Method(
        Right.REMOVE, (Name,), _plain("reinstate"), "turn a volume back", changes=True
    ),
    "forget": Method(Right.REMOVE, (), _plain("forget"), "forget a mirror", changes=True),
}
