"""What is known of a live mirror: its modes, and what the processes at its ends report."""

import enum
from typing import NamedTuple

from mirrord.core.units import MERGE_ABOVE

#: What is tracked as one: an extent of the image.
EXTENT_BYTES = 1 << 20
#: A resync always has so many bytes per second, so that it ends.
COPY_RATE_MIN = 1 << 20


class Mode(enum.Enum):
    """When a write to a live mirror is acknowledged: when the primary has it and changes are
    tracked; when the primary has it and the replica is at most a window behind; when both ends
    have it; the same, and it fails when the replica can't have it.
    """

    ASYNC = "async"
    SEMI_SYNC = "semi-sync"
    SYNC = "sync"
    STRICT_SYNC = "strict-sync"


class ImageFacts(NamedTuple):
    """An image. size_bytes: None when there is none. blank: it holds no data. in_use: who uses it,
    as a clause, or "".
    """

    size_bytes: int | None = None
    blank: bool = True
    in_use: str = ""


class LiveSetup(NamedTuple):
    """What an end is created for. site: which end it is. volume: 32 hexadecimal digits, the same at
    both ends. primary: clients' writes begin here. replaces: the volume of the records that may be
    there; "" for none. certificate, key: of this end, and trusted: that of the other one (PEM), for
    TLS between them; "" for none.
    """

    mirror_id: str
    name: str
    site: str
    volume: str
    primary: bool
    size_bytes: int
    certificate: str = ""
    key: str = ""
    trusted: str = ""
    replaces: str = ""


class VerifyStatus(NamedTuple):
    """A comparison of the images. state: none, running, stopped or complete. differing: (offset,
    length) of the first ranges that differ.
    """

    state: str = "none"
    checked_bytes: int = 0
    differing_bytes: int = 0
    differing: tuple[tuple[int, ...], ...] = ()


class LiveStatus(NamedTuple):
    """What one end reports. The fields from `role` on are those of the running process
    (native/live/src/control.rs).

    volume: "" when nothing was created here. link: where the other end connects to. served: where
    clients connect to. controller: see `Live.live_control`. problem: why the process does not run,
    or "".
    role: primary, secondary or fenced. in_sync: every acknowledged write is at both ends. since:
    when that changed (seconds since 1970, by the primary's clock); of a secondary, and of a primary
    that was broken off: until when it has every write that was acknowledged; 0: not known.
    refused: the reason is that the replica refused what it was asked, or failed.
    unfenced: a primary's; the other end may not know yet that it is none any more. lost_memory: a
    secondary's host was started again, and writes that were not flushed may be missing.
    generation: 0 until the first copy is complete. oldest_us: how long the oldest unanswered write
    has been waiting. local_us, mirrored_us: median, 95th and 99th percentile of the last 10 to 20
    seconds, for the local image and for the client. copy_rate: of a resync, bytes per second; 0:
    unlimited. window_bytes, window_us: how far the replica may be behind in semi-sync (0: no limit
    in time); lag_bytes, lag_us: how far it is. window_full: writes wait for it. lag_limit_bytes: M,
    how much of the window is in force; answer_within_us: it grows when a write has waited for so
    long, 0: it does not. recording: its writes are recorded. answered, local, received: writes
    since the start of the process, and how long they took in total (us), until the client's
    answer, on the local image, and from when they were sent until the replica had them.
    slowest_us: the longest wait for an answer beyond the local image in the last half second to
    second. buffered_bytes: sent, and not at the replica.
    merge, merge_above_bytes, compress, durable: see `Live.live_merge` and `Live.live_traffic`.
    merged_writes, merged_bytes: replaced by later ones before they were sent; included in
    sent_bytes. payload_bytes: what the link was given; link_bytes: the same after compression.
    breaking: a secondary becomes a primary; before that redo_operations are applied, or
    rollback_left before-images written back. break_problem: why the last attempt failed.
    io: what reads and writes the image, `io_uring` or `threads`; io_reason: why it is not io_uring.
    """

    mirror_id: str = ""
    volume: str = ""
    link: str = ""
    served: tuple[str, ...] = ()
    controller: str = ""
    running: bool = False
    problem: str = ""
    role: str = ""
    state: str = ""
    mode: str = ""
    epoch: int = 0
    generation: int = 0
    in_sync: bool = False
    since: int = 0
    unfenced: bool = False
    lost_memory: bool = False
    connected: bool = False
    reason: str = ""
    refused: bool = False
    dirty_bytes: int = 0
    tracked_extents: int = 0
    outstanding_requests: int = 0
    outstanding_bytes: int = 0
    oldest_us: int = 0
    writes: int = 0
    written_bytes: int = 0
    flushes: int = 0
    sent_bytes: int = 0
    copied_bytes: int = 0
    left_sync: int = 0
    copy_rate: int = 0
    window_bytes: int = 0
    window_us: int = 0
    lag_bytes: int = 0
    lag_us: int = 0
    window_full: bool = False
    recording: bool = False
    lag_limit_bytes: int = 0
    answer_within_us: int = 0
    buffered_bytes: int = 0
    merge: bool = True
    merge_above_bytes: int = MERGE_ABOVE
    merged_writes: int = 0
    merged_bytes: int = 0
    compress: bool = True
    durable: bool = False
    payload_bytes: int = 0
    link_bytes: int = 0
    slowest_us: int = 0
    answered: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    local_us: tuple[int, ...] = ()
    mirrored_us: tuple[int, ...] = ()
    before_image_bytes: int = 0
    redo_operations: int | None = None
    io: str = ""
    io_reason: str = ""
    verify: VerifyStatus = VerifyStatus()
    breaking: bool = False
    rollback_left: int = 0
    break_problem: str = ""

    @property
    def is_primary(self) -> bool:
        """Whether it serves clients, or could."""
        return self.role == "primary"

    @property
    def is_semi_sync(self) -> bool:
        """Whether the replica has a prefix of the writes, at most a window behind."""
        return self.state == "semi-sync"


class LiveReading(NamedTuple):
    """Both ends of a live mirror. None: the end can't be reached. read_ns: when it was read (wall
    time). controller: another host, whose policy and settings are in force; "": this one's are.
    """

    policy: str
    source: LiveStatus | None
    destination: LiveStatus | None
    read_ns: int
    controller: str = ""

    @property
    def primary(self) -> LiveStatus | None:
        """The end that decides: the primary of the highest epoch."""
        found = [end for end in (self.source, self.destination) if end and end.is_primary]
        return max(found, key=lambda end: end.epoch, default=None)

    @property
    def is_turned(self) -> bool:
        """Whether the source is the secondary of the destination."""
        is_copy = self.source is not None and self.source.role == "secondary"
        return is_copy and self.destination is not None and self.destination.is_primary

    @property
    def lag_s(self) -> float | None:
        """How old the replica is; 0 in sync, None when it is not known."""
        primary = self.primary
        if primary is None or not primary.generation:
            return None
        if primary.is_semi_sync:
            return primary.lag_us / 1e6
        return 0.0 if primary.in_sync else max(0.0, self.read_ns / 1e9 - primary.since)
