"""The values that travel between drivers, engine and CLI. All are immutable."""

import enum
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from mirrord.core.policies import WRITTEN, PolicyKeys
from mirrord.core.units import MERGE_ABOVE

#: The path of a file in a volume: bytes; each byte that is not UTF-8 is one lone surrogate
#: (mirrord.core.text). Escape it before showing it.
FileName = Annotated[str, "bytes on the wire"]
#: A name that is used at the volume's end as part of a path. One sent by a peer is checked first.
Name = Annotated[str, "no path"]


class Role(enum.Enum):
    """What is at a location."""

    ABSENT = "absent"  # nothing there, or an empty directory: can become a destination
    LIVE = "live"  # a writable volume: a source, or a promoted destination
    MIRROR = "mirror"  # a destination: its view is read-only and switched by commits
    FOREIGN = "foreign"  # not empty and not managed by mirrord: never touched


class SnapshotKind(enum.Enum):
    """What a snapshot is for."""

    REFERENCE = "reference"  # taken by mirrord for a mirror
    OWN = "own"  # a user snapshot, replicated when the definition names it
    DIVERGED = "diverged"  # the losing side of a resync, kept


class Snapshot(NamedTuple):
    """One copy of one snapshot, at one end.

    guid: the identity of the content: two snapshots with one guid, both `intact`, are equal
        block for block. Never a name or a time.
    name: as given by the source.
    order: position in this volume's history; grows with each snapshot taken or received there.
    taken_at_ns: when the source took it, by the source's clock; for display only.
    path: where its files can be read, or "" when the driver has no such path.
    intact: read-only and not modified since it was taken or received.
    pinned: ids of the mirrors that have pinned it (`Driver.pin`), this volume's only.
    unrelated: the LIVE volume here is not the one from which it was taken, and did not begin as one
        of this volume's snapshots: the original volume was replaced by another one.
    aside: the volume was rolled back to before it, and no incremental of the present volume can be
        based on it. (Always false where one can, as on btrfs.)
    spread_ns: how far apart in time its parts were taken, where it has several that cannot be taken
        in one step (`nested`); known only when it is taken.
    """

    guid: str
    name: str
    kind: SnapshotKind
    order: int
    taken_at_ns: int
    path: str = ""
    intact: bool = True
    pinned: tuple[str, ...] = ()
    aside: bool = False
    unrelated: bool = False
    spread_ns: int = 0


#: What is known of a snapshot whose record cannot be read.
UNKNOWN_SNAPSHOT = Snapshot("", "", SnapshotKind.REFERENCE, 0, 0, intact=False)


#: How a note begins that says that a volume has lost data.
DATA_MISSING = "Data is missing"


class VolumeFacts(NamedTuple):
    """What a driver knows about the volume at a location, without changing anything.

    identity: of the live volume (ABSENT and FOREIGN: ""); two locations with one identity are
        the same volume.
    filesystem: identity of its file system or pool; equal for volumes that share free space.
    view: the path at which users see the volume (the destination view of a mirror).
    shown: guid of the snapshot that a MIRROR shows, else None.
    mirror_id: the mirror a destination was prepared for, else "".
    origin: of a LIVE volume that was promoted: guid of the snapshot it began as, else None.
    used_bytes, free_bytes: of that file system or pool, for forecasts.
    copy: location (of the same kind) of the writable copy that `begin_test` made, else "".
    frozen: whether a LIVE volume is frozen by mirrord (`Driver.freeze`).
    mount: the mount point above the location, "" where that has no meaning (a pool).
    fixed: why a LIVE volume cannot become a destination (it is a mount point, …), or "".
    parent_missing: an ABSENT location has nothing to be created in (its parent does not exist, its
        pool is not imported); the first note says what.
    notes: notes for users, each a full sentence (nested subvolumes, …); for a FOREIGN location or
        an empty directory the first describes it as a clause ("it holds 'x'").
    """

    kind: str
    location: str
    role: Role
    identity: str
    filesystem: str
    view: str
    shown: str | None = None
    mirror_id: str = ""
    origin: str | None = None
    used_bytes: int = 0
    free_bytes: int = 0
    fixed: str = ""
    notes: tuple[str, ...] = ()
    copy: str = ""
    frozen: bool = False
    mount: str = ""
    parent_missing: bool = False

    @property
    def data_missing(self) -> list[str]:
        """The notes that say that the volume has lost data."""
        return [note for note in self.notes if DATA_MISSING in note]


