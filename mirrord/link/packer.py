"""Packs the pieces of one stream, by what is measured on the way (wire/compress.py)."""

from __future__ import annotations

import threading

from mirrord.system import clock
from mirrord.wire.compress import Chooser, Compressor


class Packer:
    """Of one stream; several threads may pack for it at the same time."""

    def __init__(self, setting: str, *, workers: int) -> None:
        """setting: "auto", "off" or a level. workers: how many threads pack."""
        self._chooser = Chooser.of(setting, workers=workers)
        self._own = threading.local()
        self._left_s: float | None = None

    def pack(self, piece: bytes | memoryview) -> tuple[int, bytes | memoryview]:
        """How it is packed, and the payload."""
        level = self._chooser.level(clock.monotonic_s())
        if level <= 0:
            return 0, piece
        compressor = getattr(self._own, "compressor", None)
        if compressor is None:
            compressor = self._own.compressor = Compressor()
        began_s = clock.monotonic_s()
        packed = compressor.pack(piece, level)
        took_s = clock.monotonic_s() - began_s
        if packed.level:
            self._chooser.packed(packed.level, len(piece), len(packed.payload), took_s)
        return packed.flag, packed.payload

    def sent(self, count: int, blocked_s: float) -> None:
        """So many packed bytes left; the writer waited so long."""
        self._chooser.sent(count, blocked_s, clock.monotonic_s())

    def asked(self) -> None:
        """The source is asked for more from now on."""
        self._left_s = clock.monotonic_s()

    def came(self, count: int) -> None:
        """It gave so much."""
        now_s = clock.monotonic_s()
        if self._left_s is not None:
            self._chooser.came(count, now_s - self._left_s, now_s)
