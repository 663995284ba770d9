"""The crash matrix with three members: each verb is broken at every step of each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import MirrordError
from mirrord.drivers.registry import open_driver
from mirrord.engine.members import Members
from mirrord.system.paths import Paths
from tests.contract.sets import SetLab
from tests.crash import test_matrix as matrix
from tests.crash.faults import EACH, FAULTS, Crash, broken_at, points
from tests.support.verbs import Service

test_update = matrix.test_update
test_break = matrix.test_break
test_prune = matrix.test_prune
test_abort_hard = matrix.test_abort_hard
test_switching = matrix.test_switching
test_kill_minus_nine = matrix.test_kill_minus_nine_of_an_update_at_every_step


@pytest.mark.parametrize("fault", EACH)
def test_initialize(lab: SetLab, tmp_path: Path, fault: str) -> None:
    """Each try is the first transfer of another mirror of the same sources."""

    def fresh(name: str) -> Callable[[], object]:
        ends = [f"{one.source}={one.destination}.{name}" for one in lab.pairs()]
        service.create(name, members=tuple(ends), keep_source=1)
        return lambda: Service(paths).initialize(name)

    home = tmp_path / "home"
    paths = Paths(home / "etc", home / "state", home / "run")
    service = Service(paths)
    failed = 0
    for number, point in enumerate(points(fresh("learn"))):
        name = f"m{number}"
        work = fresh(name)
        try:
            with broken_at(point, FAULTS[fault]):
                work()
        except (Crash, MirrordError, OSError):
            failed += 1
        if service.status(name)[0].state == "uninitialized":
            service.initialize(name)
        service.update(name)
        status = service.status(name)[0]
        assert status.state == "mirrored" and status.healthy, point
        places = [parse_endpoint(row.destination) for row in status.reading.members]
        destination = Members([open_driver(place) for place in places])
        assert lab.content(destination) == lab.content(lab.source()), point
        service.delete(name, yes=True, keep_snapshots=False)
        assert len(lab.source().snapshots()) == 1, f"only the first mirror's is left, {point}"
    assert failed >= 3
