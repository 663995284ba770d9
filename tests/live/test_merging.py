"""What a slow link is spared in semi-sync: repeated writes, and bytes that compress."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.live.lab import BLOCK, STAMP, Client, End, Pair, Writer, stamp, wait_until
from tests.support.proxy import Proxy

_RATE = 2 << 20
_ABOVE = 256 << 10
#: Blocks that are written again and again.
_HOT = 16


@pytest.fixture
def proxy(pair: Pair) -> Any:
    proxy = Proxy(("127.0.0.1", pair.secondary.link_port))
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    yield proxy
    proxy.close()


def _status(end: End) -> dict[str, Any]:
    return end.status() or {}


def _semi(pair: Pair, *options: str) -> None:
    pair.primary.options += ["--semi-window", str(32 << 20), "--merge-above", str(_ABOVE)]
    pair.primary.options += options
    pair.start()
    assert pair.primary.ask("mode semi-sync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")


def _overwrite(pair: Pair, count: int) -> None:
    """Random data, so that only merging saves anything."""
    with Client(pair.primary) as client:
        for number in range(count):
            data = STAMP.pack(number % _HOT, number) + os.urandom(BLOCK - STAMP.size)
            assert client.write(number % _HOT * BLOCK, data) == 0


def _drained(pair: Pair) -> None:
    wait_until(lambda: _status(pair.primary)["buffered_bytes"] == 0, "the replica")
    wait_until(lambda: _status(pair.secondary)["redo_operations"] == 0, "the log to be applied")


def test_repeated_writes_are_sent_once(pair: Pair, proxy: Proxy) -> None:
    _semi(pair)
    proxy.limit(_RATE)
    before = proxy.passed["up"]
    _overwrite(pair, 2000)
    _drained(pair)
    status = _status(pair.primary)
    written = 2000 * BLOCK
    assert status["merged_writes"] > 1000
    assert proxy.passed["up"] - before < written / 2
    # What is on the link is what was not merged, and a greeting.
    assert 0 <= status["payload_bytes"] - (status["sent_bytes"] - status["merged_bytes"]) < 1000
    pair.assert_equal()


def test_without_merging_all_is_sent(pair: Pair, proxy: Proxy) -> None:
    _semi(pair)
    assert pair.primary.ask("merge off") == {"ok": True}
    proxy.limit(_RATE)
    before = proxy.passed["up"]
    _overwrite(pair, 500)
    _drained(pair)
    assert _status(pair.primary)["merged_writes"] == 0
    assert proxy.passed["up"] - before > 500 * BLOCK
    pair.assert_equal()


def test_writes_that_are_flushed_are_not_merged(pair: Pair, proxy: Proxy) -> None:
    _semi(pair)
    proxy.limit(_RATE)
    with Client(pair.primary) as client:
        for _ in range(300):
            assert client.write(0, os.urandom(BLOCK)) == 0
            assert client.flush() == 0
    _drained(pair)
    assert _status(pair.primary)["merged_writes"] == 0
    pair.assert_equal()


@pytest.mark.parametrize("seed", range(2))
def test_kills_leave_a_moment_of_the_merged_stream(pair: Pair, proxy: Proxy, seed: int) -> None:
    """The secondary is killed and continues its log, in the middle of units; at last it takes over
    without the primary.
    """
    pair.hold_long()
    _semi(pair)
    proxy.limit(_RATE)
    writer = Writer(pair.primary, _HOT)
    writer.start()
    wait_until(lambda: _status(pair.primary)["merged_writes"] > 100, "merged writes")
    for _ in range(3):
        time.sleep(0.1 + 0.17 * seed)
        merged = _status(pair.primary)["merged_writes"]
        pair.secondary.kill()
        pair.secondary.start()
        wait_until(lambda: _status(pair.primary)["merged_writes"] > merged + 50, "more of them")  # noqa: B023
    writer.finish()
    assert not writer.errors
    pair.primary.kill()
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: _status(pair.secondary).get("role") == "primary", "the break")
    writer.check_prefix(pair.secondary.bytes())


def test_compression_shows_in_the_status(pair: Pair, proxy: Proxy) -> None:
    _semi(pair)
    before = _status(pair.primary)
    assert before["compress"] is True
    with Client(pair.primary) as client:
        for block in range(100):
            assert client.write(block * BLOCK, stamp(block, 1)) == 0
        _drained(pair)
        compressed = _status(pair.primary)
        assert compressed["payload_bytes"] - before["payload_bytes"] == 100 * BLOCK
        assert compressed["link_bytes"] - before["link_bytes"] < 100 * BLOCK / 10
        assert pair.primary.ask("compress off") == {"ok": True}
        for block in range(100):
            assert client.write(block * BLOCK, stamp(block, 2)) == 0
        _drained(pair)
    whole = _status(pair.primary)
    assert whole["link_bytes"] - compressed["link_bytes"] == 100 * BLOCK
    pair.assert_equal()


def test_in_sync_nothing_is_compressed(pair: Pair) -> None:
    pair.start()
    before = _status(pair.primary)
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    after = _status(pair.primary)
    assert after["link_bytes"] - before["link_bytes"] == BLOCK


def test_wrong_words_are_refused(pair: Pair) -> None:
    pair.start()
    for line in ("merge maybe", "merge-above much", "compress 1"):
        assert pair.primary.ask(line)["ok"] is False
    assert pair.secondary.ask("merge on")["error"].endswith("while this end is secondary")
    assert _status(pair.primary)["merge_above_bytes"] == 10_000_000
