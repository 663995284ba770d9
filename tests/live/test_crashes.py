"""Ends are killed at random moments; both have every acknowledged write afterwards."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

from tests.live.kinds_of_io import EACH_IO
from tests.live.lab import BLOCK, Client, Pair, Writer, stamp, wait_until

_BLOCKS = 1024


def _started(pair: Pair) -> Writer:
    pair.start()
    writer = Writer(pair.primary, _BLOCKS)
    writer.start()
    wait_until(lambda: writer.answered > 50, "the first writes")
    return writer


def _checked(pair: Pair, writer: Writer) -> None:
    pair.wait_in_sync()
    writer.finish()
    assert writer.errors == []
    pair.assert_equal()
    writer.check(pair.secondary.bytes())


@pytest.mark.parametrize("seed", range(3))
@EACH_IO
def test_the_primary_is_killed(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    writer = _started(pair)
    for _ in range(4):
        time.sleep(chance.random() * 0.4)
        pair.primary.kill()
        writer.check(pair.secondary.bytes())
        pair.primary.start()
        wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    _checked(pair, writer)


@pytest.mark.parametrize("seed", range(3))
@EACH_IO
def test_the_secondary_is_killed(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    pair.hold_long()
    writer = _started(pair)
    for _ in range(4):
        time.sleep(chance.random() * 0.4)
        pair.secondary.kill()
        time.sleep(chance.random() * 0.5)
        pair.secondary.start()
        wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    status = pair.primary.status()
    assert status is not None and status["left_sync"] == 0
    _checked(pair, writer)


@EACH_IO
def test_both_are_killed(pair: Pair) -> None:
    writer = _started(pair)
    for _ in range(3):
        time.sleep(0.2)
        pair.primary.kill()
        pair.secondary.kill()
        pair.secondary.start()
        pair.primary.start()
        wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    _checked(pair, writer)


def test_what_the_primary_lost_in_a_power_cut_comes_back_from_the_replica(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        for block in range(64):
            assert client.write(block * 4096, stamp(block, 1)) == 0
        assert client.flush() == 0
        flushed = pair.primary.folder / "flushed"
        shutil.copy(pair.primary.image, flushed)
        for block in range(0, 64, 2):
            assert client.write(block * 4096, stamp(block, 2)) == 0
    # The kernel forgets what was not synced, and has another boot id afterwards.
    pair.primary.kill()
    shutil.copy(flushed, pair.primary.image)
    pair.primary.boot = f"{5:032x}"
    expected = pair.secondary.bytes()
    pair.primary.start()
    pair.wait_in_sync()
    assert pair.primary.bytes() == expected == pair.secondary.bytes()


def test_after_a_power_cut_the_primary_waits_for_its_replica(pair: Pair) -> None:
    pair.start()
    pair.stop()
    pair.primary.boot = f"{5:032x}"
    pair.primary.start()
    time.sleep(4)
    assert pair.primary.is_state("waiting-for-replica")
    assert pair.primary.ask("force") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "service without the replica")


@EACH_IO
def test_a_stopped_secondary_is_left_behind_and_comes_back(pair: Pair) -> None:
    writer = _started(pair)
    assert pair.secondary.process is not None
    pair.secondary.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes without the replica")
    pair.secondary.process.send_signal(signal.SIGCONT)
    _checked(pair, writer)


def test_a_stopped_primary_goes_on(pair: Pair) -> None:
    writer = _started(pair)
    assert pair.primary.process is not None
    pair.primary.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    pair.primary.process.send_signal(signal.SIGCONT)
    _checked(pair, writer)


#: Where the headers of the file with the before-images are, and its first entry's old bytes.
_HEADERS, _FIRST = (0, 4096), 8192 + 40


def _in_resync(pair: Pair) -> None:
    """Neither end runs any more; the secondary was overwritten in part."""
    pair.start()
    with Client(pair.primary) as client:
        for block in range(_BLOCKS):
            assert client.write(block * BLOCK, stamp(block, 1)) == 0
        pair.secondary.kill()
        for block in range(_BLOCKS):
            assert client.write(block * BLOCK, stamp(block, 2)) == 0
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
    assert pair.primary.ask(f"copy-rate {1 << 20}") == {"ok": True}
    pair.secondary.start()
    saved = 2 << 20
    wait_until(
        lambda: (pair.secondary.status() or {})["before_image_bytes"] >= saved, "before-images"
    )
    pair.stop()


@pytest.mark.parametrize("damage", ["gone", "headers", "entry"])
def test_before_images_that_are_lost_are_missed(pair: Pair, damage: str) -> None:
    _in_resync(pair)
    with (pair.secondary.state / "side").open("r+b") as side:
        if damage == "gone":
            side.truncate(0)
        for at in {"headers": _HEADERS, "entry": (_FIRST + 99,)}.get(damage, ()):
            side.seek(at)
            side.write(b"damaged!")
    for _ in range(2):
        pair.secondary.start()
        refused = pair.secondary.ask("break")
        assert not refused["ok"] and "before-images (file 'side') are missing" in refused["error"]
        assert (pair.secondary.status() or {})["state"] == "empty"
        pair.secondary.kill()
    pair.secondary.start()
    pair.primary.start()
    pair.wait_in_sync()
    pair.assert_equal()
    assert pair.secondary.bytes()[:BLOCK] == stamp(0, 2)


def test_a_break_in_a_resync_goes_back(pair: Pair) -> None:
    _in_resync(pair)
    pair.secondary.start()
    assert pair.secondary.ask("break") == {"ok": True}
    image = b"".join(stamp(block, 1) for block in range(_BLOCKS))
    assert pair.secondary.bytes()[: len(image)] == image
