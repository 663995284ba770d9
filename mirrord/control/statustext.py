"""The status of mirrors as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mirrord.control import livetext
from mirrord.core.pause import decoded
from mirrord.core.states import Activity, State
from mirrord.core.text import harmless
from mirrord.core.units import format_duration, format_size

if TYPE_CHECKING:
    from mirrord.core.status import Checkpoint, MirrorStatus, Reading


def table(mirrors: list[MirrorStatus]) -> list[str]:
    """All mirrors, one line each. The window has a column where one is in semi-sync."""
    cells = [("MIRROR", "STATE", "ACTIVITY", "LAG", "WINDOW", "SOURCE -> DESTINATION", "")]
    for status in mirrors:
        reading = status.reading
        cells.append(
            (
                harmless(status.name),  # a file's name: it may not be one of a mirror
                status.state,
                activity_of(status),
                format_duration(status.lag_s) if status.lag_s is not None else "-",
                livetext.window(reading.live) or "-",
                f"{reading.source} -> {reading.destination}",
                _trouble(status),
            )
        )
    columns = list(zip(*cells, strict=True))
    if set(columns[4][1:]) == {"-"}:
        del columns[4]
    widths = [max(map(len, column)) for column in columns[:-1]]
    lines = []
    for *line, trouble in zip(*columns, strict=True):
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        lines.append("  ".join([*padded, trouble]).rstrip())
    return lines


def _trouble(status: MirrorStatus) -> str:
    """The first problem, or the forecast that the RPO will be missed."""
    if status.alarms:
        return f"! {status.alarms[0].text}"
    if status.problems:
        return f"! {status.problems[0]}"
    return status.lag.forecast or _reversed(status.reading)


def _reversed(reading: Reading) -> str:
    """Whether the sites have swapped roles, and since when if known."""
    if reading.reversed_since_ns is None:
        return ""
    if not reading.reversed_since_ns:
        return "reversed"
    return f"reversed since {_local(reading.reversed_since_ns):%Y-%m-%d %H:%M}"


def _local(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone()


def activity_of(status: MirrorStatus) -> str:
    """The activity of a mirror, with its progress; of a live mirror, the state of its primary."""
    activity = status.activity.value
    if status.reading.live is not None and status.activity is not Activity.TRANSFERRING:
        primary = status.reading.live.primary
        return primary.state if primary else activity
    if status.running is None:
        return f"{activity}, queued" if status.waiting else activity
    progress = status.running.progress
    if not progress.estimate_bytes:
        return activity
    share = (progress.done_bytes or 0) / progress.estimate_bytes
    return f"{activity} {min(99, int(share * 100))}%"


def _rpo(status: MirrorStatus) -> str:
    """The lag as a share of the RPO."""
    rpo_s, lag = status.reading.rpo_s, status.lag
    if rpo_s is None or lag.used is None:
        return ""
    tail = f": {lag.forecast}" if lag.forecast else ""
    return f", {lag.used:.0%} of the RPO of {format_duration(rpo_s)}{tail}"


def _checkpoint(checkpoint: Checkpoint, age_s: float | None) -> str:
    """The checkpoint of an interrupted transfer, as "1.2 GiB of 5.0 GiB, 3m ago"."""
    text = format_size(checkpoint.size_bytes)
    if checkpoint.of_bytes:
        text += f" of {format_size(checkpoint.of_bytes)}"
    if age_s is not None:
        text += f", {format_duration(age_s)} ago"
    return text


def _pauses(reading: Reading) -> list[str]:
    """What is paused, each with the members that it is paused for."""
    found: dict[str, list[str]] = {}
    for member in reading.members:
        if member.pause:
            found.setdefault(member.pause, []).append(member.name)
    return [
        f"  pause        {pause}" + (f" ({', '.join(names)})" if all(names) else "")
        for pause, names in found.items()
    ]


def _verified(status: MirrorStatus) -> Iterator[str]:
    """The last verification, and the next one by the schedule."""
    verified, next_ns = status.reading.verified, status.next_verify_ns
    soon = f"next {_local(next_ns):%Y-%m-%d %H:%M}" if next_ns else ""
    if verified is not None and status.verified_age_s is not None:
        ago = f"{format_duration(status.verified_age_s)} ago, {verified.mode.value}"
        last = f"{ago}: {verified.name}: {verified.verdict}"
        yield f"  verified     {last}" + (soon and f"; {soon}")
    elif soon:
        yield f"  verified     never; {soon}"


def details(status: MirrorStatus) -> list[str]:
    """One mirror, one fact per line."""
    reading = status.reading
    lines = [
        f"{status.name}: {status.state}, {activity_of(status)}",
        f"  source       {reading.source}",
        f"  destination  {reading.destination}",
    ]
    if found := _reversed(reading):
        lines[0] += f", {found}"
    if reading.view and reading.live is None and reading.state is not State.UNINITIALIZED:
        lines.append(f"  view         {reading.view}")
    if reading.shown:
        lines.append(f"  shows        {reading.shown}")
    if reading.copy:
        lines.append(f"  copy         {reading.copy} (writable, made by 'break --test')")
    if reading.live is not None:
        lines += livetext.details(reading.live)
    if status.lag_s is not None:
        lines.append(f"  lag          {format_duration(status.lag_s)}{_rpo(status)}")
    if reading.schedule:
        soon = f"; next {_local(status.next_ns):%Y-%m-%d %H:%M:%S}" if status.next_ns else ""
        lines.append(f"  schedule     {' or '.join(reading.schedule)}{soon}")
    lines += _pauses(reading)
    if last := reading.last_transfer:
        how = "incremental" if last.base else "full"
        if last.result == "running":  # as it is recorded until it ends, or is recovered
            lines.append(f"  last         {'running' if status.running else 'interrupted'}: {how}")
        else:
            lines.append(
                f"  last         {last.result}: {how}, {format_size(last.stream_bytes)} in "
                f"{format_duration(last.duration_ms / 1000)}"
            )
        if report := decoded(last.pause):
            lines[-1] += f", {report.line()}"
    lines += _verified(status)
    if running := status.running:
        lines.append(f"  running      {running.purpose}, process {running.pid}")
    if reading.checkpoint.size_bytes:
        saved = _checkpoint(reading.checkpoint, status.checkpoint_age_s)
        lines.append(f"  checkpoint   {saved}: the next transfer resumes from there")
    lines.extend(f"  ALARM        {alarm.kind}: {alarm.text}" for alarm in status.alarms)
    lines.extend(f"  problem      {text}" for text in status.problems)
    lines.extend(f"  note         {text}" for text in reading.notes)
    return lines
