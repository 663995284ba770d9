"""The driver contract: what a kind of volume must be able to do to be mirrored.

A driver speaks for one volume at one location. The engine holds two of them, one for each end
of a mirror, and never knows what is behind: local and remote drivers look the same, so no method
takes or returns anything but plain values, byte chunks and the two small stream objects below.

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
    snapshot made writable) is refused with the shared texts below, never overwritten.
6.  *Steps.* Each effect on stored state passes `mirrord.system.steps.reached("KIND:VERB:WHAT")`
    first, so that the crash matrix can break it there.
7.  *Clean.* `close()` of a stream ends all that it started: threads, processes, descriptors.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from mirrord.core.errors import (
    Busy,
    Damaged,
    Diverged,
    MirrordError,
    NoSpace,
    NotFound,
    PermissionMissing,
    Refused,
    Unsupported,
)
from mirrord.core.model import (
    Changes,
    Delta,
    Divergence,
    OpenWriter,
    ReceiveRequest,
    Snapshot,
    Staging,
    VolumeFacts,
)
from mirrord.drivers.streams import Receiver, SendStream
from mirrord.system.waiting import Waiting


class Capability(enum.Flag):
    """What a driver can do beyond what each must."""

    NONE = 0
    #: A receive that is `resumable` leaves a checkpoint from which a new send goes on, whatever
    #: ends it: at most 8 MiB of what was written are lost; when the power fails and much came in a
    #: short time, at most what the last 30 s brought.
    RESUME = enum.auto()
    #: Snapshots are directories of files (`Snapshot.path`): single files can be restored.
    FILES = enum.auto()
    #: The destination must have a source's snapshot set: older ones go when their blocks do.
    BLOCK_FOR_BLOCK = enum.auto()
    #: What a `resumable` receive keeps is the stream itself, beside what it applies: until the end
    #: it needs room for both, and what it kept before does not make what is applied less.
    SPOOL = enum.auto()
    #: The other end refuses to delete or turn back what was committed: nothing is pruned there.
    APPEND_ONLY = enum.auto()
    #: A writable copy of what a destination shows can be made (`begin_test`).
    COPY = enum.auto()


class Driver(abc.ABC):
    """One volume at one location; cheap to make, does nothing until asked."""

    kind: ClassVar[str]
    capabilities: ClassVar[Capability]
    #: On another host: what is done over a link may break off, and go on.
    remote: ClassVar[bool] = False

    def __init__(self, location: str) -> None:
        self.location = location
        self._locked = False
        #: How what it does waits for others; whoever uses it may set his own.
        self.waiting = Waiting()

    def __str__(self) -> str:
        return f"{self.kind}:{self.location}"

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

    # Snapshots

    @abc.abstractmethod
    def snapshots(self) -> list[Snapshot]:
        """The committed snapshots in this volume's keeping, oldest first by `order`: kinds
        REFERENCE and DIVERGED (and OWN that were received).
        """

    @abc.abstractmethod
    def own_snapshots(self, patterns: tuple[str, ...]) -> list[Snapshot]:
        """The owner's own snapshots of the live volume whose names match one of the globs,
        oldest first, kind OWN.
        """

    @abc.abstractmethod
    def take_snapshot(self, name: str) -> Snapshot:
        """A read-only snapshot of the live volume as of now, durable. One of that name that is
        there already (an earlier try) is returned as it is. Raises `NoSpace`.
        """

    @abc.abstractmethod
    def delete_snapshot(self, guid: str) -> None:
        """Delete one that `snapshots()` lists (never the one shown: `Refused`)."""

    def reclaim(self) -> None:  # noqa: B027 - most have nothing to hasten
        """Let the file system give back now what deleted snapshots held, where it would dawdle."""

    def base_left(self, guid: str) -> Snapshot | None:
        """What is left of a snapshot of the live volume that is gone, when an incremental can still
        begin from it: it may then be the base of `delta` and `send`, and of `changed_since`.
        """
        return None

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

    # Source

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

    # Destination

    @abc.abstractmethod
    def prepare(self, mirror_id: str, *, in_place: bool = False) -> None:
        """Make an ABSENT place the MIRROR of that id, empty, showing nothing. `Refused` when
        something is there already that is not this mirror's.

        in_place: the view is to be the location itself, not something in a folder there: a lost
        source is made anew where it was.
        """

    @abc.abstractmethod
    def receive(self, request: ReceiveRequest) -> Receiver:
        """Open a receiver into the staging place of `request.transfer_id`; goes on from the
        checkpoint if that staging has one (what is written then is what comes behind it; to begin
        anew, `discard` it first). `Diverged` when the base is not here or not intact.
        """

    @abc.abstractmethod
    def stagings(self) -> list[Staging]:
        """What earlier transfers left uncommitted, complete or not."""

    @abc.abstractmethod
    def commit(self, transfer_id: str, *, show: bool) -> Snapshot:
        """Make a complete staging a snapshot of this volume and, with `show`, the view, in one
        step. Called again after it succeeded: returns that snapshot. `NotFound` when there is
        no such staging and it was never committed.
        """

    @abc.abstractmethod
    def discard(self, transfer_id: str) -> None:
        """Remove a staging and all of its traces; nothing when there is none."""

    # Failing over and back

    @abc.abstractmethod
    def promote(self, guid: str | None = None) -> None:
        """MIRROR to LIVE: the view becomes writable, beginning as the snapshot `guid`; None: as the
        one it shows, or the newest intact one when that is missing or not intact. Needs no other
        end, no room for data and no intact metadata of mirrord's own. Immediate: no data are
        copied. Snapshots newer than `guid` stay. Nothing when it is LIVE already.
        """

    def writers(self, kept: str = "", *, limit: int = 20) -> list[OpenWriter]:
        """Who has files of the LIVE volume open for writing, at most `limit` of them: descriptors,
        shared writable mappings, loop devices, swap files; also through another mount of it.

        kept: of the DIVERGED snapshot of that name instead, where such a writer is not stopped.
        """
        return []

    def freeze(self) -> None:
        """Make every new write to the LIVE volume fail, and what was acknowledged durable. A writer
        that `writers` names may go on where the file system cannot stop it (btrfs).

        The freeze ends by `thaw`, `detach`, and by itself when this process ends, however it does:
        who is killed leaves no volume frozen. After a power cut `thaw` is needed.
        """
        raise Unsupported("a volume of this kind cannot be frozen", where=str(self))

    def thaw(self) -> None:
        """End a freeze, whoever began it; nothing when the LIVE volume is not frozen by mirrord."""
        raise Unsupported("a volume of this kind cannot be frozen", where=str(self))

    def mark(self) -> str:
        """Remember what the place is now; the text is for `is_marked`, also after a restart. A
        driver may leave a mark at the volume; the next `mark` replaces it, `forget` removes it.
        """
        raise Unsupported("a volume of this kind cannot be marked", where=str(self))

    def is_marked(self, mark: str) -> bool:
        """Whether the place is what it was at `mark`: the same role and the same volume, showing
        the same snapshot, and not a byte was written since, also not one that is still on its way
        to disk. False when in doubt.
        """
        raise Unsupported("a volume of this kind cannot be marked", where=str(self))

    def begin_test(self, place: str = "") -> VolumeFacts:
        """Make a writable copy of what a MIRROR shows, a LIVE volume of its own that shares what
        it can; the mirror goes on as it is. One copy at a time; called again, it returns that one.

        place: its location; "" for one beside this volume's. Returns its facts. Raises `Refused`
        when something else is there, `NoSpace`.
        """
        raise Unsupported("a volume of this kind has no writable copies", where=str(self))

    def end_test(self) -> bool:
        """Remove that copy, with all that was written to it; whether there was one.

        Raises `Refused` when the copy has snapshots or volumes of its own, `Busy` when it is used.
        """
        raise Unsupported("a volume of this kind has no writable copies", where=str(self))

    @abc.abstractmethod
    def divergence(self, guid: str, *, limit: int = 100) -> Divergence:
        """What `rollback(guid)` would take from the live volume's users."""

    @abc.abstractmethod
    def rollback(self, guid: str, *, mirror_id: str, keep_as: str) -> str | None:
        """LIVE (lost, or a MIRROR whose newer snapshots must go) to MIRROR of `mirror_id`, showing
        snapshot `guid`. Snapshots newer than `guid` stay.

        What was LIVE is never deleted unproven: it is set aside in the same step, frozen, and kept
        as a DIVERGED snapshot. Only when it is then certain that it holds what `guid` holds, and
        nobody has a file in it open for writing (`writers`), it is dropped. Returns the name by
        which it is kept (`keep_as`, or one like it when that is taken); None: nothing is.
        What such writers still write goes into what is kept, or fails.
        """

    def reinstate(self, name: str) -> None:
        """Undo an unfinished `rollback(keep_as=name)`: what was set aside is LIVE again, writable,
        in the place of the view. Nothing when it is LIVE already; `NotFound` when nothing is kept.
        """
        raise Unsupported("a volume of this kind cannot be put back", where=str(self))

    @abc.abstractmethod
    def forget(self) -> None:
        """The mirror is no more: drop its marks, lock and stagings. Snapshots and view stay."""


