"""`mirrord analyze`: what a mirror would move, cost and risk on a traced workload."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrord.cli.output import Json, print_json
from mirrord.core.errors import Unsupported, UsageError
from mirrord.core.units import format_size, parse_duration

if TYPE_CHECKING:
    from mirrord.analysis.assess import Terms
    from mirrord.analysis.numbers import Workload
    from mirrord.analysis.reports.plots import Report
    from mirrord.schedules.schedule import Schedule

_EVERY_S, _EVERY_LINE_S = 0.2, 10.0
_VOLUMES = ("update_in_place", "active_map", "no_active_map")

Traces = Annotated[
    list[str], typer.Argument(metavar="TRACE…", help="Traces: stored ones, or of any known format.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the report: HTML, PNG, SVG, CSV, JSON.")]
Intervals = Annotated[
    str, typer.Option(help="Update intervals from the first record, with commas between.")
]
Schedules = Annotated[
    list[str] | None,
    typer.Option("--schedule", help="A schedule too: a rule ('lag 5m', cron) or a name; repeat."),
]
Windows = Annotated[
    list[str] | None, typer.Option("--window", help="Hours in which schedules may run; repeat.")
]
Zone = Annotated[str, typer.Option(help="Time zone of schedules, prices and plots.")]
Link = Annotated[
    str, typer.Option(help="The link that is there: 20MiB/s, or rates by the hour (schedules.md).")
]
Overhead = Annotated[str, typer.Option(help="What an update takes besides its bytes.")]
FreeSpace = Annotated[
    float, typer.Option(min=0, max=0.99, help="Free part of a volume that never overwrites.")
]
Block = Annotated[int, typer.Option(help="Bytes of a block.")]
Threads = Annotated[int, typer.Option(min=1, max=256, help="Threads of the replay.")]
Cluster = Annotated[
    str, typer.Option(help="Replay on a Dask cluster: tcp://HOST:PORT of its scheduler.")
]
Format = Annotated[str, typer.Option(help="Format of the traces, where it is not recognized.")]
AlignShift = Annotated[str, typer.Option(help="Bytes to add to each offset, or auto.")]
Dedup = Annotated[
    str, typer.Option(help="Leave out block writes repeated so soon (recorded at two layers).")
]
Only = Annotated[str, typer.Option(help="Of blktrace, blkparse: Q queued, C completed …")]
OfVolume = Annotated[str, typer.Option("--volume", help="Only this volume of the traces.")]
Into = Annotated[
    str, typer.Option(help="Volume to mirror: active_map, update_in_place or no_active_map.")
]
Keep = Annotated[int, typer.Option(min=1, help="Reference snapshots that stay at the source.")]
KeepThere = Annotated[int, typer.Option(min=1, help="Those that stay at the destination.")]
SemiSync = Annotated[
    str, typer.Option(help="Bounds of semi-synchronous mirrors to consider, with commas.")
]
_INTERVALS = "1m,5m,15m,30m,1h,6h,12h,24h"


def register(app: typer.Typer, name: str, panel: str) -> None:
    """Add the command to the application."""
    group = typer.Typer(
        help="What a mirror would move, cost and risk on a traced workload (docs/analysis.md).",
        no_args_is_help=True,
    )
    group.command("reduction")(reduction)
    group.command("risk")(risk)
    group.command("compare")(compare)
    app.add_typer(group, name=name, rich_help_panel=panel)


def reduction(
    traces: Traces,
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
    format: Format = "",
    align_shift: AlignShift = "0",
    dedup: Dedup = "0s",
    only: Only = "",
    volume: OfVolume = "",
    as_json: Json = False,
) -> None:
    """Say how much asynchronous mirrors transfer, by update interval (the paper's Figures 2, 3)."""
    options = locals()

    def made(workloads: list[Workload]) -> Report:
        from mirrord.analysis.reports.reduction import report

        return report(workloads)

    _run(options, made)


def risk(
    traces: Traces,
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
    format: Format = "",
    align_shift: AlignShift = "0",
    dedup: Dedup = "0s",
    only: Only = "",
    volume: OfVolume = "",
    as_json: Json = False,
) -> None:
    """Say which link mirrors need, how old the copy gets, and what a failure loses."""
    options = locals()

    def made(workloads: list[Workload]) -> Report:
        from mirrord.analysis.reports.risk import report

        return report(workloads, _terms(options))

    _run(options, made)


def compare(
    traces: Traces,
    out: Out = None,
    intervals: Intervals = _INTERVALS,
    schedule: Schedules = None,
    window: Windows = None,
    zone: Zone = "UTC",
    link: Link = "",
    overhead: Overhead = "1s",
    semi_sync: SemiSync = "10s,1m",
    price_link: Annotated[float, typer.Option(min=0, help="Per Mbit/s and month.")] = 1.0,
    price_transfer: Annotated[float, typer.Option(min=0, help="Per GiB sent.")] = 0.01,
    price_space: Annotated[float, typer.Option(min=0, help="Per GiB of snapshots, month.")] = 0.05,
    price_lost: Annotated[
        str, typer.Option(help="Per GiB lost: 1000, or '2000 08:00-18:00 Mon-Fri, else 100'.")
    ] = "1000",
    failures: Annotated[float, typer.Option(min=0, help="Losses of the source in a year.")] = 0.5,
    currency: Annotated[str, typer.Option(help="Name of the money.")] = "EUR",
    into: Into = "active_map",
    keep_source: Keep = 2,
    keep_destination: KeepThere = 10,
    free_space: FreeSpace = 0.2,
    block: Block = 4096,
    threads: Threads = 2,
    cluster: Cluster = "",
    format: Format = "",
    align_shift: AlignShift = "0",
    dedup: Dedup = "0s",
    only: Only = "",
    volume: OfVolume = "",
    as_json: Json = False,
) -> None:
    """Compare synchronous, semi-synchronous and asynchronous mirrors by cost, and advise."""
    options = locals()

    def made(workloads: list[Workload]) -> Report:
        from mirrord.analysis.cost import Prices, parse_loss_price
        from mirrord.analysis.reports.compare import report

        prices = Prices(
            price_link, price_transfer, price_space, parse_loss_price(price_lost, zone=zone),
            failures, currency,
        )  # fmt: skip
        return report(workloads, _terms(options), prices)

    _run(options, made)


def _run(options: dict[str, Any], made: Callable[[list[Workload]], Report]) -> None:
    """Replay the traces, make the report, write it, say the conclusions."""
    with _extras():
        _terms(options)  # what is wrong with an option is said before hours of work
        workloads = _workloads(options)
        report = made(workloads)
        files: list[str] = []
        out: Path | None = options["out"]
        if out is not None:
            from mirrord import __version__
            from mirrord.analysis.reports.save import save

            files = save(report, out, version=__version__)
    if options["as_json"]:
        where = None if out is None else str(out)
        said = {"status": "done", "out": where, "files": files, "warnings": list(report.warnings)}
        print_json({**said, "conclusions": list(report.conclusions), **report.data})
        return
    for line in report.conclusions:
        print(line)
    for line in report.warnings:
        print(f"caution: {line}")
    if out is not None:
        print(f"Report: {out / report.kind}.html, and {len(files) - 1} files beside it")


def _workloads(options: dict[str, Any]) -> list[Workload]:
    from mirrord.analysis.study import Plan, study, summed_up
    from mirrord.schedules.rates import parse_rates
    from mirrord.traces.options import ReadOptions

    link, shift = options["link"], options["align_shift"]
    if shift != "auto" and not shift.lstrip("-").isdigit():
        raise UsageError(f"'{shift}' is not a shift", hint="Give bytes, such as 512, or auto.")
    plan = Plan(
        intervals_s=tuple(_durations(options["intervals"])),
        schedules=tuple(_schedules(options)),
        link=parse_rates(link, zone=options["zone"]) if link else None,
        overhead_s=parse_duration(options.get("overhead", "1s")),
        free_space=options["free_space"], block=options["block"], threads=options["threads"],
        cluster=options["cluster"] or None,
    )  # fmt: skip
    reading = ReadOptions(
        format=options["format"] or None, only=options["only"] or None,
        align_shift="auto" if shift == "auto" else int(shift),
        dedup_s=parse_duration(options["dedup"]), volume=options["volume"] or None,
    )  # fmt: skip
    with _Progress(quiet=options["as_json"]) as progress:
        found = [
            study(path, plan, reading, progress=progress.replayed, importing=progress.imported)
            for path in options["traces"]
        ]
    return summed_up(found)


def _terms(options: dict[str, Any]) -> Terms:
    from mirrord.analysis.assess import Terms
    from mirrord.schedules.rates import parse_rates
    from mirrord.schedules.zones import check_zone

    check_zone(options["zone"])
    if options.get("into", _VOLUMES[0]) not in _VOLUMES:
        raise UsageError(
            f"'{options['into']}' is no kind of volume", hint=f"There are: {', '.join(_VOLUMES)}."
        )
    return Terms(
        kind=options.get("into", "active_map"),
        link=parse_rates(options["link"], zone=options["zone"]) if options["link"] else None,
        overhead_s=parse_duration(options.get("overhead", "1s")),
        keep_source=options.get("keep_source", 2),
        keep_destination=options.get("keep_destination", 10),
        lags_s=tuple(_durations(options.get("semi_sync", ""))), zone=options["zone"],
    )  # fmt: skip


def _durations(text: str) -> Iterator[float]:
    for piece in text.split(","):
        if piece.strip():
            yield parse_duration(piece)


def _schedules(options: dict[str, Any]) -> Iterator[tuple[str, Schedule]]:
    from mirrord.config.definitions import is_name
    from mirrord.config.schedules import Schedules as Named
    from mirrord.schedules.schedule import parse_schedule
    from mirrord.system.paths import standard

    windows = options["window"] or []
    for rule in options["schedule"] or []:
        if is_name(rule):
            yield rule, Named(standard().schedules).named(rule).in_zone(options["zone"])
        else:
            words = f"{rule} ({', '.join(windows)})" if windows else rule
            yield words, parse_schedule(rule, zone=options["zone"], windows=windows)


@contextmanager
def _extras() -> Iterator[None]:
    """One clear line where a package of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mirrord"):
            raise
        extra = "cluster" if (error.name or "").startswith(("dask", "distributed")) else "analysis"
        raise Unsupported(
            f"the package '{error.name}' is not installed", why="analysis needs it",
            hint=f"Install the extra: pip install 'mirrord[{extra}]'.",
        ) from None  # fmt: skip


class _Progress:
    """One line at a terminal that tells how far it is; else a line every ten seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._said_s = time.monotonic()
        self._shown = False

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def imported(self, name: str, read: int, total: int | None, records: int) -> None:
        """So many bytes of a foreign trace are read."""
        share = f" of {format_size(total)}" if total else ""
        self._say(f"{os.path.basename(name)}: read {format_size(read)}{share}, {records:,} records")

    def replayed(self, name: str, done: int, total: int) -> None:
        """So many records are replayed."""
        share = f" ({100 * done // total} %)" if total else ""
        self._say(f"{name}: replayed {done:,} of {total:,} records{share}")

    def _say(self, text: str) -> None:
        now_s = time.monotonic()
        least_s = _EVERY_S if self._terminal else _EVERY_LINE_S
        if self._quiet or now_s - self._said_s < least_s:
            return
        self._said_s = now_s
        if self._terminal:
            self._shown = True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
