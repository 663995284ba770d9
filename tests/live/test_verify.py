"""Verification while clients write, and the throttle of a resync."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.lab import BLOCK, Client, Pair, Writer, stamp, wait_until


def _verify(pair: Pair) -> dict[str, Any]:
    status = pair.primary.status()
    assert status is not None
    return dict(status["verify"])


def _complete(pair: Pair, rate: str = "") -> dict[str, Any]:
    assert pair.primary.ask(f"verify {rate}") == {"ok": True}
    wait_until(lambda: _verify(pair)["state"] == "complete", "the verification")
    return _verify(pair)


@pytest.fixture
def writer(pair: Pair) -> Iterator[Writer]:
    pair.start()
    writer = Writer(pair.primary, 1024)
    writer.start()
    wait_until(lambda: writer.answered > 50, "the first writes")
    yield writer
    writer.is_over.set()


def test_no_false_alarm_while_clients_write(pair: Pair, writer: Writer) -> None:
    for _ in range(5):
        before = writer.answered
        result = _complete(pair)
        assert (result["differing"], result["checked_bytes"]) == ([], 8 << 20)
        wait_until(lambda before=before: writer.answered > before, "writes")  # type: ignore[misc]
    writer.finish()
    assert writer.errors == []
    pair.assert_equal()


def test_cuts_during_a_verification_are_no_differences(pair: Pair, writer: Writer) -> None:
    assert pair.primary.ask(f"verify {4 << 20}") == {"ok": True}
    for _ in range(3):
        time.sleep(0.2)
        pair.secondary.kill()
        pair.secondary.start()
        pair.wait_in_sync()
    wait_until(lambda: _verify(pair)["state"] == "complete", "the verification")
    assert _verify(pair)["differing"] == []
    writer.finish()


def test_a_difference_is_named_and_copied_on_request(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        for block in range(512):
            assert client.write(block * BLOCK, stamp(block, 1)) == 0
        assert client.flush() == 0
    refused = pair.primary.ask("verify-resync")
    problem = "no verification has found a difference"
    assert refused == {"ok": False, "code": "refused", "error": problem}
    with pair.secondary.image.open("r+b") as image:
        for block in (7, 8, 300):
            image.seek(block * BLOCK + 99)
            image.write(b"\xff")
    result = _complete(pair)
    assert result["differing"] == [[7 * BLOCK, 2 * BLOCK], [300 * BLOCK, BLOCK]]
    assert result["differing_bytes"] == 3 * BLOCK
    pair.wait_in_sync()
    copied = (pair.primary.status() or {})["copied_bytes"]
    assert pair.primary.ask("verify-resync") == {"ok": True}
    wait_until(lambda: (pair.primary.status() or {}).get("generation") == 2, "the resync")
    pair.wait_in_sync()
    pair.assert_equal()
    assert (pair.primary.status() or {})["copied_bytes"] - copied == 3 * BLOCK
    assert _complete(pair)["differing"] == []


def test_a_verification_keeps_its_rate_and_can_be_stopped(pair: Pair) -> None:
    pair.start()
    start = time.monotonic()
    _complete(pair, str(4 << 20))
    assert 1.5 < time.monotonic() - start < 30
    assert pair.primary.ask(f"verify {1 << 20}") == {"ok": True}
    wait_until(lambda: _verify(pair)["checked_bytes"] > 0, "progress")
    assert pair.primary.ask("verify-stop") == {"ok": True}
    stopped = _verify(pair)
    assert stopped["state"] == "stopped"
    assert stopped["checked_bytes"] < 8 << 20
    assert not pair.primary.ask("verify fast")["ok"]
    assert not pair.secondary.ask("verify")["ok"]


def test_a_throttled_copy_keeps_its_progress(pair: Pair) -> None:
    pair.primary.image.write_bytes(b"".join(stamp(block, 1) for block in range(2048)))
    pair.primary.options = ["--copy-rate", str(1 << 20)]
    pair.secondary.start()
    pair.primary.start()

    def left() -> int:
        return int((pair.primary.status() or {}).get("dirty_bytes", 0))

    start = time.monotonic()
    wait_until(lambda: 0 < left() < 5 << 20, "half of the copy")
    # Progress is stored with each barrier, once a second.
    time.sleep(1.2)
    before = left()
    assert time.monotonic() - start > 1
    pair.primary.kill()
    pair.primary.start()
    wait_until(lambda: pair.primary.is_state("resync"), "the copy to go on")
    assert 0 < left() < before + (4 << 20)
    assert pair.primary.ask("copy-rate 0") == {"ok": True}
    pair.wait_in_sync()
    assert (pair.primary.status() or {})["copied_bytes"] < 7 << 20
    pair.assert_equal()


def test_a_resync_keeps_a_share_however_low_its_rate(pair: Pair) -> None:
    pair.start()
    assert pair.primary.ask("copy-rate 1") == {"ok": True}
    assert (pair.primary.status() or {})["copy_rate"] == 1 << 20