# The texts that all drivers share, so that all say the same thing.


def replaced(where: str, why: str) -> MirrordError:
    """The live volume at the source is not the one that is mirrored."""
    return Diverged(
        "another volume has taken the place of the source",
        where=where,
        why=why,
        hint="Nothing was transferred, and every copy is kept. Put the volume back in its place; "
        "or 'mirrord change-source NAME ENDPOINT' if it was moved; or, if this one is to be "
        "mirrored from now on, 'mirrord resync NAME'.",
    )


def frozen_elsewhere(where: str) -> MirrordError:
    """Another process of mirrord is about to switch the volume."""
    return Busy(
        "the volume is frozen by another mirrord process",
        where=where,
        why="it is about to switch the volume",
        hint="Wait for it to end.",
    )


def base_missing(where: str, guid: str) -> MirrordError:
    """The base is not there (any more)."""
    return Diverged(
        "the base snapshot is not there",
        where=where,
        why=f"no intact snapshot with the identity {guid}: it was deleted or made writable",
        hint="'mirrord explain NAME' shows which snapshots both ends still have; 'mirrord resync "
        "NAME' goes on from the newest of them.",
    )


def snapshot_missing(where: str, guid: str) -> MirrordError:
    """A snapshot was asked for that is not in this volume's keeping."""
    return NotFound("no such snapshot", where=where, why=f"none has the identity {guid}")


