"""Thousands of snapshots of a volume: what a person asks for stays quick."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from mirrord.system import clock
from tests.support.world import NAME
from tests.zfs.conftest import Trouble

pytestmark = [pytest.mark.zfs, pytest.mark.nightly]

#: A dataset has one snapshot in a transaction group, and so 10,000 take minutes to make: by
#: MIRRORD_TEST_SNAPSHOTS=10000. What takes long with so many is seen with fewer, too.
MANY = int(os.environ.get("MIRRORD_TEST_SNAPSHOTS", "500"))


def spent_s(work: Callable[[], object]) -> float:
    begun_s = clock.monotonic_s()
    work()
    return clock.monotonic_s() - begun_s


def test_thousands_of_snapshots_do_not_slow_an_update(
    trouble: Trouble, record_property: Callable[[str, object], None]
) -> None:
    """Reports may take what listing them takes; an update, no more than thrice of before."""
    trouble.mirrored()

    def update() -> None:
        trouble.change(len(times))
        trouble.update()

    verbs: dict[str, Callable[[], object]] = {
        "update": update,
        "status": trouble.status,
        "snapshots": lambda: trouble.service.snapshots(NAME),
    }
    times: dict[str, float] = {}
    for name, verb in verbs.items():
        verb()
        times[f"{name} before"] = spent_s(verb)
    trouble.lab.guest.user("many_snapshots", trouble.source, MANY)
    listed = spent_s(lambda: count(trouble))
    for name, verb in verbs.items():
        verb()
        times[name] = spent_s(verb)
    for name, took_s in times.items():
        record_property(name, round(took_s, 2))
    print({name: round(took_s, 2) for name, took_s in times.items()}, f"listing {listed:.2f} s")
    assert trouble.shown() == trouble.source_content()
    assert times["update"] < 3 * times["update before"] + listed
    assert times["status"] < times["status before"] + 3 * listed
    assert times["snapshots"] < times["snapshots before"] + 3 * listed


def count(trouble: Trouble) -> None:
    words = ["zfs", "list", "-Hpt", "snapshot", "-d", "1", "-o", "name,guid,createtxg"]
    found = trouble.run(*words, trouble.source).splitlines()
    assert len(found) >= MANY
