"""Anomalies of a source: the evidence in numbers, and the option that handles each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mirrord.core.units import format_duration, format_size
from mirrord.traces.survey import Seen, best_shift


@dataclass(frozen=True)
class Finding:
    """One anomaly. name: for programs. text: with the evidence. option: what handles it, or ""."""

    name: str
    text: str
    option: str = ""


#: A rate above that of any device, and a span beyond that of any recording.
_RATE_MAX = 20 << 30
_YEARS_MAX_S = 10 * 365 * 86400
_EPOCHS_NS = (315_532_800 * 10**9, 4_102_444_800 * 10**9)  # 1980 to 2100
_PLURAL = re.compile(r"\b(record|line|request|end)s\b")
#: With fewer records a share has no meaning.
_FEW = 100


def findings(
    seen: Seen,
    counts: Mapping[str, int],
    *,
    epoch_ns: int | None,
    format_name: str,
    unsure: bool = False,
) -> list[Finding]:
    """All anomalies, the most serious first."""
    found = [
        *_nothing(seen), *_units(seen, epoch_ns, format_name), *_layers(seen), *_grid(seen),
        *_times(seen, format_name), *_bursts(seen), *_left_out(counts),
    ]  # fmt: skip
    if unsure:
        found.append(
            Finding(
                "units-guessed",
                f"the units of five-column text are unknown: those of {format_name} are assumed",
                "--time-unit --addr-unit --size-unit --write-flag, or another --format",
            )
        )
    return found


def _nothing(seen: Seen) -> list[Finding]:
    found = []
    if not seen.writes:
        found.append(
            Finding(
                "no-writes",
                "there are no writes in it: a mirror would have nothing to send",
                "--write-flag, --only or --format, if that is wrong",
            )
        )
    if seen.empty:
        found.append(Finding("empty-records", f"{seen.empty:,} records have the length 0"))
    return found


def _units(seen: Seen, epoch_ns: int | None, format_name: str) -> list[Finding]:
    """A time unit that is wrong by a factor of 1000 leads to rates and gaps that no device has."""
    option = "--time-unit (s, ms, us, 100ns, ns)"
    found = []
    if evidence := _too_short(seen):
        found.append(
            Finding("time-too-short", f"{evidence}: the time unit looks too small", option)
        )
    elif evidence := _too_long(seen):
        found.append(Finding("time-too-long", f"{evidence}: the time unit looks too large", option))
    if epoch_ns is not None and not _EPOCHS_NS[0] < epoch_ns < _EPOCHS_NS[1]:
        year = 1970 + epoch_ns / 1e9 / 86400 / 365.2425
        found.append(
            Finding(
                "time-odd-date",
                f"the trace begins in the year {year:.0f}: the time unit looks wrong",
                option,
            )
        )
    largest = seen.longest
    if largest > 1 << 30:
        found.append(
            Finding(
                "length-odd",
                f"the longest request is {format_size(largest)} long: the unit of sizes "
                f"looks too large, or {format_name} is not the format",
                "--size-unit",
            )
        )
    return found


def _too_short(seen: Seen) -> str:
    """In known real traces 1 request in 1000 comes within 1 µs of the previous one.

    Only a device that serves millions of requests per second has more such gaps.
    """
    if seen.writes >= _FEW and seen.peak_bytes > _RATE_MAX:
        mean = seen.sizes["write"] / seen.span_s if seen.span_s else 0.0
        return (
            f"{format_size(seen.peak_bytes)} are written within one second, "
            f"{format_size(mean)}/s on average"
        )
    later, close, _ = seen.later
    if later >= _FEW and close > 0.02 * later and seen.count < 100_000 * seen.span_s:
        return (
            f"{100 * close / later:.0f} % of the requests come within 1 µs of the previous one, "
            f"but only {seen.count / seen.span_s:,.0f} per second on average"
        )
    return ""


def _too_long(seen: Seen) -> str:
    """Requests come in bursts: in known traces at least 2 % within 1 ms of the previous one."""
    if seen.count < _FEW or not seen.span_s:
        return ""
    hourly = seen.count / seen.span_s * 3600
    if seen.writes and seen.span_s > _YEARS_MAX_S:
        return (
            f"the trace spans {seen.span_s / 365 / 86400:,.0f} years, "
            f"with {hourly:.2g} requests per hour"
        )
    later, _, close = seen.later
    if later >= _FEW and close < 0.005 * later and hourly < 600 and seen.span_s > 3 * 86400:
        return (
            f"only {close:,} of {later:,} requests come within 1 ms of the previous one, with "
            f"{hourly:,.0f} per hour, in {format_duration(seen.span_s)}"
        )
    return ""


def _layers(seen: Seen) -> list[Finding]:
    """Many rewrites almost at once, and then hardly any for a while: recorded at two layers."""
    rewrites = sum(seen.gaps)
    soon = sum(seen.gaps[:3])
    if seen.followed_writes < _FEW or soon < 0.2 * seen.followed_writes:
        return []
    if seen.gaps[3] > 0.1 * soon:
        return []
    return [
        Finding(
            "layered-duplicates",
            f"{soon:,} of {rewrites:,} rewrites of a 4 KiB block come within "
            f"0.1 s, and only {seen.gaps[3]:,} more within 1 s: it was probably recorded at two "
            "layers, so a mirror would appear to save more than it does",
            "--dedup 1s",
        )
    ]


def _grid(seen: Seen) -> list[Finding]:
    shift = best_shift(seen)
    if not shift:
        return []
    before, after = seen.touched[0], seen.touched[shift // 512]
    return [
        Finding(
            "shifted-grid",
            f"{seen.unaligned:,} of {seen.writes:,} writes are not aligned to 4 KiB; "
            f"shifted by {shift} bytes they touch {after:,} blocks instead of {before:,} "
            f"({100 * (1 - after / before):.1f} % fewer)",
            f"--align-shift {shift} (or auto)",
        )
    ]


def _times(seen: Seen, format_name: str) -> list[Finding]:
    found = []
    if seen.backward:
        times = "once" if seen.backward == 1 else f"{seen.backward:,} times"
        found.append(
            Finding(
                "unsorted",
                f"time goes back {times}, by up to "
                f"{format_duration(seen.backward_max_ns / 1e9)}: import sorts the records",
            )
        )
    if seen.count >= _FEW and seen.round_s == seen.count:
        found.append(
            Finding("coarse-time", "all times are full seconds: short intervals are not meaningful")
        )
    if format_name == "fio2" and seen.span_s == 0:
        found.append(
            Finding(
                "no-times",
                "iolog v2 without wait lines has no times: all requests have time 0",
                "record it with log_offset as version 3",
            )
        )
    return found


def _bursts(seen: Seen) -> list[Finding]:
    if seen.writes < _FEW or seen.span_s < 60:
        return []
    mean = seen.sizes["write"] / seen.span_s
    if seen.peak_bytes < 20 * mean:
        return []
    return [
        Finding(
            "bursts",
            f"in the busiest second {format_size(seen.peak_bytes)} are written, "
            f"{seen.peak_bytes / mean:,.0f} times the mean of {format_size(mean)}/s: the link of a "
            "synchronous mirror must carry that",
        )
    ]


#: The counts of parsers that are reported; the others are only stored as numbers.
_TOLD = {
    "records with a blank operation left out": "blank-operations",
    "nanoseconds of 10^9 and more": "nanoseconds-beyond-1e9",
    "bad lines left out": "bad-records",
    "bad records left out": "bad-records",
    "broken records left out": "broken-record",
    "ends of compressed data missing": "broken-record",
    "requests of other kinds left out": "other-kinds",
}


def _counted(count: int, text: str) -> str:
    """`1 bad line left out`, `2 bad lines left out`."""
    words = _PLURAL.sub(r"\1", text, count=1) if count == 1 else text
    return f"{count:,} {words}"


def _left_out(counts: Mapping[str, int]) -> list[Finding]:
    return [
        Finding(
            name,
            _counted(counts[text], text)
            if name != "nanoseconds-beyond-1e9"
            else f"{_counted(counts[text], 'records')} with {text}: added to the seconds",
        )
        for text, name in _TOLD.items()
        if counts.get(text)
    ]
