"""Assessment of each schedule of a workload: link needed, lag, loss and space of snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirrord.analysis import risk
from mirrord.analysis.links import RATE_MIN, slowest
from mirrord.analysis.numbers import Longs, Updates, Workload
from mirrord.schedules.rates import Rates


@dataclass(frozen=True)
class Terms:
    """Assumptions about the mirror.

    kind: the volume (one of `numbers.KINDS`). link: the available one; None: each schedule gets
    a link of its own. overhead_s: fixed time of an update besides its transfer. keep_source,
    keep_destination: reference snapshots kept. lags_s: bounds of semi-synchronous modes. zone:
    time zone of the wall clock. rpo_s, loss_bytes: the maximum age of the copy and the maximum loss
    that are accepted, None: any.
    """

    kind: str = "active_map"
    link: Rates | None = None
    overhead_s: float = 1.0
    keep_source: int = 2
    keep_destination: int = 10
    lags_s: tuple[float, ...] = (10.0, 60.0)
    zone: str = "UTC"
    rpo_s: float | None = None
    loss_bytes: float | None = None

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """Bounds of semi-synchronous modes, with the longest one that is accepted: it is often the
        cheapest.
        """
        extra = [self.rpo_s] if self.lags_s and self.rpo_s else []
        return tuple(sorted({*self.lags_s, *extra}))

    @property
    def least(self) -> float:
        """The given link at its slowest hour, bytes per second; infinite without one."""
        return float("inf") if self.link is None else slowest(self.link)

    def accepts(self, lag_s: float, loss_bytes: float) -> bool:
        """Whether a copy may be as old, and a failure lose as much."""
        return (self.rpo_s is None or lag_s <= self.rpo_s) and (
            self.loss_bytes is None or loss_bytes <= self.loss_bytes
        )


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


def arrivals(workload: Workload, updates: Updates, terms: Terms, link: float | Rates) -> Longs:
    """When each update has arrived over this link, ns."""
    return risk.commits(
        updates, terms.kind, link, epoch_ns=workload.calendar_ns, overhead_s=terms.overhead_s
    )


def assess(workload: Workload, updates: Updates, terms: Terms, account: risk.Account) -> Assessed:
    """Assess one schedule. account: of the workload's written bytes. Without a link it gets the
    slowest one on which each update ends before the next begins.
    """
    need = risk.link_need(updates, terms.kind, terms.overhead_s)
    link: float | Rates = terms.link if terms.link is not None else max(need.rate, RATE_MIN)
    arrived = arrivals(workload, updates, terms, link)
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
