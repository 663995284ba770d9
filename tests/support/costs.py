"""Processor time of the tests, by folder: what a run on few processors is made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: By folder: tests, and seconds of processors.
_spent: dict[str, tuple[int, float]] = {}


@contextmanager
def counted(folder: str) -> Iterator[None]:
    """A test of this folder: this process, and the children that end meanwhile."""
    before_s = _used_s()
    try:
        yield
    finally:
        tests, seconds = _spent.get(folder, (0, 0.0))
        _spent[folder] = tests + 1, seconds + _used_s() - before_s


def summary() -> list[str]:
    """A line for each folder, then all, with the collection of the tests."""
    lines = [
        f"{folder:<12} {tests:>5} tests {seconds:>8.1f} s"
        for folder, (tests, seconds) in sorted(_spent.items(), key=lambda one: -one[1][1])
    ]
    return [*lines, f"{'in all':<24} {_used_s():>8.1f} s"]


def _used_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
