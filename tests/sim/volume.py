"""Volumes in memory: what is on disk, and what a checker wants to know of its past.

A volume maps block numbers to versions: a version is drawn from a counter of the disk when the
block is written, so equal versions mean equal content wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mirrord.core.errors import Busy
from mirrord.core.model import ReceiveRequest, Role, Snapshot, SnapshotKind, Staging
from mirrord.core.relationship import Relationship
from mirrord.drivers.pins import Pins
from mirrord.system import clock
from tests.sim.stream import Change, Geometry

Blocks = dict[int, int]


def digest_of(blocks: Blocks) -> int:
    """A digest that a write can bring up to date. Hashes of numbers are the same in each run."""
    whole = 0
    for change in blocks.items():
        whole ^= hash(change)
    return whole


class Body:
    """The content of a volume that is or was live. Who has a file of it open writes to this very
    one, wherever it is by then.

    origin: guid of the snapshot that it began as. writers: how many descriptors are open.
    """

    def __init__(
        self, number: int, blocks: Blocks | None = None, origin: str | None = None
    ) -> None:
        self.number = number
        self.blocks: Blocks = blocks if blocks is not None else {}
        self.digest = digest_of(self.blocks)
        self.origin = origin
        self.writers = 0
        self.changes = 0

    def write(self, changes: Iterable[Change]) -> None:
        """Set blocks to versions; 0 removes a block."""
        blocks, digest = self.blocks, self.digest
        self.changes += 1
        for block, version in changes:
            old = blocks.get(block)
            if old is not None:
                digest ^= hash((block, old))
            if version:
                blocks[block] = version
                digest ^= hash((block, version))
            else:
                blocks.pop(block, None)
        self.digest = digest


@dataclass(slots=True)
class Entry:
    """A snapshot with its content. transfer: by which it came here, or "". body: the content
    when it was taken; of a diverged one, what it is, with all that is still written to it.
    """

    snapshot: Snapshot
    blocks: Blocks
    digest: int
    transfer: str = ""
    body: Body | None = None

    @property
    def owners(self) -> bool:
        """Taken by the owner of this volume."""
        return self.snapshot.kind is SnapshotKind.OWN and not self.transfer


@dataclass(slots=True)
class Staged:
    """What a receive has made durable. following: the block from which a new send goes on."""

    request: ReceiveRequest
    changes: Blocks = field(default_factory=dict)
    following: int = 0
    received_bytes: int = 0
    entry: Entry | None = None

    def staging(self) -> Staging:
        checkpoint = {"block": self.following} if self.following else None
        return Staging(
            self.request.transfer_id,
            self.request.base,
            self.request.snapshot,
            self.entry is not None,
            checkpoint,
            self.received_bytes,
        )


@dataclass(slots=True)
class Span:
    """From when until when (real time) a volume had the content of a snapshot."""

    since_s: float
    until_s: float | None = None


class Volume:
    """What is on disk at one location."""

    def __init__(self, identity: str, role: Role) -> None:
        self.identity = identity
        self.role = role
        self.body = Body(0)
        #: What was live and is neither kept nor dropped yet, by the name to keep it by.
        self.aside: dict[str, Body] = {}
        self.frozen = False
        self.entries: dict[str, Entry] = {}
        self.staged: dict[str, Staged] = {}
        self.next_order = 1
        self.mirror_id = ""
        self.pins: Pins = {}
        self.relationships: dict[str, Relationship | None] = {}
        self.shown: str | None = None
        #: For checkers: when the live content was what each snapshot holds, by digest.
        self.spans: dict[int, Span] = {}
        #: And when each was taken, by guid.
        self.taken_s: dict[str, float] = {}
        self._since_s = clock.boottime_s()

    @property
    def live(self) -> Blocks:
        """The live content."""
        return self.body.blocks

    @property
    def digest(self) -> int:
        """Of the live content."""
        return self.body.digest

    @property
    def origin(self) -> str | None:
        """The snapshot that the live content began as."""
        return self.body.origin

    def write(self, changes: Iterable[Change]) -> None:
        """Set blocks to versions; 0 removes a block. `Busy` while it is frozen."""
        if self.frozen:
            raise Busy("the volume is frozen")
        self.end_span()
        self.body.write(changes)

    def end_span(self) -> None:
        """The live content is about to be another."""
        self._since_s = clock.boottime_s()
        span = self.spans.get(self.digest)
        if span is not None and span.until_s is None:
            span.until_s = self._since_s

    def add(self, snapshot: Snapshot, blocks: Blocks, digest: int, transfer: str = "") -> Entry:
        """Keep a snapshot, as the newest of this volume."""
        entry = Entry(snapshot._replace(order=self.next_order), blocks, digest, transfer)
        self.next_order += 1
        self.entries[snapshot.guid] = entry
        return entry

    def take(self, guid: str, name: str, kind: SnapshotKind) -> Entry:
        """Keep the live content as a snapshot."""
        self.spans.setdefault(self.digest, Span(self._since_s))
        self.taken_s[guid] = clock.boottime_s()
        snapshot = Snapshot(guid, name, kind, 0, clock.now_ns())
        entry = self.add(snapshot, self.live.copy(), self.digest)
        entry.body = self.body
        return entry

    def bodies(self) -> list[Body]:
        """What is live or was, here."""
        kept = (entry.body for entry in self.entries.values())
        return [self.body, *self.aside.values(), *(body for body in kept if body is not None)]

    def is_related(self, entry: Entry) -> bool:
        """Whether the live content is that of which a snapshot was taken, or began as one of ours:
        an incremental of it can be sent.
        """
        return entry.body is self.body or self.body.origin in self.entries

    def view(self) -> Blocks:
        """What users see."""
        if self.role is Role.LIVE:
            return self.live
        shown = self.entries.get(self.shown or "")
        return shown.blocks if shown is not None else {}


class Disk:
    """All volumes by their locations.

    foreign: locations that hold somebody's data. full: where nothing can be written now.
    """

    def __init__(self, geometry: Geometry | None = None) -> None:
        self.geometry = geometry or Geometry()
        self.volumes: dict[str, Volume] = {}
        self.foreign: set[str] = set()
        self.full: set[str] = set()
        self.held: dict[str, str] = {}
        self._drawn = 0

    def draw(self) -> int:
        """A number that was never drawn before: a version, or part of an identity."""
        self._drawn += 1
        return self._drawn

    def create(self, location: str, blocks: int) -> Volume:
        """A live volume with some content."""
        volume = self.volumes[location] = Volume(f"v{self.draw()}", Role.LIVE)
        volume.body = Body(self.draw())
        volume.write([(number, self.draw()) for number in range(1, blocks + 1)])
        return volume
