"""Metrics of live mirrors: what their primaries reported when they were read last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirrord.core.live import EXTENT_BYTES, LiveStatus
from mirrord.core.status import MirrorStatus

_GAUGES = {
    "in_sync": "1 while both ends have every acknowledged write.",
    "connected": "1 while the replica link is connected.",
    "outstanding_requests": "Requests of clients that are not answered.",
    "outstanding_bytes": "Bytes of those.",
    "oldest_write_seconds": "For how long the oldest unanswered write has been waiting.",
    "tracked_bytes": "Extents that are exchanged after a crash.",
    "dirty_bytes": "Bytes to copy until both ends are in sync.",
    "window_full": "1 while writes wait for the window of semi-sync, or for a resync.",
    "window_bytes": "The window of semi-sync, in bytes.",
    "window_seconds": "The window of semi-sync, in seconds.",
    "lag_limit_bytes": "The limit of the lag that is in force (M), in bytes.",
    "lag_bytes": "Bytes of acknowledged writes that are not yet in the secondary's redo log.",
}
_COUNTERS = {
    "writes": "Writes of clients.",
    "written_bytes": "Bytes of those.",
    "flushes": "Flushes of clients.",
    "sent_bytes": "Bytes sent to the replica.",
    "merged_writes": "Writes that were not sent, as a later one replaced them.",
    "merged_bytes": "Bytes of those.",
    "payload_bytes": "Bytes of data for the link.",
    "link_bytes": "Bytes of those after compression.",
    "copied_bytes": "Bytes sent by first copies and resyncs.",
    "left_sync": "How often the ends went out of sync.",
}
_PERCENTILES = ("50", "95", "99")


def collect(mirrors: Iterable[MirrorStatus]) -> Iterator[Metric]:
    """One family after the other."""
    gauges = {
        key: GaugeMetricFamily(f"mirrord_live_{key}", text, labels=["mirror"])
        for key, text in _GAUGES.items()
    }
    counters = {
        key: CounterMetricFamily(f"mirrord_live_{key}", text, labels=["mirror"])
        for key, text in _COUNTERS.items()
    }
    modes = GaugeMetricFamily(
        "mirrord_live_mode", "1 for the mode in force.", labels=["mirror", "mode"]
    )
    latencies = GaugeMetricFamily(
        "mirrord_live_latency_seconds",
        "Latency of writes in the last 10 to 20 seconds.",
        labels=["mirror", "path", "percentile"],
    )
    for status in mirrors:
        primary = status.reading.live.primary if status.reading.live else None
        if primary is None:
            continue
        for key, value in _values(primary).items():
            if value is not None:
                gauges[key].add_metric([status.name], value)
        for key, family in counters.items():
            family.add_metric([status.name], getattr(primary, key))
        modes.add_metric([status.name, primary.mode], 1)
        for path, found in (("local", primary.local_us), ("mirrored", primary.mirrored_us)):
            for percentile, microseconds in zip(_PERCENTILES, found, strict=False):
                latencies.add_metric([status.name, path, percentile], microseconds / 1e6)
    yield from gauges.values()
    yield from counters.values()
    yield modes
    yield latencies


def _values(primary: LiveStatus) -> dict[str, float | None]:
    is_semi = primary.is_semi_sync
    return {
        "in_sync": float(primary.in_sync),
        "connected": float(primary.connected),
        "outstanding_requests": primary.outstanding_requests,
        "outstanding_bytes": primary.outstanding_bytes,
        "oldest_write_seconds": primary.oldest_us / 1e6,
        "tracked_bytes": primary.tracked_extents * EXTENT_BYTES,
        "dirty_bytes": primary.dirty_bytes,
        "window_full": float(primary.window_full),
        "window_bytes": primary.window_bytes if is_semi else None,
        "window_seconds": primary.window_us / 1e6 if is_semi and primary.window_us else None,
        "lag_limit_bytes": primary.lag_limit_bytes if is_semi else None,
        "lag_bytes": primary.lag_bytes if is_semi else None,
    }