def staging_missing(where: str, transfer_id: str) -> MirrordError:
    """A commit of something that was never received."""
    return NotFound("nothing is staged", where=where, why=f"transfer {transfer_id} is not known")


def not_live(where: str) -> MirrordError:
    """An operation on the live volume of a place that has none."""
    return Refused(
        "there is no live volume here",
        where=where,
        why="it is a destination that only shows snapshots, or nothing at all",
        hint="Name the source volume, or make the destination live with 'mirrord break NAME'.",
    )


def not_a_mirror(where: str) -> MirrordError:
    """A destination operation on a place that is not a destination."""
    return Refused(
        "this is not the destination of a mirror",
        where=where,
        why="it was never initialized, or it was made live by 'mirrord break'",
        hint="Use 'mirrord initialize NAME', or 'mirrord resync NAME' after a break.",
    )


def not_empty(where: str, found: str) -> MirrordError:
    """The destination is something that is not ours; found: what, as a clause ("it holds 'x'")."""
    return Refused(
        "the destination is not empty",
        where=where,
        why=f"{found}; mirrord did not make that and will not touch it",
        hint="Give a path that does not exist yet, or an empty directory.",
    )


def nothing_shown(where: str) -> MirrordError:
    """There is no complete update yet."""
    return Refused(
        "the destination shows nothing yet", where=where,
        hint="Run 'mirrord initialize NAME' to its end first.",
    )  # fmt: skip


def other_copy(where: str, there: str) -> MirrordError:
    """A second writable copy was asked for."""
    return Refused(
        "there is a writable copy already", where=where, why=f"it is {there}",
        hint="Remove that first: 'mirrord break NAME --end-test'.",
    )  # fmt: skip


def other_mirror(where: str, mirror_id: str) -> MirrordError:
    """The destination belongs to another mirror."""
    return Refused(
        "the destination belongs to another mirror",
        where=where,
        why=f"it was prepared for the mirror with the id {mirror_id}",
        hint="Give each mirror a destination of its own.",
    )


def no_space(where: str, why: str) -> MirrordError:
    """The file system is full."""
    return NoSpace(
        "no space is left on the file system",
        where=where,
        why=why,
        hint="Free space there and run the same command again; nothing that was committed is lost.",
    )


def stream_damaged(where: str, why: str) -> MirrordError:
    """A stream that does not hold what it should."""
    return Damaged(
        "the stream is damaged",
        where=where,
        why=why,
        hint="Nothing was applied; run the same command again.",
    )


def permission_missing(where: str, what: str) -> MirrordError:
    """A privilege is missing."""
    return PermissionMissing(
        "permission is missing",
        where=where,
        why=what,
        hint="Run it as root (or with sudo).",
    )
