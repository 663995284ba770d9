"""The driver contract: what a kind of volume must be able to do to be mirrored.

A driver speaks for one volume at one location. The engine holds two of them, one for each end
of a mirror, and never knows what is behind: local and remote drivers look the same, so no method
takes or returns anything but plain values, byte chunks and two small stream objects (streams.py).
The contract is split by role; a driver has all of them but `Clones` and `Pool`, which not every
kind has.
A new method gets its line in `mirrord/wire/methods.py`, too: by that table it is called on another
host, with the types that its signature has here.

Rules that every driver keeps (tests/contract runs them all on each driver):

1.  *Identity.* Snapshots are named by `guid` everywhere. One guid, both copies `intact`: equal
    content, wherever they are. Names and times are carried along for people.
2.  *Idempotence.* Every method that changes something may be called again with the same
    arguments, after success or after a crash at any point of it, and then does what is left to
    do. "Already so" is success.
3.  *Atomic view.* Until `commit(show=True)` or `rollback` switches it, in one step, the view of a
    MIRROR shows what it showed before, read-only. What is staged is not visible to users and
    not writable by them. A crash leaves the old view or the new one.
4.  *Durable.* What a method has done when it returns survives a power cut.
5.  *Refuse.* Anything found that the driver did not make (a destination that is not empty, a
    snapshot made writable) is refused with the shared texts (refusals.py), never overwritten.
6.  *Steps.* Each effect on stored state passes `mirrord.system.steps.reached("KIND:VERB:WHAT")`
    first, so that the crash matrix can break it there.
7.  *Clean.* `close()` of a stream ends all that it started: threads, processes, descriptors.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, TypeVar, cast

from mirrord.core.errors import Unsupported
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    Name,
    OpenWriter,
    ReceiveRequest,
    Snapshot,
    Staging,
    VolumeFacts,
)
from mirrord.core.relationship import Fence, Relationship, check_fence, replaces
from mirrord.drivers.refusals import no_clones
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.system.waiting import Waiting

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Capability(enum.Flag, boundary=enum.CONFORM):
    """What a driver can do beyond what each must. The numbers travel (docs/wire.md): a new one is
    added, none is used again, and those of a newer peer that are not known here are passed over.
    """

    NONE = 0
    #: A receive that is `resumable` leaves a checkpoint from which a new send goes on, whatever
    #: ends it: at most 8 MiB of what was written are lost; when the power fails and much came in a
    #: short time, at most what the last 30 s brought.
    RESUME = 1
    #: Snapshots are directories of files (`Snapshot.path`): single files can be restored.
    FILES = 2
    #: The destination must have a source's snapshot set: older ones go when their blocks do.
    BLOCK_FOR_BLOCK = 4
    #: What a `resumable` receive keeps is the stream itself, beside what it applies: until the end
    #: it needs room for both, and what it kept before does not make what is applied less.
    SPOOL = 8
    #: It has the role `Clones`.
    COPY = 32
    #: What is committed without being shown can be shown by another commit, at no more than the
    #: cost of that step.
    SHOW_LATER = 64
    #: It has the role `Pool`.
    POOL = 128


def changing(method: _Method) -> _Method:
    """Marks a method of a role that changes the volume, or what is kept of it: it is called under
    the volume's lock, and each implementation of it first compares the epoch (`Volume.fence`).
    """
    method.__dict__["changing"] = True
    return method


def changes(role: type, name: str) -> bool:
    """Whether a method of that role was marked as changing."""
    return hasattr(getattr(role, name, None), "changing")


def _fencing(method: _Method) -> _Method:
    @functools.wraps(method)
    def call(self: Volume, *arguments: Any, **named: Any) -> Any:
        self.demand_fence()
        return method(self, *arguments, **named)

    return cast(_Method, call)


class Volume(abc.ABC):
    """One volume at one location; cheap to make, does nothing until asked. What a volume of every
    role has: facts, a lock, snapshots.
    """

    kind: ClassVar[str]
    capabilities: ClassVar[Capability]
    #: On another host: what is done over a link may break off, and go on.
    remote: ClassVar[bool] = False

    def __init__(self, location: str) -> None:
        self.location = location
        self._locked = False
        #: The mirror for which it is changed, and the epoch in which that was decided; None: for
        #: none. Once the volume is in a later one, nothing is changed any more.
        self.fence: Fence | None = None
        #: How what it does waits for others; whoever uses it may set his own.
        self.waiting = Waiting()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, method in vars(cls).copy().items():
            declared = [vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)]
            if any(hasattr(one, "changing") for one in declared) and callable(method):
                setattr(cls, name, _fencing(method))

    def __str__(self) -> str:
        return f"{self.kind}:{self.location}"

    def demand_fence(self) -> None:
        """`Fenced` when the volume is in a later epoch than `fence` says."""
        if self.fence is not None:
            check_fence(self.relationship(self.fence.mirror_id), self.fence, str(self))

    @property
    def append_only(self) -> bool:
        """Whether the host of the volume refuses us to delete or turn back what was committed."""
        return False

    def detach(self) -> None:  # noqa: B027 - most hold nothing
        """Whoever made this driver is done with it. It may be used again."""

    @abc.abstractmethod
    def facts(self) -> VolumeFacts:
        """What is at the location, changing nothing. An absent place is a fact, not an error.

        Raises `Unsupported` when no volume of this kind could ever be there (a btrfs location on
        ext4), `PermissionMissing`, `Damaged`.
        """

    @property
    def locked(self) -> bool:
        """Whether this object holds the volume's lock."""
        return self._locked

    @contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Hold the volume for one mirror operation; `Busy` names who has it. Ends with the
        process. The same driver object may take it again inside (re-entrant), and its other
        methods work under it. Works on every role (an absent place is made able to hold a lock
        only by `prepare`: before that this holds nothing).
        """
        if self._locked:
            yield
            return
        with self._exclusive(purpose) as held:
            self._locked = held
            try:
                yield
            finally:
                self._locked = False

    @abc.abstractmethod
    def _exclusive(self, purpose: str) -> AbstractContextManager[bool]:
        """Take the volume's lock once; yields False when there is no place for one yet."""

    @abc.abstractmethod
    def snapshots(self) -> list[Snapshot]:
        """The committed snapshots in this volume's keeping, oldest first by `order`: kinds
        REFERENCE and DIVERGED (and OWN that were received).
        """

    def members(self, guid: str) -> dict[str, str]:
        """The snapshots that are this one: the identity of each with its path in the volume. It is
        one, with the path "", but where many datasets are one volume.
        """
        return {guid: ""}

    @abc.abstractmethod
    def changed_since(self, guid: str) -> bool:
        """Whether the live volume may differ from the snapshot. False only when it is certain
        that not a byte was written since, also not one that is still on its way to disk.
        """

    @changing
    @abc.abstractmethod
    def delete_snapshot(self, guid: str) -> None:
        """Delete one that `snapshots()` lists; `Refused`: it is shown, or pinned by any mirror."""

    @changing
    @abc.abstractmethod
    def pin(self, mirror_id: Name, guids: Sequence[str]) -> None:
        """From now on that mirror has pinned these snapshots of the volume, and no others: whoever
        deletes snapshots here, on whichever host, leaves them. One that is not here is no matter.

        One step replaces what the mirror had pinned; no guids: nothing is. Nothing is written when
        it is so already. It need not be durable yet: a power cut may bring back what was pinned
        before. `Refused`: more than `pins.GUIDS_MAX`, or too many mirrors.
        """

    def pins(self) -> dict[str, tuple[str, ...]]:
        """The pinned snapshots by guid, each with the ids of the mirrors that have pinned it."""
        return {one.guid: one.pinned for one in self.snapshots() if one.pinned}

    @abc.abstractmethod
    def relationships(self) -> dict[str, Relationship | None]:
        """The relationship records that lie with the volume, by the mirrors' ids; None: it is
        there, and damaged.
        """

    def relationship(self, mirror_id: Name) -> Relationship | None:
        """The record of that mirror; None: there is none, or a damaged one."""
        return self.relationships().get(mirror_id)

    @changing
    def relate(self, record: Relationship, after: int) -> None:
        """Put the record in place of the mirror's earlier one, whose epoch is `after` (0: there is
        none, or a damaged one), in one step. `Fenced` when that is not so; nothing when the very
        record is there already. It stays through promote and rollback. Not for an ABSENT place.
        """
        with self.lock(f"mirrord {record.name}"):
            if replaces(self.relationships(), record, after, str(self)):
                self._relate(record)

    @changing
    def unrelate(self, mirror_id: Name) -> None:
        """Remove the mirror's record; nothing when there is none."""
        self.demand_fence()
        with self.lock("mirrord"):
            if mirror_id in self.relationships():
                self._unrelate(mirror_id)

    @abc.abstractmethod
    def _relate(self, record: Relationship) -> None: ...

    @abc.abstractmethod
    def _unrelate(self, mirror_id: str) -> None: ...

    @changing  # noqa: B027 - most have nothing to hasten
    def reclaim(self) -> None:
        """Let the file system give back now what deleted snapshots held, where it would dawdle."""


