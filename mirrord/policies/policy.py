"""`Policy`: from what is observed of a mirror to what it should do."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mirrord.core.live import Mode

Memory = TypeVar("Memory")


class Count(NamedTuple):
    """Writes since the beginning, and how long they took in total."""

    writes: int = 0
    total_us: float = 0


class Observation(NamedTuple):
    """A live mirror at one moment. now_s: monotonic; wall_ns: since 1970. mode: in force now.
    lag_s: None before the first copy is complete. mirrored_us: median, 95th and 99th percentile of
    the last seconds, the oldest unanswered write included. outstanding_bytes: not answered yet.
    dirty_bytes: to copy.

    answered: to clients. local: written
    to local storage. received: from their arrival (in a live mirror, from when they are sent) to
    the replica's acknowledgement. oldest_us: how
    long the oldest unanswered write has waited. slowest_us: the longest wait for an answer beyond
    local storage since the last observation. lag_limit_bytes: M in force. buffered_bytes: not
    acknowledged by the replica; peak_buffered_bytes: the most since the last observation.
    """

    now_s: float
    mode: Mode
    connected: bool
    in_sync: bool
    lag_s: float | None
    mirrored_us: tuple[int, ...] = ()
    outstanding_bytes: int = 0
    dirty_bytes: int = 0
    wall_ns: int = 0
    answered: Count = Count()
    local: Count = Count()
    received: Count = Count()
    oldest_us: float = 0
    slowest_us: float = 0
    lag_limit_bytes: int = 0
    buffered_bytes: int = 0
    peak_buffered_bytes: int = 0


class Directive(NamedTuple):
    """What the mirror should do. It holds until the next one, also when the policy fails.

    wake_at_s: when to ask again at the latest (monotonic); None: whenever it is observed.

    Outside of synchronous mode: a write is answered when no more than M bytes up to it are not at
    the replica. lag_bytes: M; None: as it is. answer_within_us: when a write has waited for so
    long, M grows to answer all writes that have waited for half of it; None: M is fixed; at the
    change from synchronous mode M is what answers those. max_lag_bytes: M never grows beyond it.
    merge: of two writes of one place that wait for the link only the newer is sent. copy: what is
    tracked is sent.
    """

    mode: Mode
    wake_at_s: float | None = None
    lag_bytes: int | None = None
    answer_within_us: float | None = None
    max_lag_bytes: int | None = None
    merge: bool = False
    copy: bool = True


class Policy(Protocol, Generic[Memory]):
    """A policy. It keeps nothing itself: what it remembers is passed to it again."""

    def begin(self) -> Memory:
        """The memory before the first decision."""

    def decide(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        """What to do, and what to remember."""


#: A policy of any memory.
AnyPolicy = Policy[Any]
