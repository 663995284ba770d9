"""10,000 snapshots of a volume: what a person asks for stays quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.system import clock
from tests.contract.zfs import zfs_lab
from tests.support.world import NAME
from tests.zfs.test_trouble import Trouble

pytestmark = pytest.mark.zfs

MANY = 10_000
#: One transaction group takes them all; a program has a limit of its own.
_PROGRAM = """
local dataset, first, last = table.unpack((...)["argv"])
for number = tonumber(first), tonumber(last) do
    zfs.sync.snapshot(dataset .. "@owners." .. number)
end
"""
_AT_ONCE = 1000


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    with zfs_lab(volume=False, large=False) as lab:
        made = Trouble(lab, tmp_path)
        yield made
        made.clean_up()


def spent_s(work: Callable[[], object]) -> float:
    begun_s = clock.monotonic_s()
    work()
    return clock.monotonic_s() - begun_s


def test_ten_thousand_snapshots_hinder_nobody(
    trouble: Trouble, record_property: Callable[[str, object], None]
) -> None:
    """Reports may take what listing 10,000 takes; an update, no more than thrice of before."""
    trouble.mirrored()

    def update() -> None:
        trouble.change(len(times))
        trouble.update()

    verbs: dict[str, Callable[[], object]] = {"update": update, "status": trouble.status,
             "snapshots": lambda: trouble.service.snapshots(NAME)}  # fmt: skip
    times: dict[str, float] = {}
    for name, verb in verbs.items():
        verb()
        times[f"{name} before"] = spent_s(verb)
    for first in range(1, MANY, _AT_ONCE):
        words = ["zfs", "program", "-t", "100000000", "-m", "100000000", "here", "-"]
        numbers = [str(first), str(first + _AT_ONCE - 1)]
        trouble.lab.guest.run(*words, trouble.source, *numbers, given=_PROGRAM)
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
