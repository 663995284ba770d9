"""The driver contract: what a kind of volume must be able to do to be mirrored.

A driver represents one volume at one location. The engine has two of them, one for each end of a
mirror, and does not know what is behind them: local and remote drivers look the same, so methods
take and return only plain values, byte chunks and two small stream objects (streams.py).
The contract is split by role; a driver has all roles but `Clones`, `Pool` and `Verification`
(verification.py), which not every kind has.
A new method also gets a line in `mirrord/wire/methods.py`: by that table it is called on another
host, with the types of its signature here.

Rules that every driver follows (tests/contract tests them all with each driver):

1.  *Identity.* Snapshots are identified by `guid` everywhere. Two `intact` copies with the same
    guid have the same content, wherever they are. Names and times are for people.
2.  *Idempotence.* Every method that changes something may be called again with the same
    arguments, after success or after a crash at any point of it, and then does what is left to
    do. When nothing is left, it succeeds.
3.  *Atomic view.* Until `commit(show=True)` or `rollback` switches it, in one step, the view of a
    MIRROR shows what it showed before, read-only. What is staged is not visible to users and
    not writable by them. A crash leaves the old view or the new one.
4.  *Durable.* What a method has done when it returns survives a power failure.
5.  *Refuse.* Anything found that the driver did not create (a destination that is not empty, a
    snapshot made writable) is refused with the shared texts (refusals.py), never overwritten.
6.  *Steps.* Each effect on stored state passes `mirrord.system.steps.reached("KIND:VERB:WHAT")`
    first, so that the crash matrix can interrupt it there.
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
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.system.waiting import Waiting

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Capability(enum.Flag, boundary=enum.CONFORM):
    """What a driver can do beyond the required methods. The numbers are sent (docs/wire.md): a new
    capability gets a new number, no number is reused, and unknown ones of a newer peer are ignored.
    """

    NONE = 0
    #: However a `resumable` receive ends, it leaves a checkpoint from which a new send resumes: at
    #: most 8 MiB of what was written are lost. After a power failure, or when what applies it is
    #: killed: at most 64 MiB, or the last 30 s. With 'btrfs receive' a transfer starts over.
    RESUME = 1
    #: Snapshots are directories of files (`Snapshot.path`): single files can be restored.
    FILES = 2
    #: The destination must have the source's snapshots: older ones are deleted with their blocks.
    BLOCK_FOR_BLOCK = 4
    #: It has the role `Clones`.
    COPY = 32
    #: What is committed without being shown can be shown by another commit, at that step's cost.
    SHOW_LATER = 64
    #: It has the role `Pool`.
    POOL = 128
    #: It has the role `Verification` (verification.py).
    VERIFY = 256
    #: A damaged snapshot that a destination shows can be replaced by a corrected copy.
    REPAIR = 512
    #: What was received can be verified before it is committed.
    VERIFY_RECEIVED = 1024


def changing(method: _Method) -> _Method:
    """Mark a method of a role that changes the volume, or its records: it is called under the
    volume's lock, and each implementation of it first compares the epoch (`Volume.fence`).
    """
    method.__dict__["changing"] = True
    return method


def changes(role: type, name: str) -> bool:
    """Whether a method of that role was marked as changing."""
    return hasattr(getattr(role, name, None), "changing")


def comparing(method: _Method) -> _Method:
    """Mark an implementation that compares the epoch in the same step in which it changes."""
    method.__dict__["comparing"] = True
    return method


def _fencing(method: _Method) -> _Method:
    @functools.wraps(method)
    def call(self: Volume, *arguments: Any, **named: Any) -> Any:
        self.demand_fence()
        return method(self, *arguments, **named)

    return cast(_Method, call)


class Volume(abc.ABC):
    """What every role needs of one volume. It does nothing until a method is called."""

    kind: ClassVar[str]
    capabilities: ClassVar[Capability]
    #: On another host: a call over a link may be interrupted, and resumed.
    remote: ClassVar[bool] = False

    def __init__(self, location: str) -> None:
        self.location = location
        #: Whether this object holds the volume's lock.
        self.locked = False
        #: The mirror for which the volume is changed, and the epoch of that decision; None: for
        #: none. Once the volume is in a later epoch, nothing is changed any more.
        self.fence: Fence | None = None
        #: How its methods wait for others; the user of this object may set another.
        self.waiting = Waiting()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, method in vars(cls).copy().items():
            declared = [vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)]
            changing = any(hasattr(one, "changing") for one in declared)
            if changing and callable(method) and not hasattr(method, "comparing"):
                setattr(cls, name, _fencing(method))

    def __str__(self) -> str:
        return f"{self.kind}:{self.location}"

    def demand_fence(self) -> None:
        """`Fenced` when the volume is in a later epoch than that of `fence`."""
        if self.fence is not None:
            check_fence(self.relationship(self.fence.mirror_id), self.fence, str(self))

    @property
    def append_only(self) -> bool:
        """Whether the volume's host does not allow us to delete or roll back committed data."""
        return False

    def detach(self) -> None:  # noqa: B027 - most hold nothing
        """The creator of this object has finished with it. It may be used again."""

    @abc.abstractmethod
    def facts(self) -> VolumeFacts:
        """What is at the location; changes nothing. A missing volume is a fact, not an error.

        Raises `Unsupported` when no volume of this kind could ever be there (a btrfs location on
        ext4), `PermissionMissing`, `Damaged`.
        """

    @contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Lock the volume for one mirror operation; `Busy` names the holder. Ends with the
        process. The same driver object may take it again inside (re-entrant), and its other
        methods work under it. Works on every role (an absent place can have a lock only after
        `prepare`: before that this locks nothing).
        """
        if self.locked:
            yield
            return
        with self._exclusive(purpose) as held:
            self.locked = held
            try:
                yield
            finally:
                self.locked = False

    @abc.abstractmethod
    def _exclusive(self, purpose: str) -> AbstractContextManager[bool]:
        """Take the volume's lock once; yields False when there is no place for one yet."""

    @abc.abstractmethod
    def snapshots(self) -> list[Snapshot]:
        """The committed snapshots managed by mirrord, oldest first by `order`: of the kinds
        REFERENCE and DIVERGED (and received ones of the kind OWN).
        """

    def members(self, guid: str) -> dict[str, str]:
        """The snapshots that this one consists of: path in the volume by guid. It is one, with the
        path "", except where several datasets are one volume.
        """
        return {guid: ""}

    @abc.abstractmethod
    def changed_since(self, guid: str) -> bool:
        """Whether the live volume may differ from the snapshot. False only when it is certain
        that nothing was written since, including data that is not on disk yet.
        """

    @changing
    @abc.abstractmethod
    def delete_snapshot(self, guid: str) -> None:
        """Delete one that `snapshots()` lists; `Refused`: shown or pinned; `Busy`: `in_use`."""

    def begin_delete(self, guid: str) -> Callable[[], None]:
        """Begin `delete_snapshot`; calling the result completes it. A remote end begins at once."""
        return functools.partial(self.delete_snapshot, guid)

    def in_use(self, guid: str) -> str:
        """Who else uses a snapshot, which is therefore not deleted, as a clause; "": nobody."""
        return ""

    @changing
    @abc.abstractmethod
    def pin(self, mirror_id: Name, guids: Sequence[str]) -> None:
        """Pin these snapshots of the volume for that mirror, and no others: no mirrord, on any
        host, deletes them. A guid without a snapshot here is allowed.

        One step replaces the previous pins of the mirror; without guids it has none. Nothing is
        written when the pins are the same. The change need not be durable yet: a power failure may
        bring back the previous pins. `Refused`: more than `pins.GUIDS_MAX`, or too many mirrors.
        """

    def pins(self) -> dict[str, tuple[str, ...]]:
        """The pinned snapshots by guid, each with the ids of the mirrors that have pinned it."""
        return {one.guid: one.pinned for one in self.snapshots() if one.pinned}

    @abc.abstractmethod
    def relationships(self) -> dict[str, Relationship | None]:
        """Its relationship records, by mirror id; None: damaged. Promote and rollback keep them."""

    def relationship(self, mirror_id: Name) -> Relationship | None:
        """The record of that mirror; None when it is missing or damaged."""
        return self.relationships().get(mirror_id)

    @changing
    def relate(self, record: Relationship, after: int) -> None:
        """Replace the mirror's record, whose epoch is `after` (0: missing or damaged), in one step;
        nothing when it is the same. `Fenced`: another epoch, or a newer mirrord's. Not when ABSENT.
        """
        with self.lock(f"mirrord {record.name}"):
            self.relationship(record.mirror_id)  # `Fenced` when it is a newer mirrord's
            if replaces(self.relationships(), record, after, str(self)):
                self._relate(record)

    @changing
    def unrelate(self, mirror_id: Name) -> None:
        """Remove the mirror's record; does nothing when there is none."""
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
        """Make the file system free the space of deleted snapshots now, where it would delay it."""


