"""The status of mirrors as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mirrord.core.units import format_duration, format_size


def table(rows: list[dict[str, Any]]) -> list[str]:
    """All mirrors, one line each."""
    cells = [("MIRROR", "STATE", "ACTIVITY", "LAG", "SOURCE -> DESTINATION", "")]
    for row in rows:
        cells.append(
            (
                row["name"],
                row["state"],
                activity_of(row),
                format_duration(row["lag_s"]) if row["lag_s"] is not None else "-",
                f"{row['source']} -> {row['destination']}",
                _trouble(row),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = []
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=False))
        lines.append("  ".join([*padded, line[5]]).rstrip())
    return lines


def _trouble(row: dict[str, Any]) -> str:
    """The first problem, or the forecast that the RPO will be missed."""
    if row["alarms"]:
        return f"! {row['alarms'][0]['text']}"
    if row["problems"]:
        return f"! {row['problems'][0]}"
    return str(row["forecast"]) or _reversed(row)


def _reversed(row: dict[str, Any]) -> str:
    """Whether the sites have swapped roles, and since when if known."""
    since_ns = row["reversed_since_ns"]
    if since_ns is None:
        return ""
    if not since_ns:
        return "reversed"
    since = datetime.fromtimestamp(since_ns / 1e9, UTC).astimezone()
    return f"reversed since {since:%Y-%m-%d %H:%M}"


def activity_of(row: dict[str, Any]) -> str:
    """The activity of a mirror, with its progress."""
    running = row["running"]
    if row.get("waiting") and not running:
        return f"{row['activity']}, queued"
    if running and running.get("estimate_bytes"):
        share = running.get("done_bytes", 0) / max(1, running["estimate_bytes"])
        return f"{row['activity']} {min(99, int(share * 100))}%"
    return str(row["activity"])


def _promise(row: dict[str, Any]) -> str:
    """The lag as a share of the RPO."""
    if row["rpo_s"] is None or row["rpo_used"] is None:
        return ""
    tail = f": {row['forecast']}" if row["forecast"] else ""
    return f", {row['rpo_used']:.0%} of the RPO of {format_duration(row['rpo_s'])}{tail}"


def _checkpoint(row: dict[str, Any]) -> str:
    """The checkpoint of an interrupted transfer, as "1.2 GiB of 5.0 GiB, 3m ago"."""
    text = format_size(row["checkpoint_bytes"])
    if row["checkpoint_of_bytes"]:
        text += f" of {format_size(row['checkpoint_of_bytes'])}"
    if row["checkpoint_age_s"] is not None:
        text += f", {format_duration(row['checkpoint_age_s'])} ago"
    return text


def details(row: dict[str, Any]) -> list[str]:
    """One mirror, one fact per line."""
    lines = [
        f"{row['name']}: {row['state']}, {activity_of(row)}",
        f"  source       {row['source']}",
        f"  destination  {row['destination']}",
    ]
    if found := _reversed(row):
        lines[0] += f", {found}"
    if row["view"] and row["state"] != "uninitialized":
        lines.append(f"  view         {row['view']}")
    if row["shown"]:
        lines.append(f"  shows        {row['shown']}")
    if row["copy"]:
        lines.append(f"  copy         {row['copy']} (writable, made by 'break --test')")
    if row["lag_s"] is not None:
        lines.append(f"  lag          {format_duration(row['lag_s'])}{_promise(row)}")
    if row["schedule"]:
        soon = ""
        if row["next_ns"]:
            soon = (
                f"; next {datetime.fromtimestamp(row['next_ns'] / 1e9, UTC).astimezone():%H:%M:%S}"
            )
        lines.append(f"  schedule     {' or '.join(row['schedule'])}{soon}")
    last = row["last_transfer"]
    if last:
        how = "incremental" if last["base"] else "full"
        lines.append(
            f"  last         {last['result']}: {how}, {format_size(last['stream_bytes'])} in "
            f"{format_duration(last['duration_ms'] / 1000)}"
        )
    running = row["running"]
    if running:
        lines.append(f"  running      {running['purpose']}, process {running['pid']}")
    if row["checkpoint_bytes"]:
        lines.append(f"  checkpoint   {_checkpoint(row)}: the next transfer resumes from there")
    lines.extend(f"  ALARM        {alarm['kind']}: {alarm['text']}" for alarm in row["alarms"])
    lines.extend(f"  problem      {text}" for text in row["problems"])
    lines.extend(f"  note         {text}" for text in row["notes"])
    return lines