class Source(Volume):
    """A volume that is mirrored."""

    @abc.abstractmethod
    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """The owner's own snapshots of the live volume whose names match one of the globs,
        oldest first, kind OWN.
        """

    @changing
    @abc.abstractmethod
    def take_snapshot(self, name: Name) -> Snapshot:
        """A read-only snapshot of the live volume as of now, durable. One of that name that is
        there already (an earlier try) is returned as it is. Raises `NoSpace`.
        """

    def base_left(self, guid: str) -> Snapshot | None:
        """What is left of a snapshot of the live volume that is gone, when an incremental can still
        begin from it: it may then be the base of `delta` and `send`, and of `changed_since`.
        """
        return None

    @abc.abstractmethod
    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """What lies between the two snapshots (SnapMirror, FAST'02, 3.2.2).

        states: count all four block states, however long that takes; otherwise only what is
        needed to know what will be sent, in time proportional to the change.
        files: list the changed files too, where the driver has files.
        """

    def changes(self, base: str, incremental: str) -> Changes:
        """Which blocks were allocated and which freed between the two snapshots, for a recording
        of what the volume's users do. May keep what it read of the incremental for the next call,
        in which that is the base. Raises `Unsupported` where a driver cannot tell.
        """
        raise Unsupported(
            f"which blocks change cannot be told of volumes of the kind '{self.kind}'",
            where=str(self),
        )

    @abc.abstractmethod
    def send(
        self,
        base: str | None,
        incremental: str,
        *,
        checkpoint: dict[str, int | str] | None = None,
    ) -> SendStream:
        """The stream from base (None: from nothing) to incremental, deterministic. checkpoint:
        go on where a `Staging` of the destination ended; `CheckpointUseless` is raised, here or by
        the stream, when that is not where this stream would have come by.
        """


