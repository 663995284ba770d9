"""Reading ahead changes nothing but when things are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mirrord.analysis.ahead import read_ahead


def readers() -> int:
    return sum(thread.name.startswith("read-ahead") for thread in threading.enumerate())


def test_same_items_in_order() -> None:
    assert list(read_ahead(iter(range(1000)))) == list(range(1000))
    assert list(read_ahead([])) == []
    assert readers() == 0


def test_an_error_comes_where_it_would_have_come() -> None:
    def breaking() -> Iterator[int]:
        yield from range(30)
        raise OSError("the disk is gone")

    coming = read_ahead(breaking())
    assert [next(coming) for _ in range(30)] == list(range(30))
    with pytest.raises(OSError, match="the disk is gone"):
        next(coming)
    assert readers() == 0


def test_who_stops_early_leaves_no_thread_and_no_heap_of_items() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            read.append(len(read))
            yield read[-1]

    coming = read_ahead(endless())
    assert next(coming) == 0
    coming.close()
    assert readers() == 0
    assert len(read) < 20
