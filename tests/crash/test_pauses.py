"""The crash matrix of a mirror whose application is paused: a cycle is broken at every step of the
coordinator and of its members. tests/sets has the matrix without a pause;
tests/pausers/test_hosts.py loses hosts.
"""

from __future__ import annotations

from typing import cast

import pytest

from mirrord.core.errors import MirrordError
from tests.crash.faults import KINDS, Crash, Point, broken_at, killed, points
from tests.pausers.conftest import NAME, VOLUMES, Group, group
from tests.support.service import until
from tests.support.world import World

#: Longer than a step takes: an application that runs earlier was resumed.
PAUSE_MAX_S = 10
IN_TIME_S = 2.0


__all__ = ["group"]  # a fixture


@pytest.fixture
def broken(group: Group) -> Group:
    """Initialized, with an application that runs."""
    group.app.python("import time; time.sleep(1000)")
    group.create(pause=f"cgroup:{group.app.name}")
    group.settings(f'pause_max = "{PAUSE_MAX_S}s"')
    group.service.initialize(NAME)
    return group


def write(group: Group, content: str) -> None:
    for name in VOLUMES:
        (group.here / name / "content").write_text(content)


def changed(group: Group) -> None:
    write(group, "0")
    group.service.update(NAME)


def shown(group: Group) -> list[str]:
    files = [view / "content" for view in group.views()]
    return [file.read_text() if file.exists() else "" for file in files]


def taking(found: list[Point]) -> list[str]:
    """The steps before a transfer begins: a cycle that ends there is aborted."""
    labels = list(dict.fromkeys(label for label, _ in found))
    assert {"ENGINE:PAUSE:BEGIN", "ENGINE:PAUSE:RESUMED", "BTRFS:SNAPSHOT:TAKE"} <= {*labels}
    return labels[: labels.index("CATALOGUE:TRANSFER:BEGIN")]


def after(group: Group, at: object, before: str, content: str, *, aborted: bool) -> None:
    """The application runs in time, nothing of an aborted set is shown, and recovery leaves no set
    that is not transferred; the next update works.
    """
    until(lambda: not group.app.asked(), IN_TIME_S)
    assert {*shown(group)} <= {before, content}, at
    service = group.again()
    service.recover(NAME)
    rows = service.snapshots(NAME).snapshots
    interrupted = service.catalogue.operation(service.definition(NAME).id) is not None
    only_here = [one.name for one in rows if one.source and not one.destination]
    assert len(only_here) == interrupted, at
    assert len({*shown(group)}) == 1, at
    if aborted:
        assert shown(group)[0] == before and not interrupted, at
    service.update(NAME)
    assert shown(group) == [content] * len(VOLUMES), at
    assert not group.app.asked() and not group.records(), at


def test_an_error_or_the_end_at_each_step(broken: Group) -> None:
    """The faults take turns, so that each step has one of them."""
    found = points(lambda: changed(broken))
    early = taking(found)
    at = [point for point in found if point[1] == 1 or point[0] in early]
    met = 0
    for number, point in enumerate(at, 1):
        write(broken, str(number))
        failed = False
        with broken_at(point, KINDS[number % len(KINDS)]) as told:
            try:
                broken.service.update(NAME)
            except (Crash, MirrordError, OSError):
                failed = told.met
        met += failed
        aborted = failed and point in [(label, 1) for label in early]
        after(broken, point, str(number - 1), str(number), aborted=aborted)
    assert met > len(at) / 2


def test_kill_minus_nine_while_the_set_is_taken(broken: Group) -> None:
    """tests/sets has the steps after it."""
    early = taking(points(lambda: changed(broken)))
    for number, label in enumerate(early, 1):
        write(broken, str(number))
        assert killed(cast(World, broken), lambda: broken.service.update(NAME), label)
        after(broken, label, str(number - 1), str(number), aborted=True)
