"""Compression of data frames, and the choice of the compression level.

Each data frame is a separate zstd frame, or raw, so the level may change at any frame, and frames
may be sent over several sockets. No clock or threads here; the caller passes the times in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import zstandard

from mirrord.core.errors import Damaged, UsageError

#: Compression of a payload.
RAW, ZSTD = 0, 1

#: The available levels, 0 for off, in the order of their cost; and the expected speed and gain
#: (ratio - 1) on text, relative to level 1, until they are measured.
LEVELS = (0, 1, 3, 6, 9, 12, 19)
_EXPECTED = {
    1: (1.0, 1.0), 3: (0.9, 1.13), 6: (0.3, 1.26), 9: (0.19, 1.29), 12: (0.13, 1.31),
    19: (0.018, 1.42),
}  # fmt: skip
LEVEL_MAX = 19
#: Expected for text on one core at level 1: bytes per second, and ratio - 1.
_FIRST_SPEED, _FIRST_GAIN = 300e6, 1.5

#: A sample: this many pieces of this many bytes, spread over the chunk. The chunk is compressed if
#: level 1 reduces the sample by more than this fraction.
_SAMPLE_PIECES, _SAMPLE_BYTES = 4, 4 << 10
_WORTH = 0.06
#: A chunk not reduced by this fraction is sent raw: decompression costs time, too.
_KEPT = 0.03


class Compressor:
    """Compresses chunks. Used by one thread at a time; releases the GIL while it compresses."""

    def __init__(self) -> None:
        self._made: dict[int, zstandard.ZstdCompressor] = {}

    def _at(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self._made:
            self._made[level] = zstandard.ZstdCompressor(level=level, write_content_size=True)
        return self._made[level]

    def worth(self, chunk: bytes | memoryview) -> bool:
        """Whether a sample of it is compressible; takes microseconds, also for a large chunk."""
        size = _SAMPLE_PIECES * _SAMPLE_BYTES
        sample: bytes | memoryview = chunk
        if len(chunk) > size:
            step = (len(chunk) - _SAMPLE_BYTES) // (_SAMPLE_PIECES - 1)
            starts = range(0, _SAMPLE_PIECES * step, step)
            sample = b"".join([chunk[at : at + _SAMPLE_BYTES] for at in starts])
        return len(self._at(1).compress(sample)) < len(sample) * (1 - _WORTH)

    def pack(self, chunk: bytes | memoryview, level: int) -> tuple[int, bytes | memoryview, int]:
        """The chunk compressed at that level (0: off), or raw if that saves almost nothing: RAW or
        ZSTD; as it is sent; and at which level compression was tried, 0: it was not.

        If the data is not compressible (for example, compressed by the file system already) only
        a sample is tried.
        """
        if level <= 0 or not len(chunk) or not self.worth(chunk):
            return RAW, chunk, 0
        packed = self._at(level).compress(chunk)
        if len(packed) > len(chunk) * (1 - _KEPT):
            return RAW, chunk, level
        return ZSTD, packed, level


def unpack(flag: int, payload: bytes | memoryview, size_max: int) -> bytes:
    """The chunk; `Damaged` when it is malformed, or would be larger than `size_max` bytes.

    Allocates at most `size_max` bytes, whatever size the payload declares.
    """
    if flag == RAW:
        if len(payload) > size_max:
            raise Damaged("a chunk is too large", why=f"{len(payload)} bytes of {size_max}")
        return bytes(payload)
    if flag != ZSTD:
        raise Damaged("unknown compression of a chunk", why=f"{flag}")
    try:
        size = zstandard.frame_content_size(payload)
        if not 0 <= size <= size_max:
            raise Damaged(
                "a compressed chunk is too large",
                why=f"{size} bytes of {size_max}" if size >= 0 else "it does not declare its size",
            )
        chunk = zstandard.ZstdDecompressor().decompress(
            payload, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Damaged("malformed compressed chunk", why=str(error)) from None
    if len(chunk) != size:
        raise Damaged(
            "a compressed chunk does not have its declared size", why=f"{len(chunk)}, not {size}"
        )
    return chunk


class Rate:
    """Estimates the maximum rate of a link or a source, from its observed rate and from how long
    the sender waited for it.

    The limit is only observed while the sender waits: then the buffers before the link are full.
    Otherwise the limit is higher than the observed rate: the last estimate is kept, and raised
    more and more over time.
    """

    _WINDOW_S = 0.2
    _FIRST = 3
    _WAITED, _FREE = 0.25, 0.1
    _DOUBT, _DOUBT_MAX = 0.02, 1.0
    #: Windows without raising the estimate after a wrong raise; doubled each time.
    _SURE, _SURE_MAX = 4, 64

    def __init__(self) -> None:
        #: Bytes per second; infinite until the sender had to wait.
        self.limit = float("inf")
        #: Windows until the estimate is usable: the first data only fills the kernel's buffers.
        self._unknown = self._FIRST
        self._since_s: float | None = None
        self._bytes = 0
        self._waited_s = 0.0
        self._doubt = self._DOUBT
        #: The last rate observed while waiting; its confidence in windows, and how many are left.
        self._seen = 0.0
        self._sure = self._sure_yet = 0

    def observe(self, count: int, waited_s: float, now_s: float) -> None:
        """`count` bytes were moved, with `waited_s` of waiting, up to now (monotonic)."""
        if self._since_s is None:
            self._since_s = now_s - waited_s
        self._bytes += count
        self._waited_s += waited_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < self._WINDOW_S or not self._bytes:
            return
        self._unknown -= 1
        seen, share = self._bytes / elapsed_s, self._waited_s / elapsed_s
        if share >= self._WAITED:
            self._waiting(seen)
        elif share < self._FREE:
            # No faster than it was during the waits.
            most = self._bytes / self._waited_s if self._waited_s > 0 else float("inf")
            self._free(seen, most)
        self._since_s, self._bytes, self._waited_s = now_s, 0, 0.0

    @property
    def known(self) -> bool:
        """Whether it was observed long enough for an estimate."""
        return self._unknown <= 0

    def _waiting(self, seen: float) -> None:
        self._unknown = 0
        near = 0.5 < seen / self.limit < 2
        if self._seen and self.limit > 1.1 * seen and 0.8 < seen / self._seen < 1.25:
            self._sure = min(max(2 * self._sure, self._SURE), self._SURE_MAX)
        elif not 0.8 < seen / (self._seen or 1) < 1.25:
            self._sure = 0
        self.limit = (self.limit + seen) / 2 if near and self._sure == 0 else seen
        self._seen, self._sure_yet, self._doubt = seen, self._sure, self._DOUBT

    def _free(self, seen: float, most: float) -> None:
        self._sure_yet -= 1
        doubt = 0.0
        if self._sure_yet < 0:
            doubt = self._doubt
            self._doubt = min(2 * doubt, self._DOUBT_MAX)
        self.limit = max(seen, min(self.limit * (1 + doubt), most))


class Chooser:
    """Chooses the level of each chunk: the one with the highest throughput of raw bytes.

    That is min(link's rate x ratio, speed of compression, source's rate). The ratio and the speed
    are measured on this stream: for the current level with each chunk, for its neighbours from
    time to time. May be used by several threads.
    """

    #: A neighbour is tried after this many chunks and this time
    _TRY_EVERY = 16
    _TRY_AFTER_S = 0.5
    #: if its expected throughput is at least this fraction of the current level's.
    _TRY_FROM = 0.6
    #: Penalty per step of level, for the processor time that it takes from other programs.
    _STEP_COST = 0.01
    #: A level must be better by this factor to be preferred.
    _BETTER = 1.03
    _STEP_LOSS = 0.95
    _NEW = 0.25

    def __init__(self, fixed: int | None = None, *, workers: int = 1) -> None:
        """fixed: always this level. workers: how many threads pack at the same time."""
        self._fixed = fixed
        self._workers = workers
        self.link, self.source = Rate(), Rate()
        self._lock = threading.Lock()
        #: Index in LEVELS of the current level.
        self._at = 1
        self._speed, self._gain = _FIRST_SPEED, _FIRST_GAIN
        self._measured = False
        self._relative = {level: list(pair) for level, pair in _EXPECTED.items()}
        #: Chunks since the last trial of a neighbour; earliest time of the next; its direction.
        self._chunks, self._try_s, self._upwards = 0, 0.0, False

    @classmethod
    def of(cls, setting: str, *, workers: int = 1) -> Chooser:
        """From a host's setting `compress`: "auto", "off", or a level. `UsageError` otherwise."""
        if setting == "auto":
            return cls(workers=workers)
        if setting == "off":
            return cls(0)
        if setting.isascii() and setting.isdigit() and 1 <= int(setting) <= LEVEL_MAX:
            return cls(int(setting))
        raise UsageError(
            f"invalid compression '{setting}'",
            hint=f'Use "auto", "off", or a zstd level from "1" to "{LEVEL_MAX}".',
        )

    def sent(self, count: int, blocked_s: float, now_s: float) -> None:
        """`count` compressed bytes were sent; the writer was blocked for `blocked_s` (mean)."""
        with self._lock:
            self.link.observe(count, blocked_s, now_s)

    def received(self, count: int, waited_s: float, now_s: float) -> None:
        """The source returned `count` bytes after a wait of `waited_s`."""
        with self._lock:
            self.source.observe(count, waited_s, now_s)

    def packed(self, level: int, size: int, packed_size: int, seconds: float) -> None:
        """A chunk was compressed from `size` bytes to `packed_size` in `seconds`. (Not called for
        chunks whose sample was not compressible: their `level` is 0.)
        """
        if self._fixed is not None or level not in self._relative or size < 1024:
            return
        speed, gain = size / max(seconds, 1e-9), max(size / max(packed_size, 1) - 1, 0.001)
        with self._lock:
            relative, used = self._relative[level], LEVELS[self._at]
            if used in (level, 0) or not self._measured:
                new = self._NEW if self._measured else 1.0
                self._measured = True
                self._speed += new * (speed / relative[0] - self._speed)
                self._gain += new * (gain / relative[1] - self._gain)
            else:
                # Measured next to the current level: relative to that.
                relative[0] += 0.5 * (speed / self._speed - relative[0])
                relative[1] += 0.5 * (gain / self._gain - relative[1])
            if level != used:
                self._move(LEVELS.index(level))

    def _worth(self, at: int) -> float:
        """The expected throughput of a level, less its penalty."""
        level = LEVELS[at]
        speed, ratio = float("inf"), 1.0
        if level:
            relative = self._relative[level]
            speed = self._speed * relative[0] * self._workers
            ratio = 1 + self._gain * relative[1]
        moved = min(self.link.limit * ratio, speed, self.source.limit)
        return min(moved, 1e12) * (1 - self._STEP_COST * at)

    def _best(self) -> int:
        return max(range(len(LEVELS)), key=self._worth)

    def _move(self, tried: int) -> None:
        """Switch to a tried neighbour if it is in the direction of the best level."""
        best, here = self._best(), self._worth(self._at)
        towards_best = (tried - self._at) * (best - self._at) > 0
        # A step may lose a little if the one after it gains more.
        loss = self._STEP_LOSS if self._worth(best) > self._BETTER * here else 1.0
        if towards_best and abs(tried - self._at) == 1 and self._worth(tried) >= loss * here:
            self._at = tried

    def level(self, now_s: float) -> int:
        """The level for the next chunk; 0: off. now_s: monotonic seconds."""
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            self._chunks += 1
            if not self.link.known:
                return LEVELS[self._at]
            best, here = self._best(), self._worth(self._at)
            if best != self._at and self._worth(best) > self._BETTER * here:
                near = self._at + (1 if best > self._at else -1)
                if near == 0:
                    self._at = 0  # off needs no trial
                return LEVELS[near]
            if self._chunks >= self._TRY_EVERY and now_s >= self._try_s:
                return LEVELS[self._neighbour(now_s)]
            return LEVELS[self._at]

    def _neighbour(self, now_s: float) -> int:
        """The index of a neighbour that is worth a trial, or the current one."""
        self._chunks, self._try_s = 0, now_s + self._TRY_AFTER_S
        self._upwards = not self._upwards
        near = self._at + (1 if self._upwards else -1)
        likely = 0 < near < len(LEVELS) and (
            self._worth(near) > self._TRY_FROM * self._worth(self._at)
        )
        return near if likely else self._at


