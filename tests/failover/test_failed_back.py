"""What a resync has set aside at the destination hinders no later update."""

from __future__ import annotations

from mirrord.core.model import SnapshotKind
from tests.support.world import NAME, World

#: So many that the source deletes what it had at the break, and reuses its space.
UPDATES = 12


def test_a_mirror_goes_on_with_all_that_was_set_aside(world: World) -> None:
    world.initialized(keep_source=1, keep_destination=4)
    lab, service = world.lab, world.service
    for turn in range(3):
        service.break_off(NAME)
        lab.change(lab.destination(), 100 + turn)
        lost = world.view_content()
        service.resync(NAME, yes=True)
        for number in range(UPDATES):
            lab.change(lab.source(), 1000 * turn + number)
            service.update(NAME)
            assert world.in_step()
        found = lab.destination().snapshots()
        aside = [one for one in found if one.kind is SnapshotKind.DIVERGED]
        assert len(aside) == turn + 1
        assert lab.snapshot_content(lab.destination(), aside[-1].guid) == lost