class Pool(Source):
    """A volume beside others of its kind on one host, of which snapshots are taken together. The
    only role with a method that takes several volumes; not every kind has it.
    """

    def is_beside(self, other: Volume) -> bool:
        """Whether `take_together` may take that volume along."""
        return type(other) is type(self)

    @changing
    def take_together(self, name: Name, others: Sequence[Pool]) -> list[Snapshot]:
        """`take_snapshot` of this volume and of the others, which are beside it, in that order. The
        caller holds the locks of all.

        Those in one ZFS pool are of one moment. On btrfs all is prepared first, and then the kernel
        is asked for all snapshots at the same time: `Snapshot.taken_at_ns` says how far apart they
        are.
        """
        volumes = (self, *others)
        for one in volumes:
            one.demand_fence()
        return self._take_together(name, volumes)

    @abc.abstractmethod
    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]: ...


class Destination(Volume):
    """A volume that a mirror is made in."""

    @changing
    @abc.abstractmethod
    def prepare(self, mirror_id: Name, *, in_place: bool = False) -> None:
        """Make an ABSENT place the MIRROR of that id, empty, showing nothing. `Refused` when
        something is there already that is not this mirror's.

        in_place: the view is to be the location itself, not something in a folder there: a lost
        source is made anew where it was.
        """

    @changing
    @abc.abstractmethod
    def receive(self, request: ReceiveRequest) -> Receiver:
        """Open a receiver into the staging place of `request.transfer_id`; goes on from the
        checkpoint if that staging has one (what is written then is what comes behind it; to begin
        anew, `discard` it first). `Diverged` when the base is not here or not intact.
        """

    @abc.abstractmethod
    def stagings(self) -> list[Staging]:
        """What earlier transfers left uncommitted, complete or not."""

    @changing
    @abc.abstractmethod
    def commit(self, transfer_id: Name, *, show: bool) -> Snapshot:
        """Make a complete staging a snapshot of this volume and, with `show`, the view, in one
        step. Called again after it succeeded: returns that snapshot. `NotFound` when there is
        no such staging and it was never committed.
        """

    @changing
    @abc.abstractmethod
    def discard(self, transfer_id: Name) -> None:
        """Remove a staging and all of its traces; nothing when there is none."""


