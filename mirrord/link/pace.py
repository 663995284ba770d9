"""Congestion control of one stream: keeps about one second of the link's throughput in flight.

Data queued in the buffers between two hosts delays everything behind it: other streams, answers
that a caller waits for, cancellations. So a sender does not fill the granted window immediately.
It starts with a small one, doubles it while the other end reads the data quickly, and reduces it
in proportion when that takes too long. No clock, threads or I/O.
"""

from __future__ import annotations

from collections import deque

#: The initial and the smallest window.
_FIRST_BYTES = 512 << 10
_LEAST_BYTES = 256 << 10
#: The window is split into at least this many pieces.
_PIECES = 4
#: The window grows if data is read within the first time, and shrinks after the second.
_SOON_S = 0.5
_LONG_S = 1.0


class Pace:
    """The send window of one stream. The caller serializes its methods with a lock."""

    #: After this time without credit from the other end the window grows: it may wait for more.
    PATIENCE_S = 1.5

    def __init__(self, window_bytes: int) -> None:
        """window_bytes: the largest window."""
        self._most = window_bytes
        self._window = min(_FIRST_BYTES, window_bytes)
        #: For each piece in flight: its end position in the stream, and when it was sent.
        self._pieces: deque[tuple[int, float]] = deque()
        self._sent = self._read = 0
        #: Data before this position was sent with an older window and does not measure this one.
        self._since = 0

    @property
    def piece_bytes(self) -> int:
        """Maximum size of the next piece."""
        return self._window // _PIECES

    def allows(self, count: int) -> bool:
        """Whether a piece of `count` bytes may be sent now."""
        in_flight = self._sent - self._read
        return not in_flight or in_flight + count <= self._window

    def sent(self, count: int, now_s: float) -> None:
        """`count` bytes were sent."""
        self._sent += count
        self._pieces.append((self._sent, now_s))

    def acknowledged(self, count: int, now_s: float) -> None:
        """The other end has read `count` more bytes."""
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
