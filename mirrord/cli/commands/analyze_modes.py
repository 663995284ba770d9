"""`mirrord analyze modes`: a live mirror under a recorded workload (docs/modes.md)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrord.cli.commands.analyze_run import Out, Traces, needs_extras, publish
from mirrord.cli.options import Json, finite
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import reads_traces
from mirrord.core.errors import UsageError
from mirrord.core.units import parse_duration, parse_size
from mirrord.traces.options import ReadOptions

if TYPE_CHECKING:
    from mirrord.analysis.modegrid import Plan

_POLICY, _LINK = "Policy", "Link"
_KM = {"km": 1.0, "mi": 1.609344, "miles": 1.609344}
_DISTANCE = re.compile(r"(\d+(?:\.\d+)?)\s*(km|mi|miles)")
_BANDWIDTH = re.compile(r"\d+(?:\.\d+)?\s*[kMG]bit", re.IGNORECASE)

# fmt: off
Policy = Annotated[str, typer.Option(
    help="dynamic, semi-sync, sync or pull-ahead.", rich_help_panel=_POLICY)]
MaxLat = Annotated[str, typer.Option(
    metavar="TIMES", help="Latency that clients accept; comma-separated.",
    rich_help_panel=_POLICY)]
MaxRpo = Annotated[str, typer.Option(
    metavar="SIZE", help="dynamic: clients wait rather than exceed this lag.",
    rich_help_panel=_POLICY)]
Lag = Annotated[str, typer.Option(
    metavar="SIZE", help="semi-sync: the lag at which clients wait.", rich_help_panel=_POLICY)]
Window = Annotated[str, typer.Option(
    metavar="TIME", help="dynamic: latencies are averaged over it, 2 to 5 s.",
    rich_help_panel=_POLICY)]
HoldDown = Annotated[str, typer.Option(
    metavar="TIME", help="dynamic: shortest time out of synchronous mode.",
    rich_help_panel=_POLICY)]
Buffer = Annotated[str, typer.Option(
    metavar="SIZE", help="dynamic: with more on the way, changes are only tracked.",
    rich_help_panel=_POLICY)]
Fill = Annotated[str, typer.Option(
    metavar="SIZE", help="pull-ahead: bytes in flight; default: by --max-lat.",
    rich_help_panel=_POLICY)]
SyncHours = Annotated[list[str] | None, typer.Option(
    metavar="HOURS", help="Hours in which the mirror stays synchronous; may be repeated.",
    rich_help_panel=_POLICY)]
Zone = Annotated[str, typer.Option(
    help="Time zone of these hours and of plots.", rich_help_panel=_POLICY)]
Bandwidth = Annotated[str, typer.Option(
    metavar="RATES", help="Rates of the link; comma-separated.", rich_help_panel=_LINK)]
Distance = Annotated[str, typer.Option(
    metavar="DISTANCE", help="Between the ends: 25mi, 40km, or a round trip: 0.4ms.",
    rich_help_panel=_LINK)]
Storage = Annotated[str, typer.Option(
    metavar="TIME", help="Latency of a write on the storage of either end.",
    rich_help_panel=_LINK)]
InSync = Annotated[float, typer.Option(
    min=0, max=100, callback=finite, metavar="PERCENT", rich_help_panel=_LINK,
    help="dynamic: also search the link for so much time in sync; 0: do not.")]
# fmt: on


@reads_traces
@needs_extras()
def modes(
    traces: Traces,
    options: ReadOptions,
    out: Out = None,
    policy: Policy = "dynamic",
    max_lat: MaxLat = "4ms,5ms,7ms",
    max_rpo: MaxRpo = "",
    lag: Lag = "10M",
    window: Window = "3s",
    hold_down: HoldDown = "5m",
    buffer: Buffer = "1G",
    fill: Fill = "",
    sync_hours: SyncHours = None,
    zone: Zone = "UTC",
    bandwidth: Bandwidth = "1Gbit/s",
    distance: Distance = "25mi",
    storage: Storage = "0.5ms",
    in_sync: InSync = 99.9,
    as_json: Json = False,
) -> None:
    """Simulate a live mirror: its modes and lag, its clients' waits, the link that it needs."""
    given = locals()
    from dataclasses import replace

    from mirrord.analysis.modegrid import simulate_all
    from mirrord.analysis.reports.common import distinct
    from mirrord.analysis.reports.modes import report

    plan = _plan(given)

    def made() -> Any:
        with ProgressLine(quiet=as_json) as line:
            found = [
                simulate_all(path, plan, options, progress=line.replaying, importing=line.reading)
                for path in traces
            ]
        names = distinct([each.name for each in found])
        named = [replace(each, name=name) for each, name in zip(found, names, strict=True)]
        return report(named, plan)

    publish(modes, given, made)


def _plan(given: dict[str, Any]) -> Plan:
    from mirrord.analysis.modegrid import POLICIES, Plan
    from mirrord.core.dynamickeys import DynamicKeys
    from mirrord.schedules.spans import parse_span
    from mirrord.schedules.zones import check_zone

    check_zone(given["zone"])
    if given["policy"] not in POLICIES:
        raise UsageError(
            f"'{given['policy']}' is not a policy that can be simulated",
            hint=f"Policies are: {', '.join(POLICIES)}.",
        )
    keys = tuple(
        DynamicKeys(
            max_lat_s,
            max_rpo_bytes=parse_size(given["max_rpo"]) if given["max_rpo"] else None,
            window_s=parse_duration(given["window"]),
            hold_down_s=parse_duration(given["hold_down"]),
            buffer_bytes=parse_size(given["buffer"]),
        )
        for max_lat_s in dict.fromkeys(map(parse_duration, _listed(given["max_lat"])))
    )
    rates = tuple(dict.fromkeys(map(_rate, _listed(given["bandwidth"]))))
    for option, values in (("--max-lat", keys), ("--bandwidth", rates)):
        if not values:
            raise UsageError(f"{option} is empty", hint="Give one value, or several with commas.")
    return Plan(
        policy=given["policy"],
        keys=keys,
        rates=rates,
        round_trip_s=_round_trip_s(given["distance"]),
        storage_s=parse_duration(given["storage"]),
        lag_bytes=parse_size(given["lag"]),
        fill_bytes=parse_size(given["fill"]) if given["fill"] else None,
        sync_hours=tuple(parse_span(each) for each in given["sync_hours"] or ()),
        zone=given["zone"],
        in_sync=given["in_sync"] / 100,
    )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _rate(text: str) -> int:
    """Bytes per second of `1Gbit/s`, `1Gbit`, `20MiB/s`."""
    from mirrord.schedules.rates import parse_rates

    found = parse_rates(f"{text}/s" if _BANDWIDTH.fullmatch(text) else text)
    rate = found.otherwise
    if found.clauses or rate is None:
        raise UsageError(
            f"'{text}' is not the rate of a link that can be simulated",
            hint="Give constant rates, for example --bandwidth 1Gbit/s,200Mbit/s.",
        )
    return round(rate)


def _round_trip_s(text: str) -> float:
    from mirrord.analysis.modes import round_trip_s

    match = _DISTANCE.fullmatch(text.strip().lower())
    if match is not None:
        return round_trip_s(float(match[1]) * _KM[match[2]])
    try:
        return parse_duration(text)
    except UsageError:
        raise UsageError(
            f"'{text}' is not a distance",
            hint="Write for example 25mi, 40km, or the round trip: 0.4ms.",
        ) from None