class Source(Volume):
    """A volume that is mirrored."""

    @abc.abstractmethod
    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """User snapshots of the live volume that match one of the globs, oldest first, kind OWN."""

    @changing
    def make_ready(self, name: Name) -> None:
        """Do what can be done before a snapshot of that name, so that taking it takes little time:
        the application is paused meanwhile. It writes what is dirty to disk.
        """

    @changing
    @abc.abstractmethod
    def take_snapshot(self, name: Name) -> Snapshot:
        """Take a durable, read-only snapshot of the live volume. One of that name that already
        exists (from an earlier attempt) is returned as it is. Raises `NoSpace`.
        """

    def base_left(self, guid: str) -> Snapshot | None:
        """What is left of a deleted snapshot of the live volume, when it can still be the base of
        an incremental (`delta` and `send`) and of `changed_since`; None otherwise.
        """
        return None

    @abc.abstractmethod
    def delta(
        self, base: str | None, incremental: str, *, states: bool = False, files: bool = False
    ) -> Delta:
        """The difference between the two snapshots (SnapMirror, FAST'02, 3.2.2).

        states: count all four block states, however long that takes; otherwise only what is
        needed to know what will be sent, in time proportional to the change.
        files: also list the changed files, where the driver has files.
        """

    def changes(self, base: str, incremental: str) -> Changes:
        """Which blocks were allocated and which were freed between the two snapshots, for a
        recording of the volume's workload. May keep what it read of the incremental for the next
        call, in which that is the base. Raises `Unsupported` where a driver cannot determine it.
        """
        raise Unsupported(
            f"changed blocks cannot be listed for volumes of the kind '{self.kind}'",
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
        """The stream from base (None: a full stream) to incremental, deterministic. checkpoint:
        resume where a `Staging` of the destination ended; `CheckpointUseless` is raised, here or by
        the stream, when the checkpoint is not a point in this stream.
        """


class Pool(Source):
    """A volume whose snapshots can be taken together with those of others of its kind on the same
    host. The only role with a method that takes several volumes; not every kind has it.
    """

    def is_beside(self, other: Volume) -> bool:
        """Whether `take_together` may include that volume."""
        return type(other) is type(self)

    @changing
    def take_together(self, name: Name, others: Sequence[Pool]) -> list[Snapshot]:
        """`take_snapshot` of this volume and of the others (see `is_beside`), in that order. The
        caller holds the locks of all.

        Those in one ZFS pool are atomic. On btrfs everything is prepared first, and then all
        snapshots are requested from the kernel at the same time: `Snapshot.taken_at_ns` shows how
        far apart they are.
        """
        volumes = (self, *others)
        for one in volumes:
            one.demand_fence()
        return self._take_together(name, volumes)

    @abc.abstractmethod
    def _take_together(self, name: str, volumes: Sequence[Pool]) -> list[Snapshot]: ...


class Destination(Volume):
    """A volume that receives a mirror."""

    @changing
    @abc.abstractmethod
    def prepare(self, mirror_id: Name, *, in_place: bool = False) -> None:
        """Make an ABSENT place the MIRROR of that id, empty, showing nothing. `Refused` when
        something that does not belong to this mirror exists there.

        in_place: the view is to be the location itself, not something in a folder there: a lost
        source is recreated where it was.
        """

    @changing
    @abc.abstractmethod
    def receive(self, request: ReceiveRequest) -> Receiver:
        """Open a receiver into the staging place of `request.transfer_id`; it resumes from the
        checkpoint if that staging has one (the caller then writes what follows it; to start from
        the beginning, `discard` it first). `Diverged` when the base is missing or not intact.
        """

    @abc.abstractmethod
    def stagings(self) -> list[Staging]:
        """The uncommitted stagings of earlier transfers, complete or not."""

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
        """Remove a staging and all of its traces; does nothing when there is none."""


class Failover(Volume):
    """A volume that can be made live, frozen and rolled back."""

    @changing
    @abc.abstractmethod
    def promote(self, guid: str | None = None) -> None:
        """MIRROR to LIVE: the view becomes writable, with the content of the snapshot `guid`; None:
        of the one it shows, or of the newest intact one when that is missing or not intact. Needs
        no other end, no space for data and no intact metadata of mirrord. Immediate: no data is
        copied. Snapshots newer than `guid` are kept. Does nothing when it is LIVE already.
        """

    @abc.abstractmethod
    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """What has files of the LIVE volume open for writing, at most `limit`: descriptors, shared
        writable mappings, loop devices, swap files; also through another mount of it.

        kept: of the DIVERGED snapshot of that name instead, where such a writer is not stopped.
        """

    @changing
    @abc.abstractmethod
    def freeze(self) -> None:
        """Make every new write to the LIVE volume fail, and acknowledged writes durable. A writer
        that `writers` lists may continue where the file system cannot stop it (btrfs).

        The freeze ends with `thaw`, `detach`, or the end of this process, also when it is killed.
        After a power failure `thaw` is needed.
        """

    @changing
    @abc.abstractmethod
    def thaw(self) -> None:
        """End a freeze of any process; does nothing when mirrord has not frozen the LIVE volume."""

    @changing
    @abc.abstractmethod
    def mark(self) -> str:
        """Record the current state of the place; the text is for `is_marked`, also after a restart.
        A driver may store a mark with the volume; the next `mark` replaces it, `forget` removes it.
        """

    @abc.abstractmethod
    def is_marked(self, mark: str) -> bool:
        """Whether the place is as at `mark`: the same role and the same volume, showing the same
        snapshot, and nothing was written since, on disk or not. False when in doubt.
        """

    @abc.abstractmethod
    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """What the users of the live volume would lose by `rollback(guid)`."""

    @changing
    @abc.abstractmethod
    def rollback(self, guid: str, *, mirror_id: Name, keep_as: Name) -> str | None:
        """LIVE (lost, or a MIRROR with newer snapshots) to MIRROR of `mirror_id`, showing snapshot
        `guid`. Snapshots newer than `guid` are kept.

        What was LIVE is never deleted without proof: it is set aside in the same step, frozen, and
        kept as a DIVERGED snapshot. It is dropped only when it is then certain that it has the
        content of `guid`, and no file in it is open for writing (`writers`). Returns the name of
        the kept snapshot (`keep_as`, or a similar one when that is in use); None: nothing is kept.
        What such writers still write goes into the kept volume, or fails.
        """

    @changing
    @abc.abstractmethod
    def reinstate(self, name: Name) -> None:
        """Undo an unfinished `rollback(keep_as=name)`: what was set aside is LIVE again, writable,
        in the place of the view. Does nothing when it is already; `NotFound`: nothing is kept so.
        """

    @changing
    @abc.abstractmethod
    def forget(self) -> None:
        """Remove the marks, lock and stagings of a deleted mirror. Snapshots and view are kept."""


class Clones(Volume):
    """A destination that supports writable copies; not every kind of volume does."""

    @changing
    @abc.abstractmethod
    def begin_test(self, place: str = "") -> VolumeFacts:
        """Create a writable copy of what a MIRROR shows: a separate LIVE volume that shares data
        with it; the mirror does not change. One copy at a time; called again, it returns that one.
        place: its location; "" for one beside this volume's. Returns its facts. Raises `NoSpace`,
        or `Refused` when something else is there.
        """

    @changing
    @abc.abstractmethod
    def end_test(self) -> bool:
        """Remove that copy, with all that was written to it; returns whether there was one. Raises
        `Refused` when the copy has its own snapshots or volumes, `Busy` when it is in use.
        """


class Driver(Source, Destination, Failover):
    """A volume that can be either end of a mirror: what the engine holds."""


def clones_of(driver: Driver) -> Clones:
    """The driver as one that supports writable copies; raises `Unsupported` otherwise."""
    if not isinstance(driver, Clones):
        raise Unsupported("volumes of this kind do not support writable copies", where=str(driver))
    return driver
