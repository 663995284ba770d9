"""The report on transfer reduction: Figures 2 and 3 and Table 1 of the paper, for any traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirrord.analysis.numbers import Workload
from mirrord.analysis.reports import paper
from mirrord.analysis.reports.common import (
    by_seconds,
    interval_axis,
    interval_words,
    name_of,
    never_runs,
    runs,
    share_words,
    warnings,
)
from mirrord.analysis.reports.plots import (
    Axis,
    Bars,
    Cell,
    Column,
    Line,
    Plot,
    Range,
    Reference,
    Report,
    Section,
    Table,
)
from mirrord.analysis.results import VOLUMES as KINDS
from mirrord.core.units import format_size
from mirrord.traces.model import BLOCK

_PERCENT = Axis("transferred (% of the blocks written)", low=0, high=104)
_WORDS = {
    "update_in_place": "update in place",
    "active_map": "no overwrite, active map",
    "no_active_map": "no overwrite, no active map",
}
#: With more traces a sentence does not name them.
_NAMED_MAX = 4
#: `{block}` is the block size.
_METHOD = (
    "A synchronous mirror sends every block that is written. An asynchronous one sends, at each "
    "update, the blocks written since the previous one, each once, and none that were deleted in "
    "between. The plots show its transfers as a share of the synchronous mirror's (SnapMirror, "
    "FAST 2002, section 4, Figure 2). The block size is {block}. Intervals begin with the first "
    "record; the last, partial one is counted. Intervals for which a trace is too short are not "
    "drawn.",
    "Three volumes are replayed. Update in place: a rewritten block keeps its address. No "
    "overwrite, with the active map: each write goes to a free block, and blocks that are free "
    "again by the time of the update are not sent (btrfs, ZFS, WAFL with SnapMirror). No overwrite "
    "without the active map: freed blocks are sent as well (Figure 3).",
    "Compared by exact bytes, small writes are a disadvantage of a block mirror: it sends a block "
    "of {block} where a synchronous mirror sends 512 bytes for a write of 512 bytes.",
)


def mean_percent(workloads: Sequence[Workload], seconds: float, kind: str) -> float:
    """The mean of the percentages of all traces that are long enough, as the paper's averages are:
    a trace with many writes counts no more than another.
    """
    found = [
        each.percent(updates, kind)
        for each in workloads
        if (updates := by_seconds(each).get(seconds)) is not None
    ]
    return sum(found) / len(found) if found else 0.0


def document(workloads: Sequence[Workload]) -> dict[str, object]:
    """`reduction.json`: for each trace and fixed interval the percents of the three volumes."""
    return {
        "traces": [
            {
                "name": each.name,
                "blocks_written": each.blocks_written,
                "intervals": [
                    {
                        "seconds": _whole(updates.seconds),
                        "trace_covers_it": each.covers(updates),
                        "percent": {kind: each.percent(updates, kind) for kind in KINDS},
                    }
                    for updates in each.updates
                    if updates.seconds is not None
                ],
            }
            for each in workloads
        ]
    }


def _whole(seconds: float) -> int | float:
    return int(seconds) if seconds == int(seconds) else seconds


def report(workloads: Sequence[Workload]) -> Report:
    """The report on these traces."""
    intervals = sorted({seconds for each in workloads for seconds in by_seconds(each)})
    sections = _by_interval(workloads, intervals) if intervals else []
    scheduled = [u for each in workloads for u in each.updates if u.seconds is None]
    if scheduled:
        sections.append(Section("Schedules", (), (_schedules(workloads),)))
    sections.append(Section("What was overwritten or deleted", (), (_freed(workloads),)))
    return Report(
        "reduction",
        "How much a mirror would transfer",
        tuple(conclusions(workloads)),
        tuple(sections),
        _method(workloads),
        document(workloads),
        warnings(workloads),
        {"traces": [_details(each) for each in workloads]},
    )


def _method(workloads: Sequence[Workload]) -> tuple[str, ...]:
    blocks = {updates.block for each in workloads for updates in each.updates} or {BLOCK}
    block = " or ".join(f"{size / 1024:g} KiB" for size in sorted(blocks))
    return tuple(line.format(block=block) for line in _METHOD)


def _by_interval(workloads: Sequence[Workload], intervals: Sequence[float]) -> list[Section]:
    freed = (
        "A no-overwrite volume frees a block for each one that is rewritten. Only the active map "
        "tells which of the changed blocks are still in use."
    )
    transferred = (_transferred(workloads, intervals), _exact(workloads, intervals))
    made = [
        Section("What an asynchronous mirror transfers", (), transferred),
        Section("Why the active map matters", (freed,), (_active_map(workloads, intervals),)),
    ]
    if any(u.whole_files is not None for each in workloads for u in each.updates):
        files = (
            "A mirror of files rather than blocks (rsync --whole-file, dump) sends every file to "
            "which anything was written, completely."
        )
        made.append(Section("Mirroring whole files", (files,), (_files(workloads, intervals),)))
    return made


def conclusions(workloads: Sequence[Workload]) -> list[str]:
    """The conclusions in words: one sentence for each trace, one for all."""
    sentences = [f"{each.name}: {_sentence(each)}" for each in workloads]
    if len(workloads) > 1:
        shared = set.intersection(*(set(by_seconds(each)) for each in workloads))
        if shared:
            seconds = 900.0 if 900.0 in shared else max(shared)
            percent = mean_percent(workloads, seconds, "active_map")
            sentences.append(
                f"On average over {len(workloads)} traces, updates every "
                f"{interval_words(seconds)} transfer {share_words(percent)} of what a synchronous "
                "mirror would (mean of the percentages"
                + ("; the paper's twelve file systems: 50 %)." if seconds == 900 else ").")
            )
    return sentences


def _sentence(workload: Workload) -> str:
    found = by_seconds(workload)
    percents = {s: workload.percent(u, "active_map") for s, u in found.items()}
    if not percents:
        return _without_intervals(workload)
    base = 900.0 if 900.0 in percents else min(percents)
    text = (
        f"updates every {interval_words(base)} transfer {share_words(percents[base])} of what a "
        "synchronous mirror would"
    )
    later = 3600.0 if 3600.0 in percents and base < 3600.0 else max(percents)
    if later > base and percents[base]:
        saved = 100 * (1 - percents[later] / percents[base])
        text += (
            f"; every {interval_words(later)} saves another {share_words(saved)} of that "
            f"({share_words(percents[later])} transferred)"
        )
    longest = max(percents)
    if longest > later and percents[later]:
        saved = 100 * (1 - percents[longest] / percents[later])
        text += (
            f", every {interval_words(longest)} a further {share_words(saved)} "
            f"({share_words(percents[longest])} transferred)"
        )
    unmapped = workload.percent(found[base], "no_active_map")
    if unmapped - percents[base] >= 0.5:
        text += (
            f". Without the active map, updates every {interval_words(base)} would transfer "
            f"{share_words(unmapped)}"
        )
    return f"{text}.{_by_schedule(workload)}"


def _without_intervals(workload: Workload) -> str:
    """The sentence when every interval is longer than the trace, or only schedules are given."""
    lasts = interval_words(round(workload.span_s)) if workload.span_s >= 1 else "less than 1 s"
    fixed = [each for each in workload.updates if each.seconds is not None]
    if not fixed:
        return f"the trace lasts {lasts}.{_by_schedule(workload)}"
    percent = workload.percent(fixed[-1], "active_map")
    return (
        f"the trace lasts only {lasts}, less than every interval; one update at its end transfers "
        f"{share_words(percent)} of what a synchronous mirror would. (If the recording was longer, "
        f"the unit of its times is wrong: use --time-unit.){_by_schedule(workload)}"
    )


def _by_schedule(workload: Workload) -> str:
    """A sentence on each given schedule."""
    text = ""
    for each in workload.updates:
        if each.seconds is None and runs(each):
            percent = share_words(workload.percent(each, "active_map"))
            text += f" With '{each.label}' it is {percent}, in {len(each):,} updates."
    return text + never_runs(workload)


def _reference(intervals: Sequence[float]) -> Reference:
    low, high = min(intervals, default=0) / 1.25, max(intervals, default=0) * 1.25
    shown = [each for each in paper.FIGURE_2 if low <= each.seconds <= high]
    averages = [(each.seconds / 60, each.average) for each in shown if each.average is not None]
    return Reference(
        paper.NAME,
        tuple(
            Range(each.seconds / 60, each.low, each.high, each.words)
            for each in shown
            if each.high is not None
        ),
        tuple(x for x, _ in averages),
        tuple(y for _, y in averages),
        tuple((paper.DAY_S / 60, y) for y in paper.AFTER_A_DAY if high >= paper.DAY_S),
    )


def _transferred(workloads: Sequence[Workload], intervals: Sequence[float]) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        found = by_seconds(each)
        y = [each.percent(updates, "active_map") for updates in found.values()]
        lines.append(_over_intervals(each.name, list(found), y, number))
        rows += [
            (each.name, name_of(u), *(each.percent(u, kind) for kind in KINDS), len(u))
            for u in found.values()
        ]
    if len(workloads) > 1:
        shared = [s for s in intervals if all(s in by_seconds(each) for each in workloads)]
        y = [mean_percent(workloads, seconds, "active_map") for seconds in shared]
        mean = _over_intervals("mean of the traces", shared, y, len(workloads))
        lines.append(replace(mean, strong=True, dash=0))
        rows += [
            (
                "mean of the traces",
                interval_words(s),
                *(mean_percent(workloads, s, k) for k in KINDS),
                None,
            )
            for s in shared
        ]
    columns = (
        Column("trace"), Column("interval"),
        *(Column(_WORDS[kind], "%") for kind in KINDS), Column("updates"),
    )  # fmt: skip
    reference = _reference(intervals)
    return Plot(
        "transferred",
        "Blocks that an asynchronous mirror transfers, by update interval",
        "Lower is better. Grey: the twelve file systems of the SnapMirror paper (Figure 2), with "
        "bars from the lowest to the highest value"
        + (
            "; for 1 min the paper gives only the highest, 90 % (arrow)."
            if any(each.low is None for each in reference.ranges)
            else "."
        )
        + (" At 24 h each of them (Table 1)." if reference.points else ""),
        interval_axis(intervals),
        _PERCENT,
        Table(columns, tuple(rows)),
        tuple(lines),
        reference=reference,
    )


def _over_intervals(
    name: str, seconds: Sequence[float], y: Sequence[float], number: int, *, dash: int | None = None
) -> Line:
    return Line(
        name,
        [each / 60 for each in seconds],
        y,
        number,
        dash=number // 8 if dash is None else dash,
        labels=tuple(f"every {interval_words(each)}" for each in seconds),
    )


def _exact(workloads: Sequence[Workload], intervals: Sequence[float]) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        found = by_seconds(each)
        by_kind = {
            kind: [100 * int(u.sizes(kind).sum()) / each.bytes_written for u in found.values()]
            for kind in KINDS
        }
        lines.append(_over_intervals(each.name, list(found), by_kind["active_map"], number))
        for place, updates in enumerate(found.values()):
            cells = [by_kind[kind][place] for kind in KINDS]
            rows.append((each.name, name_of(updates), *cells))
    high = max([104.0, *(value * 1.05 for line in lines for value in line.y)])
    columns = (Column("trace"), Column("interval"), *(Column(_WORDS[k], "%") for k in KINDS))
    return Plot(
        "transferred-bytes",
        "The same, compared with a synchronous mirror that sends exact bytes",
        "Where writes are smaller than a block or span two, full blocks are more than the bytes "
        "written: above 100 % a synchronous mirror would send less.",
        interval_axis(intervals),
        Axis("transferred (% of the bytes written)", low=0, high=high),
        Table(columns, tuple(rows)),
        tuple(lines),
    )


def _active_map(workloads: Sequence[Workload], intervals: Sequence[float]) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        found = by_seconds(each)
        for kind, dash, words in (("active_map", 0, "with"), ("no_active_map", 1, "without")):
            y = [each.percent(updates, kind) for updates in found.values()]
            lines.append(
                _over_intervals(f"{each.name}, {words}", list(found), y, number, dash=dash)
            )
        for updates in found.values():
            with_map, without = (each.percent(updates, k) for k in ("active_map", "no_active_map"))
            rows.append((each.name, name_of(updates), with_map, without, without - with_map))
    columns = (
        Column("trace"), Column("interval"), Column("with the active map", "%"),
        Column("without", "%"), Column("saved by it", "% of the blocks written"),
    )  # fmt: skip
    return Plot(
        "active-map",
        "Blocks transferred with and without the active map",
        "Solid: with the active map; dashed: without it, when blocks freed before the update are "
        f"sent as well. In the paper's Figure 3, {paper.FIGURE_3_NOTHING} of 12 file systems save "
        "nothing without it.",
        interval_axis(intervals),
        _PERCENT,
        Table(columns, tuple(rows)),
        tuple(lines),
    )


def _files(workloads: Sequence[Workload], intervals: Sequence[float]) -> Plot:
    lines: list[Line] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        found = {s: u for s, u in by_seconds(each).items() if u.whole_files is not None}
        if not found:
            continue
        blocks = [each.percent(updates, "active_map") for updates in found.values()]
        files = [
            100 * int(u.whole_files.sum()) / each.blocks_written
            for u in found.values()
            if u.whole_files is not None
        ]
        lines.append(_over_intervals(f"{each.name}, blocks", list(found), blocks, number))
        lines.append(_over_intervals(f"{each.name}, files", list(found), files, number, dash=1))
        rows += [
            (each.name, name_of(updates), one, other)
            for updates, one, other in zip(found.values(), blocks, files, strict=True)
        ]
    columns = (
        Column("trace"), Column("interval"), Column("changed blocks", "%"),
        Column("whole files", "%"),
    )  # fmt: skip
    high = max([104.0, *(value * 1.05 for line in lines for value in line.y)])
    return Plot(
        "whole-files",
        "Blocks transferred by a mirror of blocks and by one of whole files",
        "Solid: only changed blocks; dashed: changed files completely. Above 100 % a mirror sends "
        "more than was written.",
        interval_axis(intervals),
        replace(_PERCENT, high=high),
        Table(columns, tuple(rows)),
        tuple(lines),
    )


def _schedules(workloads: Sequence[Workload]) -> Plot:
    labels = list(dict.fromkeys(u.label for w in workloads for u in w.updates if u.seconds is None))
    bars: list[Bars] = []
    rows: list[tuple[Cell, ...]] = []
    for number, each in enumerate(workloads):
        found = {u.label: u for u in each.updates if u.seconds is None}
        percents = [
            each.percent(found[label], "active_map") if runs(found[label]) else 0.0
            for label in labels
        ]
        bars.append(Bars(each.name, percents, number))
        for label in labels:
            run = runs(found[label])
            cells = (each.percent(found[label], kind) if run else None for kind in KINDS)
            rows.append((each.name, label, len(found[label]) if run else 0, *cells))
    columns = (
        Column("trace"), Column("schedule"), Column("updates"),
        *(Column(_WORDS[kind], "%") for kind in KINDS),
    )  # fmt: skip
    return Plot(
        "schedules",
        "Blocks transferred by schedule",
        "Schedules as the daemon runs them, on the trace's own days and hours. A trace in which "
        "a schedule does not run has no bar.",
        Axis("schedule", "names", names=tuple(labels)),
        _PERCENT,
        Table(columns, tuple(rows)),
        bars=tuple(bars),
    )


def _freed(workloads: Sequence[Workload]) -> Plot:
    names = [each.name for each in workloads] + [each.name for each in paper.TABLE_1]
    ours = [100 * each.freed for each in workloads]
    theirs = [float(each.freed) for each in paper.TABLE_1]
    rows: list[tuple[Cell, ...]] = [
        (each.name, "trace", each.blocks_written, each.unique_blocks, each.bytes_written, share)
        for each, share in zip(workloads, ours, strict=True)
    ]
    rows += [
        (each.name, each.what, each.blocks * 1000, None, None, float(each.freed))
        for each in paper.TABLE_1
    ]
    columns = (
        Column("file system"), Column("what it is"), Column("blocks written", "4 KiB"),
        Column("different blocks"), Column("written", "B"), Column("written, then deleted", "%"),
    )  # fmt: skip
    written = ", ".join(f"{each.name} {format_size(each.bytes_written)}" for each in workloads)
    if len(workloads) > _NAMED_MAX:
        total = sum(each.bytes_written for each in workloads)
        written = f"{format_size(total)} by {len(workloads)} traces"
    return Plot(
        "written-deleted",
        "Blocks that were overwritten or deleted before the trace ended",
        f"The upper limit of what longer intervals can save. Written in total: {written}. Grey: "
        "the twelve file systems of the paper's Table 1, 24 hours each.",
        Axis("", "names", names=tuple(names)),
        Axis("written, then deleted (% of the blocks written)", low=0, high=104),
        Table(columns, tuple(rows)),
        bars=(
            Bars("these traces", [*ours, *[0.0] * len(theirs)], 0),
            Bars(f"{paper.NAME}: Table 1", [*[0.0] * len(ours), *theirs], -1),
        ),
        stacked=True,
    )


def _details(workload: Workload) -> dict[str, object]:
    return {
        "name": workload.name,
        "span_s": workload.span_s,
        "blocks_written": workload.blocks_written,
        "bytes_written": workload.bytes_written,
        "unique_blocks": workload.unique_blocks,
        "written_deleted_percent": 100 * workload.freed,
        "schedules": [
            {
                "schedule": updates.label,
                "seconds": updates.seconds,
                "updates": len(updates),
                "trace_covers_it": workload.covers(updates),
                "blocks": {kind: int(updates.blocks[kind].sum()) for kind in KINDS},
                "percent": {kind: workload.percent(updates, kind) for kind in KINDS},
            }
            for updates in workload.updates
        ],
    }
