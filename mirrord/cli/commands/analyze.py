"""Report what a mirror would transfer, cost and risk (docs/analysis.md).

Panel: Planning 2

From workload traces, `reduction` computes how much asynchronous mirrors transfer, by update
interval; `risk` which link they need, how old the copy gets and what a failure loses; `compare`
what each mode of mirroring costs per year, with a recommendation; `modes` how a live mirror would
change its mode, and how long its clients would wait ([modes.md](modes.md)). `live` shows what one
did, from a [recording](recording.md#live-mirrors). The computation is
described in [analysis.md](analysis.md). A trace is a stored one or in any known format; the
options for reading are those of `mirrord trace import`. Schedules are a rule or a
[name](schedules.md); the link may also depend on the hour ([rates](schedules.md#rates)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrord.cli.commands.analyze_live import live
from mirrord.cli.commands.analyze_modes import modes
from mirrord.cli.commands.analyze_run import Out, Traces, needs_extras, publish
from mirrord.cli.options import Json, finite
from mirrord.cli.progress import ProgressLine
from mirrord.cli.reading import reads_traces
from mirrord.core.errors import UsageError
from mirrord.core.units import parse_duration, parse_size
from mirrord.traces.options import ReadOptions

if TYPE_CHECKING:
    from mirrord.analysis.assess import Terms
    from mirrord.analysis.numbers import Workload
    from mirrord.analysis.reports.plots import Report
    from mirrord.analysis.study import Plan
    from mirrord.schedules.schedule import Schedule

_REPLAY, _MIRROR, _PRICES = "Replay", "Assumptions about the mirror", "Prices"
_VOLUMES = ("update_in_place", "active_map", "no_active_map")

# fmt: off
Intervals = Annotated[str, typer.Option(
    help="Update intervals, from the first record on; comma-separated.", rich_help_panel=_REPLAY)]
Schedules = Annotated[list[str] | None, typer.Option(
    "--schedule", metavar="WHEN", rich_help_panel=_REPLAY,
    help="Also replay a schedule: a rule (cron, 'lag 5m') or a name; may be repeated.")]
Windows = Annotated[list[str] | None, typer.Option(
    "--window", metavar="HOURS", rich_help_panel=_REPLAY,
    help="Hours in which these schedules may run; may be repeated.")]
Zone = Annotated[str, typer.Option(
    help="Time zone of schedules, prices and plots.", rich_help_panel=_REPLAY)]
FreeSpace = Annotated[float, typer.Option(
    min=0, max=0.99, callback=finite, help="Free share of a no-overwrite volume.",
    rich_help_panel=_REPLAY)]
Block = Annotated[int, typer.Option(help="Block size in bytes.", rich_help_panel=_REPLAY)]
Threads = Annotated[int, typer.Option(
    min=1, max=256, help="Replay threads.", rich_help_panel=_REPLAY)]
Cluster = Annotated[str, typer.Option(
    metavar="ADDRESS", help="Replay on a Dask cluster; its scheduler, tcp://HOST:PORT.",
    rich_help_panel=_REPLAY)]
Link = Annotated[str, typer.Option(
    metavar="RATES", help="Rate of the available link: 20MiB/s, or rates by the hour.",
    rich_help_panel=_MIRROR)]
Overhead = Annotated[str, typer.Option(
    help="Fixed time of an update, besides its transfer.", rich_help_panel=_MIRROR)]
Into = Annotated[str, typer.Option(
    metavar="KIND", help="Kind of volume: active_map, update_in_place or no_active_map.",
    rich_help_panel=_MIRROR)]
Keep = Annotated[int, typer.Option(
    min=1, help="Reference snapshots kept at the source.", rich_help_panel=_MIRROR)]
KeepThere = Annotated[int, typer.Option(
    min=1, help="Reference snapshots kept at the destination.", rich_help_panel=_MIRROR)]
SemiSync = Annotated[str, typer.Option(
    help="Lag bounds of semi-synchronous mirrors; comma-separated.", rich_help_panel=_MIRROR)]
Rpo = Annotated[str, typer.Option(
    metavar="TIME", help="Only choices whose copy never gets older.", rich_help_panel=_MIRROR)]
MaxLoss = Annotated[str, typer.Option(
    metavar="SIZE", help="Only choices that never lose more.", rich_help_panel=_MIRROR)]
PriceLink = Annotated[float, typer.Option(
    min=0, callback=finite, help="Price per Mbit/s and month.", rich_help_panel=_PRICES)]
PriceTransfer = Annotated[float, typer.Option(
    min=0, callback=finite, help="Price per GiB sent.", rich_help_panel=_PRICES)]
PriceSpace = Annotated[float, typer.Option(
    min=0, callback=finite, help="Price per GiB held by snapshots and month.",
    rich_help_panel=_PRICES)]
PriceLost = Annotated[str, typer.Option(
    rich_help_panel=_PRICES,
    help="Price per GiB of lost data: 1000, or '2000 08:00-18:00 Mon-Fri, else 100'.")]
Failures = Annotated[float, typer.Option(
    min=0, callback=finite, help="Expected losses of the source per year.",
    rich_help_panel=_PRICES)]
Currency = Annotated[str, typer.Option(help="Currency of the prices.", rich_help_panel=_PRICES)]
# fmt: on
#: More is taken for a typing error.
_AMOUNT_MAX = 1e12
_INTERVALS = "1m,5m,15m,30m,1h,6h,12h,24h"
#: Where the cheapest interval is sought, the paper's are too far apart.
_SEARCHED = "1m,2m,5m,10m,15m,30m,1h,2h,4h,6h,12h,24h"


@reads_traces
@needs_extras()
def reduction(
    traces: Traces,
    options: ReadOptions,
    out: Out = None,
    intervals: Intervals = _INTERVALS,
    schedule: Schedules = None,
    window: Windows = None,
    zone: Zone = "UTC",
    link: Link = "",
    free_space: FreeSpace = 0.2,
    block: Block = 4096,
    threads: Threads = 2,
    cluster: Cluster = "",
    as_json: Json = False,
) -> None:
    """Show what asynchronous mirrors transfer, by update interval (the paper's Figures 2, 3)."""
    given = locals()
    from mirrord.analysis.reports.reduction import report

    _run(reduction, given, lambda workloads, _terms: report(workloads))


@reads_traces
@needs_extras()
def risk(
    traces: Traces,
    options: ReadOptions,
    out: Out = None,
    intervals: Intervals = _INTERVALS,
    schedule: Schedules = None,
    window: Windows = None,
    zone: Zone = "UTC",
    link: Link = "",
    overhead: Overhead = "1s",
    semi_sync: SemiSync = "10s,1m",
    into: Into = "active_map",
    keep_source: Keep = 2,
    keep_destination: KeepThere = 10,
    free_space: FreeSpace = 0.2,
    block: Block = 4096,
    threads: Threads = 2,
    cluster: Cluster = "",
    as_json: Json = False,
) -> None:
    """Show the link that mirrors need, the age of the copy, and the data lost at a failure."""
    given = locals()
    from mirrord.analysis.reports.risk import report

    _run(risk, given, report)


@reads_traces
@needs_extras()
def compare(
    traces: Traces,
    options: ReadOptions,
    out: Out = None,
    intervals: Intervals = _SEARCHED,
    schedule: Schedules = None,
    window: Windows = None,
    zone: Zone = "UTC",
    link: Link = "",
    overhead: Overhead = "1s",
    semi_sync: SemiSync = "10s,1m,5m",
    rpo: Rpo = "",
    max_loss: MaxLoss = "",
    price_link: PriceLink = 1.0,
    price_transfer: PriceTransfer = 0.01,
    price_space: PriceSpace = 0.05,
    price_lost: PriceLost = "1000",
    failures: Failures = 0.5,
    currency: Currency = "EUR",
    into: Into = "active_map",
    keep_source: Keep = 2,
    keep_destination: KeepThere = 10,
    free_space: FreeSpace = 0.2,
    block: Block = 4096,
    threads: Threads = 2,
    cluster: Cluster = "",
    as_json: Json = False,
) -> None:
    """Compare synchronous, semi-synchronous and asynchronous mirrors by cost; recommend one."""
    given = locals()
    from mirrord.analysis.prices import Prices, parse_loss_price
    from mirrord.analysis.reports.compare import report

    _amounts(given, "price_link", "price_transfer", "price_space", "failures")
    if not currency.strip() or not currency.isprintable():
        raise UsageError(
            "--currency is not a name", hint="Give a name, for example --currency USD."
        )
    per_gib = parse_loss_price(price_lost, zone=zone)
    prices = Prices(price_link, price_transfer, price_space, per_gib, failures, currency)
    _run(compare, given, lambda workloads, terms: report(workloads, terms, prices))


def _run(
    command: Callable[..., None],
    given: dict[str, Any],
    made: Callable[[list[Workload], Terms], Report],
) -> None:
    """Replay the traces, make and write the report, print the conclusions."""
    # Options and the output folder are checked before the work, which may take hours.
    terms = _terms(given)
    plan = _plan(given, terms)
    publish(command, given, lambda: made(_workloads(given, plan), terms))


def _plan(given: dict[str, Any], terms: Terms) -> Plan:
    from mirrord.analysis.study import Plan

    return Plan(
        intervals_s=tuple(_durations(given["intervals"])),
        schedules=tuple(_schedules(given)),
        bounds_s=terms.bounds_s,
        link=terms.link,
        overhead_s=terms.overhead_s,
        free_space=given["free_space"],
        block=given["block"],
        threads=given["threads"],
        cluster=given["cluster"] or None,
        sensitivity="price_link" in given,
    )


def _workloads(given: dict[str, Any], plan: Plan) -> list[Workload]:
    from mirrord.analysis.study import study, summed_up

    with ProgressLine(quiet=given["as_json"]) as line:
        found = [
            study(path, plan, given["options"], progress=line.replaying, importing=line.reading)
            for path in given["traces"]
        ]
    return summed_up(found)


def _amounts(given: dict[str, Any], *names: str) -> None:
    for name in names:
        if not given[name] <= _AMOUNT_MAX:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option} {given[name]} is not an amount",
                hint="Give a number up to 1e12, for example 0.5 or 20.",
            )


