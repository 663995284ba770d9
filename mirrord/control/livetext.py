"""What the ends of a live mirror report, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrord.core.live import EXTENT_BYTES
from mirrord.core.units import format_size, format_us
from mirrord.system.clock import format_moment

if TYPE_CHECKING:
    from mirrord.core.live import LiveReading, LiveStatus


def details(reading: LiveReading) -> list[str]:
    """A fact on each line."""
    primary = reading.primary
    mode = primary.mode if primary else reading.policy
    lines = [f"  mode         {mode}{_by(reading, mode)}"]
    if primary is None:
        return lines
    if primary.unfenced and primary.since:
        moment = format_moment(primary.since * 10**9)
        lines.append(f"  in sync      until {moment}; the former source may still serve clients")
    elif primary.generation:
        since = f" since {format_moment(primary.since * 10**9)}" if primary.since else ""
        lines.append(f"  in sync      {'yes' if primary.in_sync else 'no'}{since}")
    if primary.is_semi_sync:
        lines.append(f"  window       {_window(primary)}")
    lines.append(f"  clients      {', '.join(primary.served) or 'not served'}")
    if primary.writes:
        lines.append(f"  latency      {latencies(primary)}")
    if primary.outstanding_requests:
        size, oldest = format_size(primary.outstanding_bytes), format_us(primary.oldest_us)
        count = primary.outstanding_requests
        lines.append(f"  unanswered   {count} requests, {size}, the oldest for {oldest}")
    lines.append(f"  tracked      {format_size(primary.tracked_extents * EXTENT_BYTES)}")
    if primary.dirty_bytes:
        lines.append(f"  to copy      {format_size(primary.dirty_bytes)}")
    link = "connected" if primary.connected else "not connected"
    lines.append(f"  link         {link}, {_sent(primary)}")
    return lines


def _sent(primary: LiveStatus) -> str:
    """What the link was given, and what it was spared."""
    text = f"{format_size(primary.sent_bytes)} sent"
    if primary.merged_bytes:
        text += f", of these {format_size(primary.merged_bytes)} merged"
    if primary.link_bytes < primary.payload_bytes:
        whole, left = format_size(primary.payload_bytes), format_size(primary.link_bytes)
        text += f"; {whole} compressed to {left}"
    return text


def _by(reading: LiveReading, mode: str) -> str:
    if reading.controller:
        return f" (set by {reading.controller})"
    return "" if reading.policy == mode else f" (policy {reading.policy})"


def _window(primary: LiveStatus) -> str:
    """How much of the window of semi-sync is used."""
    limit = format_size(primary.window_bytes)
    if primary.lag_limit_bytes < primary.window_bytes:
        limit = f"{format_size(primary.lag_limit_bytes)} (at most {limit})"
    if primary.window_us:
        limit = f"{format_us(primary.window_us)} (and {limit})"
    full = "; full, writes wait" if primary.window_full else ""
    used = f"{format_size(primary.lag_bytes)}, {format_us(primary.lag_us)} behind"
    return f"{used}, of {limit}{full}"


def window(reading: LiveReading | None) -> str:
    """The same for a table, where the lag has a column of its own; "" outside semi-sync."""
    primary = reading.primary if reading else None
    if primary is None or not primary.is_semi_sync:
        return ""
    lag = format_size(primary.lag_bytes)
    if primary.window_us:
        return f"{lag}, {format_us(primary.lag_us)} of {format_us(primary.window_us)}"
    return f"{lag} of {format_size(primary.lag_limit_bytes)}"


def latencies(primary: LiveStatus) -> str:
    """Percentiles of the last seconds, local and for the client."""
    local, mirrored = (
        "/".join(map(format_us, found)) for found in (primary.local_us, primary.mirrored_us)
    )
    return f"local {local}, mirrored {mirrored} (50/95/99 %)"


def rates(before: LiveReading, now: LiveReading) -> str:
    """What moved between two readings, for each second; "" where that is not known."""
    old, new = before.primary, now.primary
    passed_s = (now.read_ns - before.read_ns) / 1e9
    if old is None or new is None or passed_s <= 0 or new.sent_bytes < old.sent_bytes:
        return ""
    written, sent, copied = (
        f"{format_size((getattr(new, key) - getattr(old, key)) / passed_s)}/s"
        for key in ("written_bytes", "sent_bytes", "copied_bytes")
    )
    writes = round((new.writes - old.writes) / passed_s)
    return f"{writes} writes/s, {written} written, {sent} sent, of these {copied} copied"
