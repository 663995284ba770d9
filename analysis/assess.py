"""Assessment of each schedule of a workload: link needed, lag, loss and space of snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirrord.analysis import risk
from mirrord.analysis.numbers import Longs, Updates, Workload
from mirrord.schedules.rates import Rates

#: The slowest link assumed: an idle workload needs none, but its updates still have to end.
RATE_MIN = 1024.0
_RATE_MAX = 1e15


@dataclass(frozen=True)
class Terms:
    """Assumptions about the mirror.

    kind: the volume (one of `numbers.KINDS`). link: the available one; None: each schedule gets
    the slowest link on which its updates end in time. overhead_s: fixed time of an update besides
    its transfer. keep_source, keep_destination: reference snapshots kept. lags_s: bounds of
    semi-synchronous modes. zone: time zone of the wall clock.
    """

    kind: str = "active_map"
    link: Rates | None = None
    overhead_s: float = 1.0
    keep_source: int = 2
    keep_destination: int = 10
    lags_s: tuple[float, ...] = (10.0, 60.0)
    zone: str = "UTC"

    @property
    def least(self) -> float:
        """The given link at its slowest hour, bytes per second; infinite without one."""
        if self.link is None:
            return float("inf")
        rates = [rate for rate, _ in self.link.clauses]
        if not self.link.constant or not rates:
            rates.append(self.link.otherwise)
        return min(_RATE_MAX if rate is None else rate for rate in rates)


@dataclass(frozen=True)
class Assessed:
    """One schedule. late_ns: snapshots whose transfer had not ended when the next was taken."""

    updates: Updates
    need: risk.LinkNeed
    shown: risk.Showing
    lag: risk.Lag
    loss: risk.Loss
    late_ns: Longs
    space_source: int
    space_destination: int
    sent_bytes: int


def assess(workload: Workload, updates: Updates, terms: Terms, account: risk.Account) -> Assessed:
    """Assess one schedule. account: of the workload's written bytes."""
    need = risk.link_need(updates, terms.kind)
    link: float | Rates = terms.link if terms.link is not None else max(need.rate, RATE_MIN)
    # A link that is just fast enough leaves no time for overhead; its updates are not late.
    overhead_s = terms.overhead_s if terms.link is not None else 0.0
    arrived = risk.commits(
        updates, terms.kind, link, epoch_ns=workload.calendar_ns, overhead_s=overhead_s
    )
    shown = risk.showing(workload, updates, arrived)
    late = risk.late(updates, arrived) if terms.link is not None else np.zeros(0, np.int64)
    return Assessed(
        updates=updates,
        need=need,
        shown=shown,
        lag=risk.lag(shown),
        loss=account.loss(shown),
        late_ns=updates.end_ns[late],
        space_source=risk.snapshot_space(updates, terms.kind, terms.keep_source),
        space_destination=risk.snapshot_space(updates, terms.kind, terms.keep_destination),
        sent_bytes=int(updates.sizes(terms.kind).sum()),
    )


def assess_all(workload: Workload, terms: Terms) -> list[Assessed]:
    """Assess all schedules for which the trace is long enough."""
    account = risk.Account(workload.writes)
    return [assess(workload, updates, terms, account) for updates in workload.shown()]
