"""Break, resync in the other direction, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.live.lab import Client, Pair, stamp, wait_until


def test_break_and_the_way_back(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        for block in range(200):
            assert client.write(block * 4096, stamp(block, 1)) == 0
        assert pair.secondary.ask("break") == {"ok": True}
        # The epoch refuses the old primary, and its clients are disconnected.
        wait_until(lambda: pair.primary.status() == {"role": "fenced", "epoch": 2}, "the fence")
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "service at the other end")
    with Client(pair.secondary) as client:
        for block in range(100, 300):
            assert client.write(block * 4096, stamp(block, 2)) == 0
    assert pair.primary.ask("rejoin") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("in-sync"), "sync the other way around")
    expected = b"".join(stamp(block, 1 + (block >= 100)) for block in range(300))
    assert pair.primary.bytes()[: len(expected)] == expected
    assert pair.primary.bytes() == pair.secondary.bytes()
    copied = (pair.secondary.status() or {})["copied_bytes"]
    # Only what changed was copied: its own blocks, and what was tracked at the other end.
    assert copied <= 4 << 20
    # And back once more.
    assert pair.primary.ask("break") == {"ok": True}
    wait_until(lambda: (pair.secondary.status() or {}).get("role") == "fenced", "the fence")
    assert pair.secondary.ask("rejoin") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("in-sync"), "sync as at first")
    assert pair.primary.bytes() == pair.secondary.bytes()


def test_reclaim_discards_the_other_ends_changes(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: (pair.primary.status() or {}).get("role") == "fenced", "the fence")
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "service at the other end")
    with Client(pair.secondary) as client:
        assert client.write(0, stamp(0, 2)) == 0
    assert pair.primary.ask("reclaim") == {"ok": True}
    wait_until(lambda: (pair.secondary.status() or {}).get("role") == "fenced", "the other fence")
    assert pair.secondary.ask("rejoin") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def test_break_is_refused_before_the_first_copy_is_complete(pair: Pair) -> None:
    pair.secondary.start()
    answer = pair.secondary.ask("break")
    assert not answer["ok"]
    assert "no consistent image" in answer["error"]


def test_an_image_that_is_open_elsewhere_is_refused(pair: Pair, program: Path) -> None:
    pair.start()
    words = ["qemu-io", "-f", "raw", "-c", "write 0 4k", str(pair.primary.image)]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1 and "lock" in refused.stderr
    second: list[str | Path] = [
        program,
        "run",
        "--image",
        pair.primary.image,
        "--state",
        pair.primary.state,
    ]
    second += ["--control", pair.primary.folder / "other"]
    refused = subprocess.run(second, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1
    assert "another program has the image open for writing" in refused.stderr


def test_an_image_of_another_size_is_refused(pair: Pair, program: Path) -> None:
    with pair.primary.image.open("r+b") as image:
        image.truncate((8 << 20) + 4096)
    words: list[str | Path] = [
        program,
        "run",
        "--image",
        pair.primary.image,
        "--state",
        pair.primary.state,
    ]
    words += ["--control", pair.primary.folder / "other"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1 and "restore its size" in refused.stderr
