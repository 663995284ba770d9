"""Semi-sync with processes: ends that are killed, a link that is cut, a window that is full."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from tests.live.lab import BLOCK, Client, Pair, Proxy, Writer, stamp, wait_until

_BLOCKS = 1024
_WINDOW = 64 * BLOCK


class Ordered(Writer):
    """One write at a time to new blocks, so that the order of all writes is known."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair.primary, _BLOCKS, depth=1)


def _is_semi(pair: Pair) -> bool:
    status = pair.primary.status()
    return status is not None and status.get("state") == "semi-sync" and status["connected"]


def _copied(pair: Pair) -> int:
    return int((pair.primary.status() or {})["copied_bytes"])


def _semi(pair: Pair, window: str = str(_WINDOW)) -> int:
    """Returns what was copied first; it does not become more."""
    pair.start()
    assert pair.primary.ask(f"window {window}") == {"ok": True}
    pair.primary.options = ["--semi-window", window]
    assert pair.primary.ask("mode semi-sync") == {"ok": True}
    wait_until(lambda: _is_semi(pair), "semi-sync")
    return _copied(pair)


def _number(image: bytes, block: int) -> int:
    return int.from_bytes(image[block * BLOCK + 8 : block * BLOCK + 16], "little")


def _lost(writer: Writer, image: bytes) -> int:
    """The acknowledged writes that the image lacks. What it has is a prefix: with one write at a
    time their numbers are their order.
    """
    held = {block: _number(image, block) for block in writer.issued}
    last = max(held.values(), default=0)
    for number in range(1, last + 1):
        block = (number * 7919) % writer.blocks
        newest = number + (last - number) // writer.blocks * writer.blocks
        assert held[block] == newest, (block, held[block], newest, last)
    answered = max(writer.acknowledged.values(), default=0)
    return max(0, answered - last)


def _broken(pair: Pair) -> bytes:
    """The secondary's image after a break, without the primary."""
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: (pair.secondary.status() or {}).get("role") == "primary", "the break")
    return pair.secondary.bytes()


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_primary_loses_at_most_the_window(pair: Pair, seed: int) -> None:
    _semi(pair)
    writer = Ordered(pair)
    writer.start()
    wait_until(lambda: writer.answered > 50, "the first writes")
    time.sleep(random.Random(seed).random() * 0.5)
    pair.primary.kill()
    assert _lost(writer, _broken(pair)) * BLOCK <= _WINDOW
    writer.is_over.set()