class OpenWriter(NamedTuple):
    """A process that has a file of a live volume open for writing.

    pid: 0 for the kernel itself (a loop device, a swap file). process: the name of the program.
    path: the file, as that process sees it.
    """

    pid: int
    process: str
    path: FileName


class BlockStates(NamedTuple):
    """How many blocks are in each of the four states (SnapMirror, FAST'02, section 3.2.2)."""

    unused: int
    unchanged: int
    deleted: int
    added: int


class FileChange(NamedTuple):
    """One changed file: its path in the volume, what happened, and the bytes to be sent."""

    path: FileName
    change: str  # added | modified | deleted | renamed | metadata
    data_bytes: int = 0


class Delta(NamedTuple):
    """The difference between base and incremental.

    base: guid of the base, or None when everything is sent (initialize).
    block_size: bytes of a block in `states`.
    states: the four counts; None when only the changes were read.
    added_bytes: bytes of blocks that are in the incremental only.
    send_bytes: length of the stream in bytes, an estimate unless `exact`.
    changes: changed files, when requested and supported by the driver.
    """

    base: str | None
    incremental: str
    block_size: int
    states: BlockStates | None
    added_bytes: int
    send_bytes: int
    exact: bool = False
    changes: tuple[FileChange, ...] | None = None


class Changes(NamedTuple):
    """What was allocated and what was freed between two snapshots, block by block: the records
    that SnapMirror's traces are made of (FAST'02, section 4).

    allocated, freed: runs in bytes, each three little-endian uint64: object, offset, length. They
        begin on a block boundary and cover full blocks, except that an allocated run may end with
        its file. Object 0: offsets are addresses of the volume (its blocks as the driver numbers
        them); others: offsets within that object (a file, a segment …). A freed run may extend
        beyond what was ever allocated.
    gone: (first, end): ranges of numbers of deleted objects.
    """

    allocated: bytes
    freed: bytes
    gone: tuple[tuple[int, int], ...] = ()


class Divergence(NamedTuple):
    """What a rollback would lose: everything that the live volume has beyond `base`.

    changes: the changed files, at most `limit` of them, or None when the driver has no files.
    total_changes: how many there are in all.
    newer_snapshots: names of snapshots of the volume that are newer than `base`.
    """

    base: str
    changed_bytes: int
    changes: tuple[FileChange, ...] | None
    total_changes: int
    newer_snapshots: tuple[str, ...] = ()


class ReceiveRequest(NamedTuple):
    """What a receiver is going to receive. `transfer_id` names the staging.

    resumable: keep a checkpoint, even where that has a cost. local: both ends are on one host:
        checkpoints may be rarer. resume_bytes: how much of the stream is skipped, according to the
        staging's checkpoint; None: not known (an older peer).
    """

    transfer_id: str
    mirror_id: str
    base: str | None
    snapshot: Snapshot
    resumable: bool = False
    local: bool = False
    resume_bytes: int | None = None


class Staging(NamedTuple):
    """A fully or partly received snapshot that is not committed.

    complete: all of it arrived and was verified: it may be committed.
    checkpoint: where a new send can resume, opaque to all but the driver; None: from the start.
    received_bytes: bytes of the stream up to the checkpoint.
    """

    transfer_id: str
    base: str | None
    snapshot: Snapshot
    complete: bool
    checkpoint: Mapping[str, int | str] | None = None
    received_bytes: int = 0


class Endpoint(NamedTuple):
    """Where a volume lives: a driver's kind, a location that the driver understands, and the host.

    host: "" for this one; otherwise `[user@]name[:port]`, where the name is a host's or that of
    a file in hosts.d.
    """

    kind: str
    location: str
    host: str = ""

    def __str__(self) -> str:
        if not self.host:
            return f"{self.kind}:{self.location}"
        slash = "" if self.location.startswith("/") else "/"  # a dataset name has no leading slash
        return f"{self.kind}://{self.host}{slash}{self.location}"