def _terms(given: dict[str, Any]) -> Terms:
    from mirrord.analysis.assess import Terms
    from mirrord.schedules.rates import parse_rates
    from mirrord.schedules.zones import check_zone

    check_zone(given["zone"])
    if not given["intervals"].strip(", ") and not given["schedule"]:
        raise UsageError(
            "neither an interval nor a schedule is given",
            hint="Give for example --intervals 5m,1h, or --schedule office-hours.",
        )
    if given.get("into", _VOLUMES[0]) not in _VOLUMES:
        raise UsageError(
            f"'{given['into']}' is not a kind of volume", hint=f"Kinds are: {', '.join(_VOLUMES)}."
        )
    return Terms(
        kind=given.get("into", "active_map"),
        link=parse_rates(given["link"], zone=given["zone"]) if given["link"] else None,
        overhead_s=parse_duration(given.get("overhead", "1s")),
        keep_source=given.get("keep_source", 2),
        keep_destination=given.get("keep_destination", 10),
        lags_s=tuple(_bounds(given.get("semi_sync", ""))),
        zone=given["zone"],
        rpo_s=parse_duration(given["rpo"]) if given.get("rpo") else None,
        loss_bytes=parse_size(given["max_loss"]) if given.get("max_loss") else None,
    )


def _durations(text: str) -> list[float]:
    """The durations of a comma-separated list, without duplicates."""
    return list(dict.fromkeys(parse_duration(each) for each in text.split(",") if each.strip()))


