"""The queue of runs and the pauses between retries."""

from __future__ import annotations

import random
from itertools import pairwise

from mirrord.core.errors import Damaged, TransferFailed
from mirrord.core.model import Caps
from mirrord.scheduler.jobs import FIRST_PAUSE_S, LONGEST_PAUSE_S, Job, Queue, pause_s

CUT = TransferFailed("the connection was lost")


def job(name: str, cause: str = "schedule", *, host: str = "", filesystem: str = "") -> Job:
    return Job(name, "update", cause, "", host=host, filesystem=filesystem)


def names(jobs: list[Job]) -> list[str]:
    return [each.name for each in jobs]


def test_no_more_run_than_may_and_who_came_first_goes_first() -> None:
    queue = Queue(Caps(2, 9, 9))
    for name in "abc":
        assert queue.add(job(name))
    assert names(queue.ready()) == ["a", "b"]
    assert queue.ready() == []
    queue.running.pop("a")
    assert names(queue.ready()) == ["c"]


def test_one_waits_for_each_mirror_however_often_it_is_due() -> None:
    queue = Queue(Caps(9, 9, 9))
    queue.add(job("a"))
    assert names(queue.ready()) == ["a"]
    assert queue.add(job("a")) and not queue.add(job("a"))
    assert queue.ready() == [], "it runs already"
    queue.running.pop("a")
    assert names(queue.ready()) == ["a"] and not queue.waiting


def test_who_cannot_run_yet_holds_up_nobody_else() -> None:
    queue = Queue(Caps(9, 1, 1))
    for name, host, filesystem in (
        ("a", "h", "x"),
        ("b", "h", "y"),
        ("c", "i", "x"),
        ("d", "i", "y"),
        ("e", "", ""),
    ):
        queue.add(job(name, host=host, filesystem=filesystem))
    assert names(queue.ready()) == ["a", "d", "e"]
    queue.running.pop("a")
    assert names(queue.ready()) == [], "b waits for d's file system, c for its host"
    queue.running.pop("d")
    assert names(queue.ready()) == ["b", "c"]


def test_what_a_person_asked_for_goes_first() -> None:
    queue = Queue(Caps(1, 9, 9))
    for each in (job("a"), job("b"), job("c", "asked")):
        queue.add(each)
    assert names(queue.ready()) == ["c"]


# Retries


def test_only_what_may_be_tried_again_is_and_not_for_ever() -> None:
    chance = random.Random(1)
    assert pause_s(CUT, 1, 2, chance) is not None and pause_s(CUT, 2, 2, chance) is not None
    assert pause_s(CUT, 3, 2, chance) is None
    assert pause_s(Damaged("no"), 1, 2, chance) is None


def test_pauses_grow_up_to_a_limit_and_spread_by_chance() -> None:
    pauses = [pause_s(CUT, number, 99, random.Random(7)) or 0.0 for number in range(1, 40)]
    assert all(a < b for a, b in pairwise(pauses[:7]))
    assert 0.8 * FIRST_PAUSE_S <= pauses[0] <= 1.2 * FIRST_PAUSE_S
    assert max(pauses) <= 1.2 * LONGEST_PAUSE_S
    again = [pause_s(CUT, number, 99, random.Random(7)) for number in range(1, 40)]
    assert again == pauses
    assert pause_s(CUT, 1, 9, random.Random(8)) != pauses[0]
