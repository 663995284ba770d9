"""Tries the pause of a mirror: it takes a set and deletes it again. Nothing is transferred."""

from __future__ import annotations

from functools import partial

from mirrord.core import names
from mirrord.core.errors import Refused
from mirrord.core.pause import PauseReport
from mirrord.core.reports import PauseTest
from mirrord.core.states import Activity, Verb
from mirrord.engine import pausing, recovery
from mirrord.engine.mirror import Mirror, check_source
from mirrord.system import clock

VERB = "group test"


def test(mirror: Mirror, *, count: int) -> PauseTest:
    """Pause and take the snapshots `count` times."""
    if not any(mirror.definition.pausers):
        raise Refused(
            "nothing is paused for this mirror",
            where=f"mirror '{mirror.name}'",
            hint='Add for example pause = "cgroup:postgresql.service" to the definition '
            f"{mirror.definition.file}.",
        )
    with mirror.hold(Verb.UPDATE, activity=Activity.SNAPSHOTTING):
        if recovery.recover(mirror).pending is not None:
            raise Refused(
                "an interrupted transfer has to be finished first",
                where=f"mirror '{mirror.name}'",
                hint=f"Run 'mirrord update {mirror.name}' before.",
            )
        mirror.row()
        check_source(mirror.source.facts(), str(mirror.source), mirror.id)
        return PauseTest(mirror.name, tuple(_once(mirror) for _ in range(count)))


def _once(mirror: Mirror) -> PauseReport:
    name = partial(names.snapshot_name, mirror.id, clock.now_ns())
    arguments = mirror.catalogue.begin(mirror.id, VERB, name=name)
    try:
        taken = pausing.take(mirror, arguments.name)
        return mirror.source.pauses[taken.guid]
    finally:
        recovery.recover(mirror, RuntimeError("the test is done"))
