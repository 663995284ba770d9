"""How much of a stream is under way: about a second of what the link carries.

What waits in the buffers between two hosts is in the way of all that comes behind it: of the other
streams, of answers to those who wait, of a request to end. So a sender does not fill the window
that it is given at once. It begins with little, doubles that while what it sends is soon read at
the other end, and halves it (or less) when that takes long. Without a clock, a thread or I/O.
"""

from __future__ import annotations

from collections import deque

#: What is under way at first, and at least.
_FIRST_BYTES = 512 << 10
_LEAST_BYTES = 256 << 10
#: What is under way is cut into so many pieces at least.
_PIECES = 4
#: Read so soon, more may be under way; and how long it is to be under way at the most.
_SOON_S = 0.5
_LONG_S = 1.0


class Pace:
    """Of one stream that is sent. The caller keeps its methods apart by a lock."""

    #: After so long without news from the other end, more goes: perhaps it waits for that.
    PATIENCE_S = 1.5

    def __init__(self, window_bytes: int) -> None:
        """window_bytes: what may be under way at the most."""
        self._most = window_bytes
        self._window = min(_FIRST_BYTES, window_bytes)
        #: Of each piece under way: where in the stream it ends, and when it went.
        self._pieces: deque[tuple[int, float]] = deque()
        self._sent = self._read = 0
        #: What went before this place went by an older window, and says nothing of this one.
        self._since = 0

    @property
    def piece_bytes(self) -> int:
        """So large may the next piece be."""
        return self._window // _PIECES

    def allows(self, count: int) -> bool:
        """Whether a piece of so many bytes may go now."""
        under_way = self._sent - self._read
        return not under_way or under_way + count <= self._window

    def went(self, count: int, now_s: float) -> None:
        """It went."""
        self._sent += count
        self._pieces.append((self._sent, now_s))

    def came_back(self, count: int, now_s: float) -> None:
        """The other end has read so many bytes more."""
        self._read += count
        last: tuple[int, float] | None = None
        while self._pieces and self._pieces[0][0] <= self._read:
            last = self._pieces.popleft()
        if last is None or last[0] <= self._since:
            return
        took_s = now_s - last[1]
        if took_s < _SOON_S:
            self._window = min(self._most, self._window + count)
        elif took_s > _LONG_S:
            self._window = max(_LEAST_BYTES, int(self._window * _LONG_S / took_s))
            self._since = self._sent

    def waited(self) -> None:
        """Nothing was read for `PATIENCE_S`."""
        self._window = min(self._most, 2 * self._window)