class RemoteHost(NamedTuple):
    """How another host is reached (docs/config.md, hosts.d).

    name: as endpoints and messages name it. address: its name or IP address; port: 0 for the
    default. user: "" for the default. transport: "ssh" (Paramiko), "openssh" (the program ssh),
    "tls" (a mirrord that listens), "unix" (a socket at `address`). key: file of a private key ("":
    the SSH agent and the default keys; for TLS the bundle that `mirrord pki issue` made).
    fingerprint: the only host key that is accepted, as `SHA256:…`; "" for known_hosts. jump: name
    of the jump host. command: what runs at the other end. data: "auto" for separate TLS data
    connections next to SSH, "ssh" for none. sockets: how many of those; 0: as the link needs.
    compress: "auto", "off", or a zstd level "1" to "19".
    """

    name: str
    address: str
    port: int = 0
    user: str = ""
    transport: str = "ssh"
    key: str = ""
    fingerprint: str = ""
    jump: str = ""
    command: tuple[str, ...] = ("mirrord", "agent")
    data: str = "auto"
    sockets: int = 0
    compress: str = "auto"
    connect_s: float = 10.0


class Caps(NamedTuple):
    """How many transfers may run at once: in total, per host, per destination file system."""

    transfers: int = 4
    per_host: int = 4
    per_filesystem: int = 2


class Timing(NamedTuple):
    """When a mirror runs, as written in its definition (mirrord.schedules parses it).

    rules: cron lines, intervals, a lag target, or the name of one named schedule. zone, jitter,
    windows and blackouts: "" or () when they are not given.
    """

    rules: tuple[str, ...] = ()
    zone: str = ""
    jitter: str = ""
    windows: tuple[str, ...] = ()
    blackouts: tuple[str, ...] = ()


class HookCommands(NamedTuple):
    """Programs that run around snapshots and transfers: each an argument list, () for none."""

    before_snapshot: tuple[str, ...] = ()
    after_snapshot: tuple[str, ...] = ()
    before_transfer: tuple[str, ...] = ()
    after_transfer: tuple[str, ...] = ()
    timeout_s: float = 60.0


class Pace(NamedTuple):
    """How fast a mirror may transfer.

    throttle: rates as written, "" for unlimited. borrow: factor by which the rate is raised while
    the RPO is at risk. io_pressure: percent above which it backs off, None: never. link: the name
    of the link that it shares with others, "" for none.
    """

    throttle: str = ""
    borrow: float = 1.0
    io_pressure: float | None = None
    link: str = ""


class Promise(NamedTuple):
    """The recovery point objective (RPO) of a mirror, and when alarms are raised.

    rpo_s: the maximum lag, or None. warn, error: percent of that (or of the schedule's period) at
    which alarms are raised. stall_s: a transfer that moves no byte for this long has stalled.
    """

    rpo_s: float | None = None
    warn: int = 150
    error: int = 250
    stall_s: float = 30.0


class Pausing(NamedTuple):
    """How the application is paused while snapshots are taken (mirrord.pausers).

    pauser: `KIND:ARGUMENT`, "" or "none" for no pause; that of a member overrides it. max_s: it
    resumes by itself after that time. alarm_s: a longer pause raises an alarm.
    """

    pauser: str = ""
    max_s: float = 1.0
    alarm_s: float = 0.5


class Verifying(NamedTuple):
    """How a mirror is verified. rate: bytes per second at each end, 0: unlimited. max_age_s: at
    which age of the last verification an alarm is raised, None: never. updates: each update is
    verified before it is committed. schedule: the rules by which the service verifies; mode: what
    it reads then (`mirrord.core.verification.parse_mode`).
    """

    rate: int = 0
    max_age_s: float | None = None
    updates: bool = False
    schedule: tuple[str, ...] = ()
    mode: str = "full"


