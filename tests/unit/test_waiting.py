"""How a piece of work waits: what holds in a block, and who ends a wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from mirrord.core.errors import Aborted, LinkLost
from mirrord.system.waiting import HURRY_S, LOOK_S, Waiting, deadline


def test_what_holds_in_a_block_ends_with_it() -> None:
    waiting = Waiting()
    assert not waiting.one_try
    with waiting.hurried(LOOK_S):
        with waiting.hurried(0):
            assert waiting.hurry_s == LOOK_S, "0 changes nothing"
        with waiting.hurried():
            assert waiting.hurry_s == HURRY_S and waiting.one_try
        assert waiting.hurry_s == LOOK_S
    assert waiting.hurry_s == 0
    with waiting.once():
        assert waiting.one_try
    assert not waiting.one_try


def test_cancelling_ends_each_kind_of_wait() -> None:
    def check() -> None:
        raise Aborted("somebody wishes it")

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    lock = threading.Lock()
    thread.start()
    lock.acquire()
    waiting = Waiting()
    waits: list[Callable[[], object]] = [
        lambda: waiting.until(ended.wait),
        lambda: waiting.acquire(lock),
        lambda: waiting.joined(thread),
        lambda: waiting.sleep_s(60),
        lambda: waiting.readable(reading),
        lambda: waiting.write_all(writing, bytes(1 << 20)),
    ]
    try:
        for wait in waits:
            began_s = time.monotonic()
            with pytest.raises(Aborted), waiting.cancellable(check):
                wait()
            assert time.monotonic() - began_s < 10
    finally:
        ended.set()
        thread.join()
        os.close(reading)
        os.close(writing)
    waiting.look()


def test_cancelling_another_operation_has_no_effect() -> None:
    def check() -> None:
        raise Aborted("somebody wishes it")

    mine, other = Waiting(), Waiting()
    with other.cancellable(check):
        assert not mine.until(threading.Event().wait, 0.3)


def test_a_deadline_ends_a_wait() -> None:
    with pytest.raises(LinkLost, match="does not answer"):
        deadline(0.2).until(threading.Event().wait)
    assert deadline(60).until(threading.Event().wait, 0.2) is False
