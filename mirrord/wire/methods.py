"""The methods that an agent serves for a volume: one table, used by both ends.

The arguments of a call and its result are those of the method's signature in the driver contract,
in its order. The table adds what a signature cannot express.
"""

from __future__ import annotations

import abc
import enum
import functools
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mirrord.core.model import Name
from mirrord.core.pause import LeftPaused, Resumed
from mirrord.drivers.contract import Clones, Destination, Failover, Pool, Source, Volume, changes
from mirrord.drivers.live import Live
from mirrord.drivers.verification import Verification
from mirrord.wire.values import pack


class Right(enum.Flag):
    """Access rights. Every method requires one of them."""

    NONE = 0
    #: Read a volume and its changes; take reference snapshots of it and delete those.
    SEND = enum.auto()
    #: Keep a copy here: create, fill and show it.
    RECEIVE = enum.auto()
    #: Delete committed data, roll it back, or make it writable.
    REMOVE = enum.auto()


class Opened(NamedTuple):
    """An open volume at the other end: its number in the session, its driver's capabilities (the
    value of `Capability`), and whether the peer is append-only.
    """

    number: int
    capabilities: int
    append_only: bool


class PeerLock(abc.ABC):
    """A volume's lock and fence at an agent, held over several calls."""

    @abc.abstractmethod
    def lock(self, purpose: str) -> bool:
        """Hold the lock until `unlock`, `close` or the end of the session. False: there is no place
        for a lock yet (`prepare` makes one), and nothing is held.
        """

    @abc.abstractmethod
    def unlock(self) -> None:
        """Release the lock; a call that needs it holds it until the call ends."""

    @abc.abstractmethod
    def set_fence(self, mirror_id: Name, epoch: int) -> None:
        """Further changes by this peer are for that mirror, in that epoch (`Volume.fence`)."""


class PeerPause(abc.ABC):
    """A guard at an agent: it pauses the applications on its host (mirrord.pausers). One for each
    open volume; it ends with the session.
    """

    @abc.abstractmethod
    def pause_host(self) -> str:
        """What tells this host from others: hosts are prepared in that order by every client."""

    @abc.abstractmethod
    def pause_open(self, pausers: Sequence[str], max_s: float) -> None:
        """Start the guard, and return when everything can be paused. max_s: everything is resumed
        after that time, whatever happens.
        """

    @abc.abstractmethod
    def pause_begin(self) -> list[float]:
        """Pause; returns after how many seconds each has confirmed."""

    @abc.abstractmethod
    def pause_end(self) -> Resumed:
        """Resume. `PauseFailed` when not everything was paused until now."""

    @abc.abstractmethod
    def pause_close(self) -> None:
        """End the guard, if there is one; what is paused is resumed."""

    @abc.abstractmethod
    def pause_left(self, pausers: Sequence[str]) -> list[LeftPaused]:
        """Resume those of these applications that were left paused; returns what could not be."""


#: The type of parameters that are other volumes.
VOLUMES = Sequence[Pool]


@dataclass(frozen=True)
class Method:
    """role, name: the method of the contract. rights: one of them is required. what: the action,
    for a refusal. quick: it only reads metadata, and must not wait for a disk that hangs. since:
    the first version of the protocol that has it.
    """

    role: type
    name: str
    rights: Right
    what: str
    quick: bool = False
    since: int = 1

    @property
    def changes(self) -> bool:
        """Whether it changes the volume or its records, and so runs under the volume's lock."""
        return changes(self.role, self.name)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """With types instead of their names, and without `self`."""
        found = inspect.signature(getattr(self.role, self.name), eval_str=True)
        return found.replace(parameters=list(found.parameters.values())[1:])

    @functools.cached_property
    def kinds(self) -> dict[str, Any]:
        """The types of its arguments, by name. Other volumes are sent as their numbers in the
        session.
        """
        found = {name: one.annotation for name, one in self.signature.parameters.items()}
        return {name: list[int] if kind == VOLUMES else kind for name, kind in found.items()}

    @property
    def result(self) -> Any:
        """The type of what it returns; for a `SendStream` or `Receiver` the call carries data."""
        return self.signature.return_annotation

    def words(self, *arguments: Any, **named: Any) -> list[Any]:
        """These arguments as they are sent in a call."""
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        return [pack(value) for value in bound.arguments.values()]

    def call(self, target: object, arguments: Mapping[str, Any]) -> Any:
        """Call it on `target` with all of its arguments, by name."""
        bound = inspect.BoundArguments(self.signature, OrderedDict(arguments))
        return getattr(target, self.name)(*bound.args, **bound.kwargs)


