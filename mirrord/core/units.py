"""Bytes, durations and rates as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from mirrord.core.errors import UsageError

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_LENGTHS = {
    **dict.fromkeys(("ms",), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}
_DURATION_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]+)")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)


def counted(number: int, noun: str) -> str:
    """Such as `1 snapshot`, `3 snapshots`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def parse_size(text: str) -> int:
    """Bytes of `64M`, `1.5GiB`, `4096`; powers of 1024. `UsageError` when it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a size", hint="Write for example 512M, 10G or 1TiB.")
    return int(float(match[1]) * _SUFFIXES[match[2].upper()])


def is_port(text: str) -> bool:
    """Whether it is a number from 0 to 65535, in ASCII digits."""
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and int(text) < 65536


def format_size(size_bytes: float) -> str:
    """`1.5 GiB`: at most three digits, powers of 1024."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024 or unit == "PiB":
            if unit == "B":
                return f"{size:.0f} B"
            digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
            return f"{size:.{digits}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `15 min`, `2 hours`, `1h30m`. `UsageError` when it is not a duration.

    Larger units come first and each occurs at most once, so that a typing error is not accepted.
    """
    total, before, place = 0.0, float("inf"), 0
    stripped = text.strip()
    while match := _DURATION_PART.match(stripped, place):
        length = _LENGTHS.get(match[2], before)
        if length >= before:
            break
        total, before, place = total + float(match[1]) * length, length, match.end()
    if not stripped or place != len(stripped):
        raise UsageError(
            f"'{text}' is not a duration", hint="Write for example 90s, 15 min, 2h or 1h30m."
        )
    return total


#: The window of semi-sync unless a definition says another one.
WINDOW = "16MiB"
#: The largest one: the primary keeps these writes in memory.
WINDOW_MAX = 1 << 30
#: Bytes on the link above which repeated writes are merged in semi-sync, unless a definition says
#: another number.
MERGE_ABOVE = 10_000_000


def window_argument(text: str) -> str:
    """The window of semi-sync, a size such as `16MiB` or a duration such as `5s`, as mirrord-live
    takes it: bytes, or seconds with an `s`.
    """
    found = ""
    with suppress(UsageError):
        found = f"{parse_duration(text):g}s"
    with suppress(UsageError):
        found = str(parse_size(text))
    hint = "Write for example 16MiB or 5s."
    if not found:
        raise UsageError(f"'{text}' is neither a size nor a duration", hint=hint)
    if not float(found.removesuffix("s")):
        raise UsageError(f"'{text}' is no window: every write would wait for itself", hint=hint)
    return found


def format_duration(duration_s: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if duration_s < 0:
        return "-" + format_duration(-duration_s)
    if duration_s < 0.0995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 9.95:
        return f"{duration_s:.1f} s"
    total = round(duration_s)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, total = divmod(total, length)
        if count or (parts and len(parts) < 2):
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def format_few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are: `a, b, c and 2 more`."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def format_us(microseconds: int) -> str:
    """A duration that may be short: below a millisecond in us."""
    return f"{microseconds} us" if microseconds < 1000 else format_duration(microseconds / 1e6)
