"""The link is cut, stalls in one direction, and corrupts frames."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.live.lab import Client, Pair, Proxy, Writer, wait_until


@pytest.fixture
def proxy(pair: Pair) -> Iterator[Proxy]:
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    yield proxy
    proxy.close()


def _writer(pair: Pair) -> Writer:
    pair.start()
    writer = Writer(pair.primary, 1024)
    writer.start()
    wait_until(lambda: writer.answered > 50, "the first writes")
    return writer


def _left_sync(pair: Pair) -> int:
    status = pair.primary.status()
    assert status is not None
    return int(status["left_sync"])


def _checked(pair: Pair, writer: Writer) -> None:
    pair.wait_in_sync()
    writer.finish()
    assert writer.errors == []
    pair.assert_equal()
    writer.check(pair.secondary.bytes())


def test_a_short_cut_is_a_pause(pair: Pair, proxy: Proxy) -> None:
    pair.hold_long()
    writer = _writer(pair)
    for _ in range(3):
        proxy.cut()
        time.sleep(0.7)
        proxy.heal()
        pair.wait_in_sync()
        time.sleep(0.2)
    assert _left_sync(pair) == 0
    _checked(pair, writer)


def test_a_replica_that_stays_silent_is_logged_once(pair: Pair) -> None:
    pair.start()
    assert pair.secondary.process is not None
    pair.secondary.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
    time.sleep(3)
    pair.secondary.process.send_signal(signal.SIGCONT)
    pair.wait_in_sync()
    # Once while writes wait, and once out of sync.
    assert (pair.primary.folder / "log").read_text().count("the replica is silent") == 2


def test_a_long_cut_leaves_the_replica_behind(pair: Pair, proxy: Proxy) -> None:
    writer = _writer(pair)
    proxy.cut()
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes without the replica")
    proxy.heal()
    _checked(pair, writer)
    assert _left_sync(pair) == 1


def test_a_path_that_passes_only_small_packets_is_no_link(pair: Pair, proxy: Proxy) -> None:
    """The ends greet each other again and again, and no write comes through."""
    writer = _writer(pair)
    proxy.is_black_hole = True
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 20)
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes without the replica")
    proxy.is_black_hole = False
    _checked(pair, writer)


def test_semi_sync_is_left_over_a_path_that_passes_only_small_packets(
    pair: Pair, proxy: Proxy
) -> None:
    writer = _writer(pair)
    pair.primary.ask("mode semi-sync")
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")
    proxy.is_black_hole = True
    pair.primary.ask("mode sync")
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 20)
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes without the replica")
    proxy.is_black_hole = False
    _checked(pair, writer)


def test_a_copy_in_async_is_resumed_after_a_cut(pair: Pair, proxy: Proxy) -> None:
    pair.start()
    before = _generation(pair)
    assert pair.primary.ask("mode async") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "the mode")
    assert pair.primary.ask(f"copy-rate {1 << 20}") == {"ok": True}
    with Client(pair.primary) as client:
        for number in range(4):
            assert client.write(number << 20, bytes([number + 1]) * (1 << 20)) == 0
    assert pair.primary.ask("resync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("resync"), "the copy")
    proxy.cut()
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "the cut to be noticed")
    assert _generation(pair) == before
    proxy.heal()
    assert pair.primary.ask("copy-rate 0") == {"ok": True}
    wait_until(lambda: _generation(pair) > before, "the end of the copy", 30)
    assert pair.primary.bytes() == pair.secondary.bytes()
    # It is one copy.
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "the mode")


def _generation(pair: Pair) -> int:
    return int((pair.primary.status() or {})["generation"])


def test_strict_sync_fails_instead(pair: Pair, proxy: Proxy) -> None:
    writer = _writer(pair)
    assert pair.primary.ask("mode strict-sync") == {"ok": True}
    proxy.cut()
    wait_until(lambda: 5 in writer.errors, "failing writes", 15)
    proxy.heal()
    pair.wait_in_sync()
    writer.finish()
    assert _left_sync(pair) == 0
    pair.assert_equal()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_strict_sync_is_left_while_writes_fail(pair: Pair, proxy: Proxy, mode: str) -> None:
    writer = _writer(pair)
    assert pair.primary.ask("mode strict-sync") == {"ok": True}
    proxy.cut()
    wait_until(lambda: 5 in writer.errors, "failing writes", 15)
    assert pair.primary.ask(f"mode {mode}") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes without the replica")
    writer.finish()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_in_one_direction_is_noticed(pair: Pair, proxy: Proxy, direction: str) -> None:
    writer = _writer(pair)
    proxy.discards = direction
    wait_until(lambda: not pair.primary.is_state("in-sync"), "the cut to be noticed", 5)
    proxy.heal()
    _checked(pair, writer)


def test_a_corrupt_frame_is_a_lost_connection(pair: Pair, proxy: Proxy) -> None:
    pair.hold_long()
    writer = _writer(pair)
    for _ in range(5):
        proxy.flips = 1
        wait_until(lambda: proxy.flips == 0, "a frame to corrupt")
        pair.wait_in_sync()
        time.sleep(0.1)
    assert "corrupt frame" in (pair.secondary.folder / "log").read_text()
    assert _left_sync(pair) == 0
    _checked(pair, writer)