def _bounds(text: str) -> list[float]:
    found = _durations(text)
    if 0 in found:
        raise UsageError(
            "a semi-synchronous mirror with a bound of 0 s is a synchronous one",
            hint="Give for example --semi-sync 10s,1m; the synchronous one is always included.",
        )
    return found


def _schedules(given: dict[str, Any]) -> Iterator[tuple[str, Schedule]]:
    from mirrord.config.reading import is_name
    from mirrord.config.schedules import Schedules as Known
    from mirrord.core.model import Timing
    from mirrord.system.paths import standard

    windows = tuple(given["window"] or ())
    if windows and not given["schedule"]:
        raise UsageError(
            "--window applies to schedules, and none is given",
            hint="Give one: --schedule 'every 15m'. --intervals cannot be restricted to hours.",
        )
    known = Known(standard().schedules, zone=given["zone"])
    for rule in dict.fromkeys(given["schedule"] or []):
        if is_name(rule) and windows:
            raise UsageError(
                f"--window cannot be used with the named schedule '{rule}': it has its own hours",
                hint="Give a rule: 'every 15m', or a cron line.",
            )
        words = f"{rule} ({', '.join(windows)})" if windows else rule
        yield words, known.parsed(Timing((rule,), windows=windows))


#: The commands of this group.
COMMANDS = {
    "reduction": reduction,
    "risk": risk,
    "compare": compare,
    "modes": modes,
    "live": live,
}
