"""A trace described as text, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrord.core.text import harmless
from mirrord.core.units import format_duration, format_size

if TYPE_CHECKING:
    from mirrord.traces.model import Facts
    from mirrord.traces.survey import Seen
    from mirrord.traces.traps import Finding

#: Volumes listed by name; the others are only counted.
_NAMED = 8
_PLURALS = {"write": "writes", "read": "reads", "trim": "trims", "flush": "flushes"}


def described(
    facts: Facts,
    seen: Seen,
    findings: Sequence[Finding],
    handled: Sequence[dict[str, str]] = (),
) -> str:
    """Describe a trace: its contents, and each anomaly with the option that handles it."""
    lines = [
        f"{harmless(facts.name)}: {seen.count:,} records of {format_duration(seen.span_s)}, "
        f"format {facts.source_format}"
    ]
    if facts.epoch_ns is not None:
        lines.append(f"  begins    {_moment(facts.epoch_ns + seen.first_ns)}")
    else:
        lines.append("  begins    unknown: the source has no date")
    names = ", ".join(map(harmless, facts.volumes[:_NAMED]))
    more = f" and {len(facts.volumes) - _NAMED:,} more" if len(facts.volumes) > _NAMED else ""
    lines.append(f"  volumes   {len(facts.volumes):,}: {names}{more}")
    lines.append(f"  addresses up to {format_size(seen.end_bytes)}")
    for op, count in seen.records.items():
        if count:
            size = format_size(seen.sizes[op])
            lines.append(f"  {_PLURALS[op]:9} {count:>13,}  {size:>9}")
    if seen.writes:
        mean = seen.sizes["write"] / seen.span_s if seen.span_s else 0
        lines.append(f"  4 KiB blocks touched by writes {seen.touched[0]:,}")
        lines.append(
            f"  written per second {format_size(mean)} on average, "
            f"{format_size(seen.peak_bytes)} in the busiest second"
        )
    if findings:
        lines.append("findings:")
        for each in findings:
            lines.append(f"  {each.name}: {each.text}")
            if each.option:
                lines.append(f"    option: {each.option}")
    if handled:
        lines.append("findings in the source that were handled at import:")
        lines += [f"  {each['name']}: {each['text']}" for each in handled]
    return "\n".join(lines)


def _moment(unix_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{unix_ns} ns since 1970 (not a valid date)"


def row_text(row: dict[str, Any]) -> str:
    """Format a record as one line."""
    latency = row["latency_ns"]
    took = f"  took {latency / 1e6:.3f} ms" if latency >= 0 else ""
    return (
        f"{row['time_ns'] / 1e9:16.9f}  {harmless(row['volume']):12} {row['op']:5} "
        f"{row['offset']:>16,} + {row['length']:>9,}{took}"
    )
