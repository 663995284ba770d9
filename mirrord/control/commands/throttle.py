"""Limit the transfer rate of a mirror, also of a running transfer.

Panel: Mirrors 7

Sets the transfer rate of a mirror in its definition; it applies to a running transfer within a
second. RATE is `5MiB/s`, `'20MiB/s 08:00-18:00 Mon-Fri, else unlimited'`, or `unlimited`, which
removes the limit ([rates](schedules.md#rates)).
"""

from __future__ import annotations

from typing import Annotated

from mirrord.control.command import Argument, MirrorName, Right, Service, command
from mirrord.core.results import Result
from mirrord.system.explain import explained


@command(Right.ACT)
def throttle(
    service: Service,
    name: MirrorName,
    rate: Annotated[
        str,
        Argument(
            "RATE", "'5MiB/s', '20MiB/s 08:00-18:00 Mon-Fri, else unlimited', or 'unlimited'."
        ),
    ],
) -> Result:
    from mirrord.config.reading import as_rates

    with explained():
        before = service.definition(name).pace.throttle or "unlimited"
        text = "" if rate.strip() in ("unlimited", "none") else as_rates(rate)
        changed = service.definitions.set_throttle(name, text)
        if changed.is_live:
            from mirrord.live.supervise import apply_throttle

            service.look_live(name, apply_throttle)
    now = text or "unlimited"
    return Result(
        "done",
        f"The rate limit of '{name}' is now {now} (before: {before}); a running transfer "
        "applies it within a second.",
        {"throttle": now, "before": before},
    )
