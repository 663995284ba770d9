"""The report on recordings of live mirrors: what happened, write by write. Its plots of latency are
those of *Dynamic synchronous/asynchronous replication* (Natanzon, Bachmat), Figures 7 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mirrord.analysis.recorded import (
    MODES,
    Course,
    Recording,
    course,
    lag_bytes,
    received_us,
    shares,
)
from mirrord.analysis.reports.common import MIB, slug
from mirrord.analysis.reports.plots import (
    Axis,
    Cell,
    Column,
    Line,
    Plot,
    Report,
    Section,
    Table,
)
from mirrord.core.live import Mode
from mirrord.core.units import format_size

#: Points of a plot over time; of one in which each is a part of the time.
_PARTS, _PART_S = 300, 1.0
_SINCE = "since the start (s)"
_SHOWN = (Mode.SYNC, Mode.STRICT_SYNC, Mode.SEMI_SYNC, Mode.ASYNC)
#: In these the background is grey.
_BANDS = (Mode.SEMI_SYNC, Mode.ASYNC)
Values = npt.NDArray[np.float64]
#: The plots over time, by key: title, caption, y axis; and the lines.
_OVER_TIME: dict[str, tuple[tuple[str, str, str], Callable[[Course], dict[str, Values]]]] = {
    "latency": (
        (
            "latency of writes, over time",
            "Until the client's answer; mean of each part of the time. Grey: out of sync.",
            "latency (ms)",
        ),
        lambda found: {"mean latency": found.latency_ms},
    ),
    "iops": (
        ("answered writes per second, over time", "Grey: out of sync.", "writes per second"),
        lambda found: {"writes per second": found.iops},
    ),
    "lag": (
        (
            "lag and M, over time",
            "Answered writes that the secondary does not have, and how much that may be (M); the "
            "greatest of each part of the time. Grey: out of sync.",
            "MiB",
        ),
        lambda found: {"lag": found.lag_bytes / MIB, "M": found.limit_bytes / MIB},
    ),
    "age": (
        (
            "age of the secondary, over time",
            "Of the oldest answered write that the secondary does not have. Grey: out of sync.",
            "age (s)",
        ),
        lambda found: {"age": found.lag_s},
    ),
}
#: The plots of points, by the number of the paper's figure: x axis, and its values.
_FIGURES: dict[int, tuple[str, Callable[[Course], Values]]] = {
    7: ("writes per second", lambda found: found.iops),
    8: ("outstanding writes", lambda found: found.outstanding),
}


def report(found: Sequence[Recording]) -> Report:
    """The report on these recordings."""
    return Report(
        "live",
        "Recordings of live mirrors",
        tuple(_conclusion(each) for each in found),
        tuple(_section(each) for each in found),
        (
            "Each write has its own times, of the primary's data path: when it arrived, was sent, "
            "was received by the secondary (as far as its acknowledgement says), and was answered.",
            "Lag: answered writes that the secondary does not have. Of writes that were only "
            "tracked: until tracking ended.",
            "Outstanding: the mean number of writes that wait for their answer, the sum of the "
            "latencies by the time.",
        ),
        {"recordings": [_document(each) for each in found]},
        tuple(_warnings(found)),
    )


def _conclusion(each: Recording) -> str:
    parts = ", ".join(
        f"{mode.value if mode is not Mode.ASYNC else 'tracking'} {100 * share:.3g} %"
        for mode in _SHOWN
        if (share := each.share(mode))
    )
    lag = int(lag_bytes(each)[1].max(initial=0))
    return (
        f"{each.name}: {len(each.writes):,} writes in {each.span_s:.0f} s; {parts} of the time, "
        f"{each.changes} changes of the mode; at most {format_size(lag)} behind."
    )


def _warnings(found: Sequence[Recording]) -> Iterator[str]:
    for each in found:
        if each.dropped:
            yield (
                f"{each.name}: {each.dropped:,} writes are missing: they came faster than they "
                "were recorded."
            )


def _section(each: Recording) -> Section:
    fine = course(each, _PARTS)
    coarse = course(each, max(1, min(_PARTS, int(each.span_s / _PART_S))))
    rows = tuple(_row(each, mode) for mode in _SHOWN if each.share(mode))
    columns = (
        Column("mode"), Column("time", "%", 2), Column("writes"), Column("latency", "ms", 3),
        Column("99 %", "ms", 3), Column("slowest", "ms", 1), Column("received after", "ms", 3),
    )  # fmt: skip
    table = Table(columns, rows)
    plots = (
        *(_over_time(each, fine, key) for key in _OVER_TIME),
        *(_points(each, coarse, number) for number in _FIGURES),
    )
    return Section(each.name, (), plots, table, f"{slug(each.name)}-live", table)


def _row(each: Recording, mode: Mode) -> tuple[Cell, ...]:
    is_mine = each.writes["mode"] == MODES.index(mode)
    mine = each.writes[is_mine]
    if not len(mine):
        return (mode.value, 100 * each.share(mode), 0, None, None, None, None)
    waited = mine["answered"] / 1000
    received = received_us(each)[is_mine] - mine["arrived"].astype(np.int64)
    is_known = mine["received"] != np.iinfo(np.uint32).max
    return (
        mode.value,
        100 * each.share(mode),
        len(mine),
        float(waited.mean()),
        float(np.percentile(waited, 99)),
        float(waited.max()),
        float(received[is_known].mean() / 1000) if is_known.any() else None,
    )


def _bands(found: Course, *heights: Values) -> tuple[Line, ...]:
    """What is grey behind lines as high as these: the times out of sync."""
    top = 1.05 * max(float(each.max(initial=0)) for each in heights) or 1.0
    lines = []
    for number, mode in enumerate(_BANDS):
        is_in = [each is mode for each in found.modes]
        if any(is_in):
            name = "tracking" if mode is Mode.ASYNC else mode.value
            y = [top if each else 0.0 for each in is_in]
            line = Line(
                name, found.at_s.tolist(), y, -1, marker=False, dash=2 * number, steps=True,
                filled=True,
            )  # fmt: skip
            lines.append(line)
    return tuple(lines)


def _over_time(each: Recording, found: Course, key: str) -> Plot:
    (title, caption, unit), lines_of = _OVER_TIME[key]
    lines = lines_of(found)
    columns = (Column(_SINCE, "", 1), *(Column(name, "", 3) for name in lines), Column("mode"))
    rows = tuple(
        (float(found.at_s[at]), *(float(y[at]) for y in lines.values()), found.modes[at].value)
        for at in range(len(found.at_s))
    )
    return Plot(
        f"{slug(each.name)}-{key}",
        f"{each.name}: {title}",
        caption,
        Axis(_SINCE),
        Axis(unit),
        Table(columns, rows),
        (
            *_bands(found, *lines.values()),
            *(
                Line(name, found.at_s.tolist(), y.tolist(), tone, marker=False)
                for tone, (name, y) in enumerate(lines.items())
            ),
        ),
    )


def _points(each: Recording, found: Course, number: int) -> Plot:
    unit, values = _FIGURES[number]
    x = values(found)
    lines = []
    rows: list[tuple[Cell, ...]] = []
    for tone, mode in enumerate(_SHOWN):
        mine = [at for at, one in enumerate(found.modes) if one is mode and found.iops[at] > 0]
        if mine:
            xs, ys = x[mine].tolist(), found.latency_ms[mine].tolist()
            lines.append(Line(mode.value, xs, ys, tone, joined=False))
            rows += [(mode.value, *pair) for pair in zip(xs, ys, strict=True)]
    return Plot(
        f"{slug(each.name)}-figure-{number}",
        f"{each.name}: latency by {unit}",
        "Each point is a part of the time, of a second or more. As in the paper's Figure "
        f"{number}.",
        Axis(unit),
        Axis("latency (ms)"),
        Table((Column("mode"), Column(unit, "", 1), Column("latency", "ms", 3)), tuple(rows)),
        tuple(lines),
    )


def _document(each: Recording) -> dict[str, object]:
    writes = each.writes
    lag = int(lag_bytes(each)[1].max(initial=0))
    return {
        "name": each.name,
        "span_s": each.span_s,
        "writes": len(writes),
        "bytes": int(writes["length"].sum(dtype=np.int64)),
        "dropped": each.dropped,
        "share": {mode.value: share for mode, share in shares(each.modes, each.last_us).items()},
        "changes": each.changes,
        "latency_s": {
            "mean": float(writes["answered"].mean()) / 1e6,
            "worst": float(writes["answered"].max()) / 1e6,
        },
        "lag_bytes": lag,
        "lag_s": float(course(each, _PARTS).lag_s.max()),
    }