class Failover(Volume):
    """A volume that is made live, frozen and turned back."""

    @changing
    @abc.abstractmethod
    def promote(self, guid: str | None = None) -> None:
        """MIRROR to LIVE: the view becomes writable, beginning as the snapshot `guid`; None: as the
        one it shows, or the newest intact one when that is missing or not intact. Needs no other
        end, no room for data and no intact metadata of mirrord's own. Immediate: no data are
        copied. Snapshots newer than `guid` stay. Nothing when it is LIVE already.
        """

    @abc.abstractmethod
    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """Who has files of the LIVE volume open for writing, at most `limit` of them: descriptors,
        shared writable mappings, loop devices, swap files; also through another mount of it.

        kept: of the DIVERGED snapshot of that name instead, where such a writer is not stopped.
        """

    @changing
    @abc.abstractmethod
    def freeze(self) -> None:
        """Make every new write to the LIVE volume fail, and what was acknowledged durable. A writer
        that `writers` names may go on where the file system cannot stop it (btrfs).

        The freeze ends by `thaw`, `detach`, and by itself when this process ends, however it does:
        who is killed leaves no volume frozen. After a power cut `thaw` is needed.
        """

    @changing
    @abc.abstractmethod
    def thaw(self) -> None:
        """End a freeze, whoever began it; nothing when the LIVE volume is not frozen by mirrord."""

    @changing
    @abc.abstractmethod
    def mark(self) -> str:
        """Remember what the place is now; the text is for `is_marked`, also after a restart. A
        driver may leave a mark at the volume; the next `mark` replaces it, `forget` removes it.
        """

    @abc.abstractmethod
    def is_marked(self, mark: str) -> bool:
        """Whether the place is what it was at `mark`: the same role and the same volume, showing
        the same snapshot, and not a byte was written since, also not one that is still on its way
        to disk. False when in doubt.
        """

    @abc.abstractmethod
    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """What `rollback(guid)` would take from the live volume's users."""

    @changing
    @abc.abstractmethod
    def rollback(self, guid: str, *, mirror_id: Name, keep_as: Name) -> str | None:
        """LIVE (lost, or a MIRROR whose newer snapshots must go) to MIRROR of `mirror_id`, showing
        snapshot `guid`. Snapshots newer than `guid` stay.

        What was LIVE is never deleted unproven: it is set aside in the same step, frozen, and kept
        as a DIVERGED snapshot. Only when it is then certain that it holds what `guid` holds, and
        nobody has a file in it open for writing (`writers`), it is dropped. Returns the name by
        which it is kept (`keep_as`, or one like it when that is taken); None: nothing is.
        What such writers still write goes into what is kept, or fails.
        """

    @changing
    @abc.abstractmethod
    def reinstate(self, name: Name) -> None:
        """Undo an unfinished `rollback(keep_as=name)`: what was set aside is LIVE again, writable,
        in the place of the view. Nothing when it is LIVE already; `NotFound` when nothing is kept.
        """

    @changing
    @abc.abstractmethod
    def forget(self) -> None:
        """The mirror is no more: drop its marks, lock and stagings. Snapshots and view stay."""


class Clones(Volume):
    """A destination of which writable copies can be made; not every kind of volume can be one."""

    @changing
    @abc.abstractmethod
    def begin_test(self, place: str = "") -> VolumeFacts:
        """Make a writable copy of what a MIRROR shows, a LIVE volume of its own that shares what
        it can; the mirror goes on as it is. One copy at a time; called again, it returns that one.

        place: its location; "" for one beside this volume's. Returns its facts. Raises `Refused`
        when something else is there, `NoSpace`.
        """

    @changing
    @abc.abstractmethod
    def end_test(self) -> bool:
        """Remove that copy, with all that was written to it; whether there was one.

        Raises `Refused` when the copy has snapshots or volumes of its own, `Busy` when it is used.
        """


class Driver(Source, Destination, Failover):
    """A volume that can be either end of a mirror: what the engine holds."""


def clones_of(driver: Driver) -> Clones:
    """The driver as one that makes writable copies; `Unsupported`."""
    if not isinstance(driver, Clones):
        raise no_clones(str(driver))
    return driver