class Packer:
    """A chooser with compressors: compresses the pieces of one stream in several threads."""

    #: The cost of a write that does not block: copies and encryption, seconds per byte.
    _COPY_S = 0.8e-9

    def __init__(self, setting: str, *, lanes: int = 1, now_s: Callable[[], float]) -> None:
        """setting: a host's `compress`. lanes: threads that compress and send concurrently.
        now_s: the monotonic clock. `UsageError` as for `Chooser.of`.
        """
        self.chooser = Chooser.of(setting, workers=lanes)
        self._lanes = lanes
        self._now_s = now_s
        #: Compressors not in use; each is for one thread at a time.
        self._idle: list[Compressor] = []

    def pack(self, piece: bytes | memoryview) -> tuple[int, bytes | memoryview]:
        """The piece as it is sent: its compression (RAW, ZSTD), and its bytes."""
        began_s = self._now_s()
        try:
            compressor = self._idle.pop()
        except IndexError:
            compressor = Compressor()
        flag, payload, level = compressor.pack(piece, self.chooser.level(began_s))
        self._idle.append(compressor)
        if level:
            self.chooser.packed(level, len(piece), len(payload), self._now_s() - began_s)
        return flag, payload

    def sent(self, count: int, seconds: float) -> None:
        """`count` compressed bytes were written in `seconds`."""
        blocked_s = max(0.0, seconds - count * self._COPY_S) / self._lanes
        self.chooser.sent(count, blocked_s, self._now_s())
