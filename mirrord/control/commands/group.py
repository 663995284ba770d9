"""Try the pause of a consistency group; nothing is transferred.

Panel: Monitoring 10

`mirrord group test NAME` pauses the [applications](consistency-groups.md) of a mirror, takes the
snapshots, resumes, prints how long that took, and deletes the snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Annotated, Any

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.pause import format_ms
from mirrord.core.reports import PauseTest


def _shown(found: PauseTest, _arguments: Mapping[str, Any]) -> Iterator[str]:
    for report in found.pauses:
        yield from report.details()
    if len(found.pauses) > 1:
        longest = [report.longest_ms for report in found.pauses]
        yield f"median {format_ms(median(longest))}, longest {format_ms(max(longest))}"


def _document(found: PauseTest) -> dict[str, Any]:
    pauses = [[one._asdict() for one in report.members] for report in found.pauses]
    return {"name": found.name, "pauses": pauses}


@command(Right.ACT, words="group test", text=_shown, document=_document)
def group_test(
    service: Service,
    name: MirrorName,
    *,
    count: Annotated[int, Option("How often.", flags=("--count", "-n"), most=1000)] = 1,
) -> PauseTest:
    """Pause, take the snapshots, resume, and show the times."""
    from mirrord.engine import pausetest

    return service.look(name, lambda mirror: pausetest.test(mirror, count=count))
