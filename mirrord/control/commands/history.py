"""Show the last transfers and events, oldest first.

Panel: Monitoring 2

Shows the last transfers and events, oldest first, below charts of the size, duration and lag of the
transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.pause import decoded
from mirrord.core.records import TransferRecord
from mirrord.core.reports import History
from mirrord.core.states import Verb
from mirrord.core.units import format_duration, format_size
from mirrord.system.clock import format_moment

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror
    from mirrord.live.mirror import LiveMirror

_BARS = "▁▂▃▄▅▆▇█"


def _shown(found: History, arguments: Mapping[str, Any]) -> Iterator[str]:
    done = [row for row in reversed(found.transfers) if row.result == "done"]
    if len(done) > 1:
        yield f"size      {_spark([row.stream_bytes for row in done], format_size)}"
        yield f"duration  {_spark([row.duration_ms / 1000 for row in done], format_duration)}"
        yield f"lag       {_spark([row.lag_ms / 1000 for row in done], format_duration)}"
    lines = [(row.recorded, row.started_ns, _transfer(row)) for row in found.transfers]
    lines += [(one.recorded, one.at_ns, f"{one.level:10} {one.text}") for one in found.events]
    lines += [
        (
            each.recorded,
            each.at_ns,
            f"{each.verb:10} attempt {each.number} failed ({each.cause}): {each.error}",
        )
        for each in found.attempts
    ]
    if not lines:
        yield f"No transfers or events of '{found.name}' yet."
    for _, at_ns, text in sorted(lines)[-arguments["limit"] :]:
        yield f"{format_moment(at_ns)}  {text}"


@command(Right.READ, text=_shown)
def history(
    service: Service,
    name: MirrorName,
    *,
    limit: Annotated[
        int,
        Option("Number of entries, from the newest.", flags=("--limit", "-n"), most=10_000),
    ] = 20,
) -> History:
    from mirrord.engine import listings

    def found(mirror: Mirror | LiveMirror) -> History:
        return listings.history(mirror.catalogue, mirror.definition, limit=limit)

    return service.look(name, found, live=found)


def _transfer(row: TransferRecord) -> str:
    how = "incremental" if row.base else "full"
    resumed = " resumed" if row.resumed_bytes else ""
    tail = f"  {row.error}" if row.error else ""
    if row.spread_ms:
        tail = f", members {format_duration(row.spread_ms / 1000)} apart{tail}"
    if report := decoded(row.pause):
        tail = "".join((f", {report.line()}", tail, *(f"\n    {one}" for one in report.details())))
    if row.full_reason and not row.base and row.verb != Verb.INITIALIZE.value:
        tail += f"\n    full transfer: {row.full_reason}"
    return (
        f"{row.verb:10} {row.result:8} {how}{resumed} {format_size(row.stream_bytes)} in "
        f"{format_duration(row.duration_ms / 1000)}  {row.name}{tail}"
    )


def _spark(values: list[float], as_text: Callable[[float], str]) -> str:
    """A bar chart in one line, oldest first, with minimum and maximum."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    bars = "".join(_BARS[round((value - low) * scale)] for value in values[-60:])
    return f"{bars}  {as_text(low)} to {as_text(high)}"
