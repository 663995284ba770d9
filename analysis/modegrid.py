"""Which modes are simulated for a trace: each maximum latency on each link, with a congestion
policy to compare, and the search for the link that keeps a mirror synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirrord.analysis.links import steps
from mirrord.analysis.modes import Link, Outcome, Scenario, simulate
from mirrord.analysis.replay import COLUMNS
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.live import Mode
from mirrord.core.text import harmless
from mirrord.core.units import format_duration
from mirrord.policies.congestion import PullAhead
from mirrord.policies.dynamic import Dynamic
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import AnyPolicy
from mirrord.policies.scheduled import Scheduled
from mirrord.schedules.spans import Span
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.store import TraceFile

#: Links are searched up to this rate, bytes per second.
_RATE_MAX = 1.25e11
Progress = Callable[[str, int, int], None]
#: The policies that can be simulated, by name; what each is, in words.
POLICIES: Mapping[str, str] = {
    "dynamic": "synchronous unless clients wait for too long",
    "semi-sync": "a fixed lag",
    "sync": "always synchronous",
    "pull-ahead": "tracks changes when the link is congested, as DRBD does",
}


@dataclass(frozen=True)
class Plan:
    """What is simulated. policy: of `POLICIES`. keys: of the policy `dynamic`, one for each maximum
    latency. rates: of the links, bytes per second. lag_bytes: of the policy `semi-sync`.
    fill_bytes: in flight, at which `pull-ahead` leaves synchronous mode; None: what the link sends
    in the maximum latency. sync_hours: in which the mirror is always synchronous. in_sync: the
    share of the time for which a link is searched, 0: none is.
    """

    policy: str
    keys: tuple[DynamicKeys, ...]
    rates: tuple[int, ...]
    round_trip_s: float
    storage_s: float
    lag_bytes: int = 0
    fill_bytes: int | None = None
    sync_hours: tuple[Span, ...] = ()
    zone: str = "UTC"
    in_sync: float = 0.999

    def scenario(self, keys: DynamicKeys, rate: float) -> Scenario:
        """The policy of this plan on a link."""
        link = Link(round(rate), self.round_trip_s, self.storage_s)
        name = f"{self.policy}, {format_duration(keys.max_lat_s)}"
        return Scenario(name, link, self._policy(keys, link), keys.max_lat_s)

    def _policy(self, keys: DynamicKeys, link: Link) -> AnyPolicy:
        made: AnyPolicy
        if self.policy == "pull-ahead":
            fill = self.fill_bytes
            made = PullAhead(max(1, round(link.rate * keys.max_lat_s)) if fill is None else fill)
        elif self.policy == "semi-sync":
            made = Fixed(Mode.SEMI_SYNC, self.lag_bytes)
        elif self.policy == "sync":
            made = Fixed(Mode.SYNC)
        else:
            made = Dynamic(keys)
        if self.sync_hours:
            return Scheduled(self.sync_hours, Fixed(Mode.SYNC), made, self.zone)
        return made


@dataclass(frozen=True)
class Simulated:
    """A trace and what was simulated on it. outcomes: for each rate, for each maximum latency;
    compared: the same with the congestion policy, empty if that is the one. needed: for each
    maximum latency the rate that keeps the mirror synchronous (bytes per second), None: none does.
    """

    name: str
    epoch_ns: int | None
    first_ns: int
    span_s: float
    outcomes: tuple[Outcome, ...]
    compared: tuple[Outcome, ...]
    needed: tuple[float | None, ...]


def simulate_all(
    path: str,
    plan: Plan,
    reading: ReadOptions,
    *,
    progress: Progress = lambda name, done, total: None,
    importing: Callable[[str, int, int | None, int], None] | None = None,
) -> Simulated:
    """Simulate a plan on a trace, stored or of a foreign format. Errors of opening it, and of
    `simulate`. progress: gets the passes over the trace.
    """
    with open_trace(path, options=reading, progress=importing) as trace:
        pairs = [(keys, rate) for rate in plan.rates for keys in plan.keys]
        scenarios = [plan.scenario(*pair) for pair in pairs]
        others: list[Scenario] = []
        if plan.policy != "pull-ahead":  # with about the same limit
            congested = replace(plan, policy="pull-ahead", sync_hours=())
            others = [congested.scenario(*pair) for pair in pairs]
        progress(trace.facts.name, 0, trace.records)
        found = _simulated(trace, [*scenarios, *others])
        progress(trace.facts.name, trace.records, trace.records)
        outcomes, compared = found[: len(scenarios)], found[len(scenarios) :]
        searched = plan.in_sync and plan.policy == "dynamic"
        return Simulated(
            harmless(trace.facts.name),
            trace.facts.date_ns,
            trace.first_ns,
            outcomes[0].span_s,
            tuple(outcomes),
            tuple(compared),
            _needed(trace, plan, outcomes) if searched else (),
        )


def _simulated(trace: TraceFile, scenarios: Sequence[Scenario]) -> list[Outcome]:
    span_ns = trace.first_ns, trace.last_ns
    return simulate(trace.batches(COLUMNS), trace.facts, span_ns, scenarios)


def _needed(trace: TraceFile, plan: Plan, known: Sequence[Outcome]) -> tuple[float | None, ...]:
    """For each maximum latency the slowest step of `links` on which the mirror is synchronous for
    the wanted share of the time, or None; by bisection, all of them in one pass over the trace.
    """
    rates = steps(max(1.0, known[0].bytes / max(known[0].span_s, 1.0)), _RATE_MAX)
    # Of each maximum latency: the first step that may be enough, and the first known to be.
    least_s = plan.round_trip_s + plan.storage_s
    low = [len(rates) if least_s > keys.max_lat_s else 0 for keys in plan.keys]
    high = [len(rates)] * len(plan.keys)
    while tried := {
        place: (first + last) // 2
        for place, (first, last) in enumerate(zip(low, high, strict=True))
        if first < last
    }:
        scenarios = [plan.scenario(plan.keys[place], rates[step]) for place, step in tried.items()]
        outcomes = _simulated(trace, scenarios)
        for (place, step), outcome in zip(tried.items(), outcomes, strict=True):
            if outcome.share(Mode.SYNC) >= plan.in_sync:
                high[place] = step
            else:
                low[place] = step + 1
    return tuple(rates[step] if step < len(rates) else None for step in high)
