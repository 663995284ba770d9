"""Ship: the second phase of an update. Each member's snapshot of a set is sent to a staging at that
member's destination; several members at the same time, each resumable by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mirrord.core import sets
from mirrord.core.model import Snapshot
from mirrord.core.results import Watcher
from mirrord.core.sets import base_parts, joined
from mirrord.engine import together
from mirrord.engine.progress import RunFiles
from mirrord.engine.transfer import Outcome, Route, carry
from mirrord.system import clock
from mirrord.system.waiting import Waiting

if TYPE_CHECKING:
    from mirrord.engine.crew import Crew
    from mirrord.engine.tally import Tally

#: The maximum number of members at the same time.
AT_ONCE = 4


class Leg(NamedTuple):
    """What one member has to send: its route, its base (None: everything), its snapshot."""

    route: Route
    base: str | None
    snapshot: Snapshot


def legs(
    routes: Sequence[Route], base: str | None, snapshot: Snapshot, *, held: Collection[str] = ()
) -> list[Leg]:
    """The legs of a set. routes: of the members, in their order. held: identities of what receivers
    have committed already: that is not sent again.
    """
    before, parts = base_parts(base, len(routes)), sets.split(snapshot, len(routes))
    every = (Leg(*words) for words in zip(routes, before, parts, strict=True))
    return [leg for leg in every if leg.snapshot.guid not in held]


def ship(found: Sequence[Leg], transfer_id: str, *, run: RunFiles, watcher: Watcher) -> Outcome:
    """Carry all of them. The first that fails ends the others; their checkpoints are kept.

    run, watcher: receive the progress of all legs as that of one transfer.
    """
    started_s = clock.monotonic_s()
    if len(found) > 1:
        from mirrord.engine.crew import Crew  # (slow to load, and rarely needed)
        from mirrord.engine.tally import Tally

        crew = Crew(AT_ONCE)
        tally = Tally(run, watcher, crew.check)
        outcomes = crew.run([partial(_apart, leg, transfer_id, crew, tally) for leg in found])
    else:  # a single leg needs no thread
        outcomes = [carry(leg.route, transfer_id, leg.base, leg.snapshot) for leg in found]
    return _sum(outcomes, clock.monotonic_s() - started_s)


def _apart(leg: Leg, transfer_id: str, crew: Crew, tally: Tally) -> Outcome:
    """Carry a leg in its own thread. What only the caller's thread may do is passed to it."""
    before, waiting, progress = leg.route.waiting, Waiting(), tally.leg()
    waiting.hurry_s = before.hurry_s
    tell, make_room = leg.route.tell, leg.route.make_room
    route = leg.route._replace(
        run=progress,
        watcher=progress.watcher,
        throttle=leg.route.throttle.shared(progress.check_abort),
        waiting=waiting,
        tell=lambda text: crew.outside(partial(tell, text)),
        make_room=lambda need_bytes: crew.outside(partial(make_room, need_bytes)),
    )
    route.sender.waiting = route.receiver.waiting = waiting
    try:
        return carry(route, transfer_id, leg.base, leg.snapshot)
    finally:
        route.sender.waiting = route.receiver.waiting = before


def _sum(outcomes: Sequence[Outcome], duration_s: float) -> Outcome:
    """One outcome: sizes are added, times are the longest."""
    if len(outcomes) == 1:
        return outcomes[0]
    return Outcome(
        stream_bytes=sum(one.stream_bytes for one in outcomes),
        resumed_bytes=sum(one.resumed_bytes for one in outcomes),
        added_bytes=sum(one.added_bytes for one in outcomes),
        duration_s=duration_s,
        checksum=joined(one.checksum for one in outcomes),
        throttled_s=max((one.throttled_s for one in outcomes), default=0.0),
        delta_s=max((one.delta_s for one in outcomes), default=0.0),
        states=together.block_states([one.states for one in outcomes]),
    )