_S, _R, _REMOVE = Right.SEND, Right.RECEIVE, Right.REMOVE
_ANY = _S | _R

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(Volume, "facts", _ANY, "inspect a volume", quick=True),
        Method(PeerLock, "lock", _ANY, "lock a volume", quick=True),
        Method(PeerLock, "unlock", _ANY, "unlock a volume", quick=True),
        Method(PeerLock, "set_fence", _ANY, "use a volume", quick=True, since=2),
        Method(Volume, "snapshots", _ANY, "list snapshots", quick=True),
        Method(Volume, "members", _ANY, "inspect a snapshot"),
        Method(Volume, "changed_since", _ANY, "compare snapshots"),
        Method(Volume, "delete_snapshot", _S | _REMOVE, "delete snapshots"),
        Method(Volume, "in_use", _S | _REMOVE, "delete snapshots", since=3),
        Method(Volume, "pin", _ANY, "pin snapshots"),
        Method(Volume, "relationships", _ANY, "inspect a volume", quick=True, since=2),
        Method(Volume, "relationship", _ANY, "inspect a volume", quick=True, since=2),
        Method(Volume, "relate", _ANY, "record a relationship", since=2),
        Method(Volume, "unrelate", _S | _REMOVE, "remove a relationship record", since=2),
        Method(Volume, "reclaim", _ANY, "reclaim space"),
        Method(Source, "own_snapshots", _S, "list user snapshots"),
        Method(PeerPause, "pause_host", _S, "pause applications", since=3),
        Method(PeerPause, "pause_open", _S, "pause applications", since=3),
        Method(PeerPause, "pause_begin", _S, "pause applications", since=3),
        Method(PeerPause, "pause_end", _S, "pause applications", since=3),
        Method(PeerPause, "pause_close", _S, "pause applications", since=3),
        Method(PeerPause, "pause_left", _ANY, "resume applications", since=3),
        Method(Source, "make_ready", _S, "take snapshots", since=3),
        Method(Source, "take_snapshot", _S, "take snapshots"),
        Method(Pool, "take_together", _S, "take snapshots", since=2),
        Method(Source, "base_left", _S, "look for the remains of a base"),
        Method(Source, "delta", _S, "compute deltas"),
        Method(Source, "changes", _S, "compute deltas"),
        Method(Source, "send", _S, "send from a volume"),
        Method(Destination, "prepare", _R, "create a destination"),
        Method(Destination, "receive", _R, "receive into a volume"),
        Method(Destination, "stagings", _ANY, "list transfers", quick=True),
        Method(Destination, "commit", _R, "commit a transfer"),
        Method(Destination, "discard", _R, "discard a transfer"),
        Method(Failover, "promote", _REMOVE, "make a destination writable"),
        Method(Failover, "writers", _REMOVE, "list the writers of a volume"),
        Method(Failover, "freeze", _REMOVE, "freeze a volume"),
        Method(Failover, "thaw", _REMOVE, "thaw a volume"),
        Method(Failover, "mark", _REMOVE, "mark a volume"),
        Method(Failover, "is_marked", _ANY, "inspect a volume"),
        Method(Failover, "divergence", _ANY, "compare snapshots"),
        Method(Failover, "rollback", _REMOVE, "roll back a volume"),
        Method(Failover, "reinstate", _REMOVE, "roll back a volume"),
        Method(Failover, "forget", _REMOVE, "forget a mirror"),
        Method(Live, "image_facts", _ANY, "inspect an image", since=3),
        Method(Live, "live_create", _ANY, "mirror an image", since=3),
        Method(Live, "live_start", _ANY, "start a live mirror", since=3),
        Method(Live, "live_status", _ANY, "inspect a volume", quick=True, since=3),
        Method(Live, "live_serve", _S | _REMOVE, "serve an image", since=3),
        Method(Live, "live_unserve", _ANY, "disconnect clients", since=3),
        Method(Live, "live_mode", _ANY, "set a mode", since=3),
        Method(Live, "live_control", _ANY, "set a mode", since=3),
        Method(Live, "live_window", _ANY, "set a mode", since=3),
        Method(Live, "live_answer_within", _ANY, "set a mode", since=3),
        Method(Live, "live_merge", _ANY, "set a mode", since=3),
        Method(Live, "live_traffic", _ANY, "set a mode", since=3),
        Method(Live, "live_await_full", _ANY, "inspect a volume", since=3),
        Method(Live, "live_record", _ANY, "record an image", since=3),
        Method(Live, "live_recorded", _ANY, "record an image", since=3),
        Method(Live, "live_resync", _ANY, "copy an image", since=3),
        Method(Live, "live_copy_rate", _ANY, "limit a copy", since=3),
        Method(Live, "live_verify", _ANY, "compare images", since=3),
        Method(Live, "live_verify_stop", _ANY, "compare images", since=3),
        Method(Live, "live_repair", _ANY, "copy an image", since=3),
        Method(Live, "live_break", _REMOVE, "make a replica writable", since=3),
        Method(Live, "live_rejoin", _REMOVE, "overwrite an image", since=3),
        Method(Live, "live_reclaim", _S | _REMOVE, "make an image the primary", since=3),
        Method(Live, "live_remove", _S | _REMOVE, "forget a mirror", since=3),
        Method(Clones, "begin_test", _REMOVE, "create a writable copy"),
        Method(Clones, "end_test", _REMOVE, "remove a writable copy"),
        Method(Verification, "verify_step", _ANY, "verify snapshots", since=3),
        Method(Verification, "verify_end", _ANY, "verify snapshots", since=3),
        Method(Verification, "verify_nodes", _ANY, "verify snapshots", since=3),
        Method(Verification, "verify_blocks", _ANY, "verify snapshots", since=3),
        Method(Verification, "verify_read", _S, "read from a snapshot", since=3),
        Method(Verification, "repair_begin", _REMOVE, "repair a snapshot", since=3),
        Method(Verification, "repair_write", _REMOVE, "repair a snapshot", since=3),
        Method(Verification, "repair_finish", _REMOVE, "repair a snapshot", since=3),
    )
}