class Site(NamedTuple):
    """One of the two sites of a mirror: its name, and the volume of each member there."""

    name: str
    endpoints: tuple[Endpoint, ...]


#: Kinds of volumes that are mirrored write by write, not by snapshots.
LIVE_KINDS = frozenset({"image"})
#: The names that `mirrord create` gives to the sites, the first source first.
SITE_NAMES = ("primary", "secondary")


class Member(NamedTuple):
    """One pair of volumes of a mirror. name: "" for the only one of a mirror without [[member]].
    pause: the pauser of what writes to it; "": that of the mirror.
    """

    name: str
    source: Endpoint
    destination: Endpoint
    pause: str = ""


class Definition(NamedTuple):
    """A mirror as its TOML file defines it (docs/config.md), as it applies while `source_site` is
    the source.

    source, destination: of the first member. members: those of the [[member]] tables; () when the
        file has none: then source and destination are the only member (`pairs`).
    site_names: in the order of the file; the first is the source unless the other is recorded.
    keep_source, keep_destination: which reference snapshots are kept at each end: a number (of the
        newest) or rules (mirrord.schedules.retention); the base is always kept.
    snapshots: glob patterns; the source's own snapshots whose names match are replicated.
    hooks: of the source's site.
    prune_share: a prune that would delete more than this share is refused.
    retries: how often the scheduler retries a command that failed with a retryable error.
    checkpoint_days: how long the checkpoint of an interrupted transfer is kept.
    policy, policy_keys: of a live mirror.
    window: how far a replica may be behind in semi-sync, in bytes or seconds; "": 16 MiB.
    merge_above, compress: what a primary saves on the link (`Live.live_traffic`).
    ack: where a write is when it is answered in sync: `WRITTEN` or `DURABLE` at both ends.
    link_addresses: where each site listens for the replica link of a live mirror, in the order of
        `site_names`; "": found out.
    """

    name: str
    id: str
    source: Endpoint
    destination: Endpoint
    policy: str = "async"
    policy_keys: PolicyKeys = PolicyKeys()
    window: str = ""
    merge_above: int = MERGE_ABOVE
    compress: bool = True
    ack: str = WRITTEN
    keep_source: int | str = 2
    keep_destination: int | str = 10
    snapshots: tuple[str, ...] = ()
    file: str = ""
    timing: Timing = Timing()
    promise: Promise = Promise()
    pace: Pace = Pace()
    verify: Verifying = Verifying()
    hooks: HookCommands = HookCommands()
    prune_share: float = 0.5
    retries: int = 5
    checkpoint_days: int = 7
    site_names: tuple[str, str] = SITE_NAMES
    source_site: str = SITE_NAMES[0]
    members: tuple[Member, ...] = ()
    pausing: Pausing = Pausing()
    link_addresses: tuple[str, str] = ("", "")

    @property
    def is_live(self) -> bool:
        """Whether each write is mirrored, not snapshots."""
        return self.source.kind in LIVE_KINDS

    @property
    def verification_timing(self) -> Timing:
        """When the service verifies it."""
        return Timing(rules=self.verify.schedule, zone=self.timing.zone)

    @property
    def pairs(self) -> tuple[Member, ...]:
        """All members, in order."""
        return self.members or (Member("", self.source, self.destination),)

    @property
    def pausers(self) -> tuple[str, ...]:
        """For each member, the pauser of what writes to it; "" for none."""
        found = (pair.pause or self.pausing.pauser for pair in self.pairs)
        return tuple("" if one == "none" else one for one in found)

    @property
    def destination_site(self) -> str:
        """The name of the site that is the destination."""
        first, second = self.site_names
        return second if self.source_site == first else first

    @property
    def sites(self) -> tuple[Site, Site]:
        """Both sites, in the order of the file."""
        source = Site(self.source_site, tuple(pair.source for pair in self.pairs))
        destination = Site(self.destination_site, tuple(pair.destination for pair in self.pairs))
        return (destination, source) if self.reversed else (source, destination)

    @property
    def reversed(self) -> bool:
        """Whether the sites have changed roles: the source is not the first one of the file."""
        return self.source_site != self.site_names[0]
