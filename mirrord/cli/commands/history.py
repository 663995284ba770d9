"""`mirrord history`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from mirrord.cli.documents import of_history
from mirrord.cli.output import Json, Name, print_json, service
from mirrord.core.units import format_duration, format_size


def history(
    name: Name,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=10_000, help="Number of entries, from the newest."
        ),
    ] = 20,
    as_json: Json = False,
) -> None:
    with service(quiet=True) as built:
        found = built.history(name, limit=limit)
    if as_json:
        print_json(of_history(found))
        return
    lines: list[tuple[int, str]] = []
    for row in found.transfers:
        how = "incremental" if row.base else "full"
        resumed = " resumed" if row.resumed_bytes else ""
        tail = f"  {row.error}" if row.error else ""
        if row.spread_ms:
            tail = f", members {format_duration(row.spread_ms / 1000)} apart{tail}"
        lines.append(
            (
                row.started_ns,
                f"{row.verb:10} {row.result:8} {how}{resumed} "
                f"{format_size(row.stream_bytes)} in "
                f"{format_duration(row.duration_ms / 1000)}  {row.name}{tail}",
            )
        )
    lines += [(event.at_ns, f"{event.level:10} {event.text}") for event in found.events]
    lines += [
        (each.at_ns, f"{each.verb:10} attempt {each.number} failed ({each.cause}): {each.error}")
        for each in found.attempts
    ]
    done = [row for row in reversed(found.transfers) if row.result == "done"]
    if len(done) > 1:
        print(f"size      {_spark([row.stream_bytes for row in done], format_size)}")
        print(f"duration  {_spark([row.duration_ms / 1000 for row in done], format_duration)}")
        print(f"lag       {_spark([row.lag_ms / 1000 for row in done], format_duration)}")
    if not lines:
        print(f"No transfers or events of '{name}' yet.")
    for at_ns, text in sorted(lines)[-limit:]:
        moment = datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone()
        print(f"{moment:%Y-%m-%d %H:%M:%S}  {text}")


_BARS = "▁▂▃▄▅▆▇█"


def _spark(values: list[float], as_text: Callable[[float], str]) -> str:
    """A bar chart in one line, oldest first, with minimum and maximum."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    bars = "".join(_BARS[round((value - low) * scale)] for value in values[-60:])
    return f"{bars}  {as_text(low)} to {as_text(high)}"
