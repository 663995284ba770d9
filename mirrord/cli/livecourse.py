"""The last minutes of a live mirror, as `mirrord watch` shows them: a column for each reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from mirrord.core.live import LiveReading, LiveStatus
from mirrord.core.units import format_duration, format_size, format_us

_BARS = "▁▂▃▄▅▆▇█"
#: Columns that are kept.
_KEPT = 1000
#: Letters before the columns.
_INDENT = 15


class _Band(NamedTuple):
    sign: str
    style: str
    words: str


_SYNC = _Band("█", "green", "sync")
_SEMI = _Band("▓", "yellow", "semi-sync")
_TRACKING = _Band("░", "magenta", "tracking, copying")
_WAITING = _Band("▁", "red", "writes wait")
_UNKNOWN = _Band("·", "dim", "not known")
_BANDS = {
    "in-sync": _SYNC, "entering-semi-sync": _SYNC, "semi-sync": _SEMI,
    "out-of-sync": _TRACKING, "resync": _TRACKING, "entering-sync": _SYNC,
}  # fmt: skip


class _Sample(NamedTuple):
    read_ns: int
    band: _Band
    lag_bytes: int
    lag_us: int
    limit_bytes: int
    latency_us: int


class LiveCourse:
    """What was read of one mirror so far."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)
        self._before: LiveStatus | None = None

    def add(self, reading: LiveReading) -> None:
        """A reading."""
        primary = reading.primary
        if primary is None:
            self._samples.append(_Sample(reading.read_ns, _UNKNOWN, 0, 0, 0, 0))
        else:
            is_semi = primary.is_semi_sync
            band = _WAITING if primary.window_full else _BANDS.get(primary.state, _WAITING)
            lag_us = round((reading.lag_s or 0) * 1e6)
            self._samples.append(
                _Sample(
                    reading.read_ns,
                    band,
                    primary.lag_bytes if is_semi else 0,
                    lag_us,
                    primary.lag_limit_bytes if is_semi else 0,
                    _latency_us(self._before, primary),
                )
            )
        self._before = primary

    def lines(self, width: int) -> Text:
        """The course, as wide as the terminal."""
        shown = list(self._samples)[-max(1, width - _INDENT - 1) :]
        text = Text(no_wrap=True, overflow="crop")
        if not shown:
            return text
        span_s = (shown[-1].read_ns - shown[0].read_ns) / 1e9
        text.append(f"  The last {format_duration(span_s)}; each column is a reading.\n")
        text.append(f"  {'mode':<{_INDENT - 2}}")
        for each in shown:
            text.append(each.band.sign, style=each.band.style)
        text.append(f"\n{'':<{_INDENT}}")
        bands = dict.fromkeys(each.band for each in shown)
        for band in bands:
            text.append(band.sign, style=band.style)
            text.append(f" {band.words}   ")
        lags = [each.lag_bytes for each in shown]
        _row(text, "lag", lags, format_size)
        _row(text, "", [each.lag_us for each in shown], format_us)
        _row(text, "M", [each.limit_bytes for each in shown], format_size)
        _row(text, "latency", [each.latency_us for each in shown], format_us)
        return text


def _latency_us(before: LiveStatus | None, now: LiveStatus) -> int:
    """Mean of the answers since the last reading; of a write that waits, at least its time."""
    writes, total_us = now.answered or (0, 0)
    if before is not None and before.answered and before.answered[0] <= writes:
        writes, total_us = writes - before.answered[0], total_us - before.answered[1]
    return max(total_us // writes if writes else 0, now.oldest_us)


def _row(text: Text, name: str, values: Sequence[int], words: Callable[[int], str]) -> None:
    """A row of bars, the highest for the greatest value; then the numbers."""
    most = max(values)
    bars = "".join(
        _BARS[min(len(_BARS) - 1, value * len(_BARS) // (most + 1))] if value else " "
        for value in values
    )
    text.append(f"\n  {name:<{_INDENT - 2}}{bars}\n")
    text.append(f"{'':<{_INDENT}}now {words(values[-1])}, at most {words(most)}", style="dim")
