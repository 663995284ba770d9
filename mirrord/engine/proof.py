"""Proves what an update has received, before it is committed (`verify_updates`, docs/verify.md).

Both ends extend the tree of the base by what the update changed, and the roots are compared. The
snapshot at the destination is still in its staging: nobody sees it unless they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrord.catalogue.store import TransferBegin
from mirrord.core.errors import TransferFailed
from mirrord.core.states import Activity
from mirrord.core.verification import Difference, Verified, VerifyMode, VerifyRequest
from mirrord.drivers.contract import Capability
from mirrord.engine import compare
from mirrord.engine.mirror import Mirror
from mirrord.engine.ship import Leg
from mirrord.system import clock

_NAMED = 3


def demand(mirror: Mirror) -> None:
    """`Unsupported` when an end cannot prove updates."""
    for end in (mirror.source, mirror.destination):
        compare.ends_of(end.drivers, Capability.VERIFY_RECEIVED)


def prove(mirror: Mirror, begun: TransferBegin, legs: Sequence[Leg]) -> Verified:
    """Compare what was received with the source; returns the record of that.

    `TransferFailed` when it differs: then it was discarded.
    """
    mirror.watcher.activity(Activity.VERIFYING, begun.snapshot.name)
    mirror.run.enter(Activity.VERIFYING)
    found = []
    with mirror.waiting.cancellable(mirror.run.check_abort):
        for leg in legs:
            [source], [destination] = map(
                compare.ends_of, ([leg.route.sender], [leg.route.receiver])
            )
            guid, base = leg.snapshot.guid, leg.base or ""
            mode = VerifyMode.CHANGED if base else VerifyMode.FULL
            part = compare.Part("", source, destination, guid, base)
            found.append(compare.compare(part, VerifyRequest(guid, mode, base)))
    differences = [one for each in found for one in each.differences]
    if differences:
        mirror.destination.discard(begun.id)
        raise _different(mirror, begun, differences)
    return Verified(
        begun.snapshot.guid,
        begun.snapshot.name,
        clock.now_ns(),
        compare.mode_of(found),
        0,
        "+".join(one.source.root for one in found),
    )


def _different(
    mirror: Mirror, begun: TransferBegin, differences: Sequence[Difference]
) -> TransferFailed:
    named = [" ".join(compare.line(one).split()) for one in differences[:_NAMED]]
    more = len(differences) - _NAMED
    return TransferFailed(
        f"the received copy of {begun.snapshot.name} differs from the source: not committed",
        where=str(mirror.destination),
        why="; ".join(named) + (f"; and {more} more" if more > 0 else ""),
        hint="The received data was discarded, the view is unchanged. Run the same command again. "
        "If it fails again, a disk damages data, or an older copy differs: 'mirrord verify "
        f"{mirror.name} --full'.",
    )
