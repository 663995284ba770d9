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
from mirrord.drivers.contract import Clones, Destination, Failover, Pool, Source, Volume, changes
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
        Method(Volume, "pin", _ANY, "pin snapshots"),
        Method(Volume, "relationships", _ANY, "inspect a volume", quick=True, since=2),
        Method(Volume, "relationship", _ANY, "inspect a volume", quick=True, since=2),
        Method(Volume, "relate", _ANY, "record a relationship", since=2),
        Method(Volume, "unrelate", _S | _REMOVE, "remove a relationship record", since=2),
        Method(Volume, "reclaim", _ANY, "reclaim space"),
        Method(Source, "own_snapshots", _S, "list user snapshots"),
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
        Method(Clones, "begin_test", _REMOVE, "create a writable copy"),
        Method(Clones, "end_test", _REMOVE, "remove a writable copy"),
    )
}
