"""A simulated link: its rate is shared, its round trip is waited for, and it breaks on request.

All time is taken by `clock.sleep_s`, so under `tests.sim.world` it is simulated time.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrord.core.errors import TransferFailed
from mirrord.system import clock


class Wire:
    """What all links of one host share: chunks go over it one after the other, at `rate_bps`
    bytes a second, so that transfers at one time share it chunk by chunk.
    """

    def __init__(self, rate_bps: float, round_trip_s: float) -> None:
        self.rate_bps = rate_bps
        self.round_trip_s = round_trip_s
        self.carried_bytes = 0
        self._free_s = 0.0

    def occupy(self, size_bytes: int, *, slowness: float = 1.0) -> float:
        """Seconds from now until a chunk of that size is over."""
        now_s = clock.monotonic_s()
        begin_s = max(now_s, self._free_s)
        self._free_s = begin_s + size_bytes / self.rate_bps
        self.carried_bytes += size_bytes
        return begin_s - now_s + size_bytes * slowness / self.rate_bps


@dataclass(slots=True)
class Trouble:
    """What goes wrong on a link during one transfer.

    cut_after_bytes: then `TransferFailed`. stall_s: no byte for so long, before the chunk that
    passes `stall_after_bytes`. slowness: how many times longer each chunk takes (this transfer
    alone). damage_after_bytes: a bit of the chunk that passes it is turned over, once.
    """

    cut_after_bytes: int | None = None
    stall_after_bytes: int | None = None
    stall_s: float = 0.0
    slowness: float = 1.0
    damage_after_bytes: int | None = None


class Link:
    """One mirror's way over the wire."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.trouble = Trouble()
        self.moved_bytes = 0

    def begin(self, trouble: Trouble) -> None:
        """A new transfer, with what goes wrong in it."""
        self.trouble, self.moved_bytes = trouble, 0

    def round_trip(self) -> None:
        """Ask the other end and wait for the answer."""
        clock.sleep_s(self.wire.round_trip_s)

    def carry(self, chunk: bytes, size_bytes: int) -> bytes:
        """The chunk as it arrives at the other end, after its time. Raises `TransferFailed`."""
        trouble = self.trouble
        self.moved_bytes += size_bytes
        if _passed(trouble.stall_after_bytes, self.moved_bytes):
            trouble.stall_after_bytes = None
            clock.sleep_s(trouble.stall_s)
        clock.sleep_s(self.wire.occupy(size_bytes, slowness=trouble.slowness))
        if _passed(trouble.cut_after_bytes, self.moved_bytes):
            raise TransferFailed("the connection was lost", why="cut by the simulation")
        if _passed(trouble.damage_after_bytes, self.moved_bytes):
            trouble.damage_after_bytes = None
            damaged = bytearray(chunk)
            damaged[len(damaged) // 2] ^= 0x10
            return bytes(damaged)
        return chunk


def _passed(mark_bytes: int | None, moved_bytes: int) -> bool:
    return mark_bytes is not None and moved_bytes >= mark_bytes
