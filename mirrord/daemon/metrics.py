"""Metrics for Prometheus. docs/metrics.md describes each; names are stable within a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mirrord.core.records import Finding
from mirrord.core.states import State
from mirrord.daemon import livemetrics
from mirrord.daemon.status_store import StatusStore
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler

_DURATIONS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)
_PAUSES_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60)

#: By name: the text and the labels of a counter.
_COUNTERS = {
    "runs": ("Runs that ended.", ("mirror", "verb", "cause", "result")),
    "retries": ("Runs that were a retry.", ("mirror",)),
    "transfer_bytes": ("Bytes of completely received streams.", ("mirror",)),
    "added_bytes": ("Bytes of blocks in the state added.", ("mirror",)),
    "resumed_bytes": ("Bytes that a checkpoint saved.", ("mirror",)),
    "throttle_wait_seconds": ("Time that transfers waited because of rate limits.", ("mirror",)),
    "phase_seconds": ("Time spent by phase.", ("mirror", "phase")),
    "failed_commands": ("Failed commands other than queued runs.", ("mirror", "verb", "result")),
}
_GAUGES = {
    "lag_seconds": "Age of what the destination shows.",
    "rpo_seconds": "Recovery point objective.",
    "rpo_used_ratio": "Lag as a share of the RPO.",
    "expected_lag_seconds": "The longest gap that the schedule allows.",
    "verified_timestamp_seconds": "When the destination was last verified.",
    "verified_differences": "How many differences the last verification found.",
    "mirrored": "1 while the mirror is in the state mirrored.",
    "quiesced": "1 while it is quiesced.",
    "running": "1 while it runs.",
    "next_run_timestamp_seconds": "When it runs next.",
    "checkpoint_bytes": "Bytes of an interrupted transfer that need not be sent again.",
    "checkpoint_age_seconds": "Age of that checkpoint.",
}


class Metrics:
    """Counts finished runs, and reads the current state from the scheduler."""

    def __init__(
        self, scheduler: Scheduler, store: StatusStore, host_alarms: Callable[[], Iterable[Finding]]
    ) -> None:
        """host_alarms: active alarms of the host."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_Now(scheduler, store, host_alarms))
        self._counters = {
            name: Counter(f"mirrord_{name}", text, labels, registry=self.registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._blocks = Gauge(
            "mirrord_blocks",
            "Blocks by state in the last delta.",
            ["mirror", "state"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "mirrord_run_seconds",
            "Duration of runs that moved data.",
            ["mirror"],
            buckets=_DURATIONS_S,
            registry=self.registry,
        )
        self._pause = Histogram(
            "mirrord_pause_seconds",
            "Duration of pauses of applications.",
            ["mirror"],
            buckets=_PAUSES_S,
            registry=self.registry,
        )
        self.jumps = Counter(
            "mirrord_clock_jumps", "Jumps of the wall clock.", registry=self.registry
        )

    def count(self, job: Job, outcome: Outcome) -> None:
        """A job ended."""
        name, update = job.name, outcome.update
        result = outcome.status if outcome.error is None else outcome.error.code
        self._counters["runs"].labels(name, job.verb, job.cause, result).inc()
        if job.number > 1:
            self._counters["retries"].labels(name).inc()
        if update is None or not update.snapshot:
            return
        self._counters["transfer_bytes"].labels(name).inc(update.stream_bytes)
        self._counters["added_bytes"].labels(name).inc(update.added_bytes)
        self._counters["resumed_bytes"].labels(name).inc(update.resumed_bytes)
        self._counters["throttle_wait_seconds"].labels(name).inc(update.throttled_s)
        self._duration.labels(name).observe(outcome.duration_s)
        if update.pause_s is not None:
            self._pause.labels(name).observe(update.pause_s)
        for phase, spent_s in update.phases.items():
            self._counters["phase_seconds"].labels(name, phase).inc(spent_s)
        if update.block_states is not None:
            for state, blocks in update.block_states._asdict().items():
                self._blocks.labels(name, state).set(blocks)

    def failed(self, name: str, verb: str, code: str) -> None:
        """A command that did not wait in the queue failed."""
        self._counters["failed_commands"].labels(name, verb, code).inc()

    def text(self) -> tuple[bytes, str]:
        """The metrics in Prometheus format, and their content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Now(Collector):
    """The values at the moment of reading."""

    def __init__(
        self, scheduler: Scheduler, store: StatusStore, host_alarms: Callable[[], Iterable[Finding]]
    ) -> None:
        self._scheduler, self._store, self._host_alarms = scheduler, store, host_alarms

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        gauges = {
            name: GaugeMetricFamily(f"mirrord_{name}", text, labels=["mirror"])
            for name, text in _GAUGES.items()
        }
        alarms = GaugeMetricFamily(
            "mirrord_alarm", "1 for each active alarm.", labels=["mirror", "kind", "level"]
        )
        for finding in self._host_alarms():
            alarms.add_metric(["", finding.kind, finding.level], 1)
        failures = GaugeMetricFamily(
            "mirrord_last_failed",
            "1 if the last command of this kind failed.",
            labels=["mirror", "verb"],
        )
        for status in self._store.rows():
            name, reading = status.name, status.reading
            watched, verified = self._scheduler.mirrors.get(name), reading.verified
            values = {
                "lag_seconds": status.lag_s,
                "rpo_seconds": reading.rpo_s,
                "rpo_used_ratio": status.lag.used,
                "expected_lag_seconds": (
                    watched.schedule.period_s if watched and watched.schedule else None
                ),
                "mirrored": float(reading.state is State.MIRRORED),
                "quiesced": float(reading.quiesced),
                "running": float(status.running is not None),
                "next_run_timestamp_seconds": status.next_ns / 1e9 if status.next_ns else None,
                "checkpoint_bytes": reading.checkpoint.size_bytes,
                "checkpoint_age_seconds": status.checkpoint_age_s,
                "verified_timestamp_seconds": verified.at_ns / 1e9 if verified else None,
                "verified_differences": verified.differences if verified else None,
            }
            for key, value in values.items():
                if value is not None:
                    gauges[key].add_metric([name], value)
            for failure in reading.failures:
                failures.add_metric([name, failure.verb], 1)
            for alarm in status.alarms:
                alarms.add_metric([name, alarm.kind, alarm.level], 1)
        yield from gauges.values()
        yield alarms
        yield failures
        yield from livemetrics.collect(self._store.rows())
        yield GaugeMetricFamily(
            "mirrord_queue_waiting",
            "Mirrors waiting in the queue.",
            value=len(self._scheduler.queue.waiting),
        )
        yield GaugeMetricFamily(
            "mirrord_queue_running", "Mirrors that run.", value=len(self._scheduler.queue.running)
        )