@pytest.mark.parametrize("seed", range(2))
def test_both_ends_are_killed_and_a_prefix_is_left(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    _semi(pair)
    writer = Ordered(pair)
    writer.start()
    for _ in range(3):
        before = writer.answered
        wait_until(lambda: writer.answered > before + 30, "writes")  # noqa: B023
        time.sleep(chance.random() * 0.2)
        pair.secondary.kill()
        time.sleep(chance.random() * 0.1)
        pair.secondary.start()
        wait_until(lambda: _is_semi(pair), "semi-sync")
    time.sleep(chance.random() * 0.3)
    pair.secondary.kill()
    pair.primary.kill()
    pair.secondary.start()
    assert _lost(writer, _broken(pair)) * BLOCK <= _WINDOW
    writer.is_over.set()


def test_writes_go_on_until_the_window_is_full(pair: Pair) -> None:
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    try:
        copied = _semi(pair)
        proxy.cut()
        with Client(pair.primary) as client:
            for block in range(64):
                assert client.write(block * BLOCK, stamp(block, 1)) == 0
            assert client.flush() == 0
            client.send(1, 9, 64 * BLOCK, stamp(64, 1))
            wait_until(lambda: bool((pair.primary.status() or {})["window_full"]), "the window")
            status = pair.primary.status() or {}
            assert status["state"] == "semi-sync" and status["lag_bytes"] == _WINDOW
            assert status["outstanding_requests"] == 1
            proxy.heal()
            assert client.answer() == (9, 0)
        wait_until(lambda: (pair.primary.status() or {})["lag_bytes"] == 0, "the replica")
        assert _copied(pair) == copied
        assert pair.primary.ask("mode sync") == {"ok": True}
        pair.wait_in_sync()
        assert _copied(pair) == copied
        pair.assert_equal()
    finally:
        proxy.close()


def test_async_releases_the_writers(pair: Pair) -> None:
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    try:
        _semi(pair, "8192")
        proxy.cut()
        with Client(pair.primary) as client:
            for block in range(8):
                client.send(1, block + 1, block * BLOCK, stamp(block, 1))
            wait_until(lambda: bool((pair.primary.status() or {})["window_full"]), "the window")
            assert pair.primary.ask("mode async") == {"ok": True}
            assert {client.answer() for _ in range(8)} == {(block + 1, 0) for block in range(8)}
    finally:
        proxy.close()


def test_a_restarted_primary_answers_nothing_before_its_replica_has_everything(pair: Pair) -> None:
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    try:
        _semi(pair)
        proxy.cut()
        with Client(pair.primary) as client:
            for block in range(32):
                assert client.write(block * BLOCK, stamp(block, 1)) == 0
        pair.primary.kill()
        pair.primary.start()
        with Client(pair.primary) as client:
            client.send(1, 7, 0, stamp(0, 2))
            wait_until(
                lambda: (pair.primary.status() or {})["outstanding_requests"] == 1, "the write"
            )
            time.sleep(1)
            status = pair.primary.status() or {}
            assert status["outstanding_requests"] == 1 and status["state"] == "holding"
            proxy.heal()
            assert client.answer() == (7, 0)
        wait_until(lambda: _is_semi(pair), "semi-sync")
        assert pair.primary.ask("mode sync") == {"ok": True}
        pair.wait_in_sync()
        pair.assert_equal()
    finally:
        proxy.close()


def test_modes_change_without_a_resync(pair: Pair) -> None:
    copied = _semi(pair)
    writer = Writer(pair.primary, _BLOCKS)
    writer.start()
    for mode in itertools.islice(itertools.cycle(["sync", "semi-sync"]), 6):
        before = writer.answered
        wait_until(lambda: writer.answered > before + 50, "writes")  # noqa: B023
        assert pair.primary.ask(f"mode {mode}") == {"ok": True}
        wait_until(
            lambda: _is_semi(pair) if mode == "semi-sync" else pair.primary.is_state("in-sync"),  # noqa: B023
            mode,
        )
    assert pair.primary.ask("mode sync") == {"ok": True}
    pair.wait_in_sync()
    writer.finish()
    assert writer.errors == []
    assert _copied(pair) == copied
    pair.assert_equal()
    writer.check(pair.secondary.bytes())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_its_redo_log_a_secondary_is_copied_completely(
    pair: Pair, is_damaged: bool
) -> None:
    """Both processes have ended: only the secondary's record says that there was a log."""
    _semi(pair)
    with Client(pair.primary) as client:
        for block in range(32):
            assert client.write(block * BLOCK, stamp(block, 1)) == 0
    pair.secondary.kill()
    pair.primary.kill()
    redo = pair.secondary.state / "redo"
    if is_damaged:
        with redo.open("r+b") as file:
            file.write(b"damaged!")
    else:
        redo.unlink()
    for _ in range(2):
        pair.secondary.start()
        refused = pair.secondary.ask("break")
        assert not refused["ok"] and "missing or damaged" in refused["error"]
        assert (pair.secondary.status() or {})["state"] == "empty"
        pair.secondary.kill()
    pair.secondary.start()
    pair.primary.start()
    wait_until(lambda: _is_semi(pair), "semi-sync")
    assert _copied(pair) >= 8 << 20
    assert pair.primary.ask("mode sync") == {"ok": True}
    pair.wait_in_sync()
    pair.assert_equal()
    assert redo.stat().st_size == 0


def test_strict_sync_fails_what_the_secondary_does_not_have(pair: Pair) -> None:
    proxy = Proxy(pair.secondary.link_port)
    pair.primary.peer = f"127.0.0.1:{proxy.port}"
    try:
        _semi(pair)
        proxy.cut()
        with Client(pair.primary) as client:
            assert client.write(0, stamp(0, 1)) == 0
            assert pair.primary.ask("mode strict-sync") == {"ok": True}
            client.send(1, 7, BLOCK, stamp(1, 1))
            assert client.answer() == (7, 5)
        proxy.heal()
        pair.wait_in_sync()
        pair.assert_equal()
    finally:
        proxy.close()
