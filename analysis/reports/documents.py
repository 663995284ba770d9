"""The JSON documents of the reports on risk and on cost: all numbers, as docs/cli-json.md says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mirrord.analysis import risk
from mirrord.analysis.assess import Assessed, Terms
from mirrord.analysis.cost import Advice, Choice
from mirrord.analysis.numbers import Workload
from mirrord.analysis.prices import Prices
from mirrord.analysis.reports.common import too_long

#: Windows for which writers on a synchronous mirror may wait, seconds.
WINDOWS_S = (1.0, 60.0, 300.0)


def of_risk(
    workloads: Sequence[Workload], found: Mapping[str, Sequence[Assessed]], terms: Terms
) -> dict[str, object]:
    """`risk.json`: all numbers, in bytes and seconds."""
    return {
        "volume": terms.kind,
        "link": None if terms.link is None else str(terms.link),
        "traces": [
            {
                "name": each.name,
                "span_s": each.span_s,
                "bytes_written": each.bytes_written,
                "mean_rate": each.written_rate,
                "sync_link": {f"{w:g}": risk.peak_rate(each.writes, w) for w in WINDOWS_S},
                "semi_sync_link": {f"{s:g}": each.writes.links[s] for s in terms.lags_s},
                "schedules": [_schedule(e, terms) for e in found[each.name]],
                "longer_than_trace": too_long(each),
            }
            for each in workloads
        ],
    }


def _schedule(each: Assessed, terms: Terms) -> dict[str, object]:
    sizes = each.updates.sizes(terms.kind)
    return {
        "schedule": each.updates.label,
        "seconds": each.updates.seconds,
        "updates": len(each.updates),
        "sent_bytes": each.sent_bytes,
        "largest_update_bytes": int(sizes.max(initial=0)),
        "link_needed": each.need.rate,
        "link_needed_at_ns": each.need.at_ns,
        "late_updates": len(each.late_ns) if terms.link is not None else None,
        "lag_s": {
            "mean": each.lag.mean_s,
            "median": each.lag.median_s,
            "p95": each.lag.p95_s,
            "worst": each.lag.worst_s,
            "at_least": each.lag.at_least,
        },
        "loss_bytes": {
            "expected": each.loss.expected,
            "worst": each.loss.worst,
            "at_least": each.loss.at_least,
        },
        "worst_loss_at_ns": each.loss.worst_at_ns,
        "snapshot_bytes": {"source": each.space_source, "destination": each.space_destination},
    }


def of_costs(
    workloads: Sequence[Workload], found: Mapping[str, Advice], terms: Terms, prices: Prices
) -> dict[str, object]:
    """`compare.json`: all numbers; bytes, seconds, money per year."""
    return {
        "volume": terms.kind,
        "link": None if terms.link is None else str(terms.link),
        "overhead_s": terms.overhead_s,
        "rpo_s": terms.rpo_s,
        "max_loss_bytes": terms.loss_bytes,
        "prices": {
            "currency": prices.currency,
            "link_mbit_month": prices.link,
            "transfer_gib": prices.transfer,
            "space_gib_month": prices.space,
            "lost_gib": prices.lost.text,
            "failures_year": prices.failures,
        },
        "traces": [_of_trace(each, found[each.name]) for each in workloads],
    }


def _of_trace(workload: Workload, advice: Advice) -> dict[str, object]:
    return {
        "name": workload.name,
        "recommended": advice.best.name,
        "recommended_link": _finite(advice.best.link),
        "usable": advice.best.usable,
        "ties": [each.name for each in advice.ties],
        "cheapest_from_factor": advice.from_factor,
        "cheapest_to_factor": _finite(advice.to_factor),
        "choices": [_choice(each, advice) for each in advice.choices],
        "longer_than_trace": too_long(workload),
        "without_busiest_minute": _quieter(workload, advice.quieter),
    }


def _quieter(workload: Workload, advice: Advice | None) -> dict[str, object] | None:
    if advice is None or workload.quieter is None or workload.busiest_ns is None:
        return None
    return {
        "from_ns": workload.busiest_ns[0],
        "to_ns": workload.busiest_ns[1],
        "bytes": workload.bytes_written - workload.quieter.bytes_written,
        "recommended": advice.best.name,
        "recommended_link": _finite(advice.best.link),
        "usable": advice.best.usable,
        "total": advice.best.total,
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _choice(each: Choice, advice: Advice) -> dict[str, object]:
    return {
        "name": each.name,
        "mode": each.mode,
        "seconds": each.interval_s,
        "link": _finite(each.link),
        "link_needed": each.need,
        "late_updates": each.late,
        "sent_rate": each.sent,
        "lag_worst_s": each.lag_s,
        "expected_loss_bytes": each.expected,
        "worst_loss_bytes": each.worst,
        "at_least": each.at_least,
        "snapshot_bytes": each.space,
        "fits": each.fits,
        "accepted": each.accepted,
        "judged": each.sure,
        "on_front": each in advice.front,
        "cost": {
            "link": each.link_cost,
            "transfer": each.transfer_cost,
            "space": each.space_cost,
            "loss": each.loss_cost,
            "total": each.total,
        },
    }
