"""An end is replaced by an older copy of itself: a snapshot or a backup, of image and records."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import peers
from tests.live.lab import BLOCK, Client, End, Pair, stamp, wait_until

#: Restored within this time, the ends would count as in sync; twice that, and it is counted.
HOLD_S = 5


def _write(pair: Pair, first: int, number: int) -> None:
    with Client(pair.primary) as client:
        for block in range(first, first + 100):
            assert client.write(block * BLOCK, stamp(block, number)) == 0
        assert client.flush() == 0


def _write_and_forget(pair: Pair, number: int) -> None:
    """Their extents are not tracked any more: what else is written takes their place."""
    _write(pair, 256, number)
    for first in (768, 1024, 1280):
        time.sleep(1.2)
        _write(pair, first, number)


@contextmanager
def _older(end: End, folder: Path) -> Iterator[None]:
    """The end is what it was before, when this is over."""
    copy = folder / "copy"
    subprocess.run(["cp", "-a", end.folder, copy], check=True)
    yield
    end.kill()
    shutil.rmtree(end.folder)
    copy.rename(end.folder)
    for socket in (end.control, end.nbd):
        socket.unlink(missing_ok=True)
    end.start()


@pytest.mark.parametrize("side", ["primary", "secondary"])
@pytest.mark.parametrize("running", [False, True])
def test_an_older_copy_is_noticed(pair: Pair, tmp_path: Path, side: str, running: bool) -> None:
    """Also of an end that ran, as a snapshot of its disk has it."""
    pair.primary.options += ["--hold", str(HOLD_S)]
    pair.start()
    _write(pair, 0, 1)
    end = getattr(pair, side)
    if not running:
        end.kill()
    with _older(end, tmp_path):
        if not running:
            end.start()
            pair.wait_in_sync()
        _write_and_forget(pair, 2)
        if running:
            time.sleep(2 * HOLD_S + 1)
            _write(pair, 1536, 3)
            time.sleep(1)
    wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    wait_until(lambda: (pair.primary.status() or {})["left_sync"] == 1, "the full copy")
    pair.assert_equal()


def test_an_older_copy_is_copied_completely_once(pair: Pair, tmp_path: Path) -> None:
    """However many sessions it does not know of."""
    pair.start()
    pair.primary.kill()
    with _older(pair.primary, tmp_path):
        pair.primary.start()
        pair.wait_in_sync()
        for _ in range(4):
            pair.secondary.kill()
            _write_alone(pair)
            pair.secondary.start()
            pair.wait_in_sync()
    wait_until(lambda: (pair.primary.status() or {})["left_sync"] == 1, "the full copy")
    pair.wait_in_sync()
    pair.secondary.kill()
    pair.secondary.start()
    _write_alone(pair)
    pair.wait_in_sync()
    assert (pair.primary.status() or {})["left_sync"] == 1


def _write_alone(pair: Pair) -> None:
    """A write notices that the link is cut."""
    with Client(pair.primary) as client:
        client.send(1, 1, 0, stamp(0, 1))
        time.sleep(0.3)


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_an_older_copy_is_noticed_in_semi_sync(pair: Pair, tmp_path: Path, side: str) -> None:
    """The session is the one of before, and both ends start again."""
    pair.primary.options += ["--hold", str(HOLD_S)]
    pair.start()
    assert pair.primary.ask("mode semi-sync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")
    _write(pair, 0, 1)
    time.sleep(1)
    end = getattr(pair, side)
    with _older(end, tmp_path):
        _write_and_forget(pair, 2)
        time.sleep(2 * HOLD_S + 1)
        _write(pair, 1536, 3)
        time.sleep(1)
        pair.primary.kill()
    if side == "secondary":
        pair.primary.start()
    wait_until(lambda: pair.primary.is_state("semi-sync"), "semi-sync")
    assert pair.primary.ask("mode sync") == {"ok": True}
    wait_until(lambda: pair.primary.is_state("in-sync"), "sync")
    pair.assert_equal()


def test_an_older_copy_of_a_primary_does_not_win_after_a_power_cut(
    pair: Pair, tmp_path: Path
) -> None:
    pair.primary.boot, pair.secondary.boot = "1" * 32, "2" * 32
    pair.start()
    _write(pair, 0, 1)
    pair.primary.kill()
    with _older(pair.primary, tmp_path):
        pair.primary.start()
        pair.wait_in_sync()
        _write_and_forget(pair, 2)
        pair.primary.boot = "3" * 32
    reason = "one of the ends is an older copy of itself; 'mirrord break' makes the other end"
    wait_until(lambda: reason in (pair.primary.status() or {})["reason"], "the refusal")
    assert pair.secondary.ask("break") == {"ok": True}
    assert pair.secondary.bytes()[256 * BLOCK : 257 * BLOCK] == stamp(256, 2)


def test_the_newest_is_put_back_while_an_older_copy_is_copied(pair: Pair, tmp_path: Path) -> None:
    """The other end has what was written to the older copy."""
    end, older, newest = pair.primary, tmp_path / "older", tmp_path / "newest"
    pair.start()
    _write(pair, 0, 1)
    end.kill()
    subprocess.run(["cp", "-a", end.folder, older], check=True)
    end.start()
    pair.wait_in_sync()
    _write(pair, 256, 2)
    end.kill()
    end.folder.rename(newest)
    older.rename(end.folder)
    end.options += ["--copy-rate", str(1 << 20)]
    end.start()
    wait_until(lambda: end.is_state("resync"), "the copy")
    _write(pair, 1536, 3)
    wait_until(lambda: any(pair.secondary.bytes()[1536 * BLOCK :]), "the writes")
    assert end.is_state("resync")
    end.kill()
    shutil.rmtree(end.folder)
    newest.rename(end.folder)
    del end.options[-2:]
    end.start()
    pair.wait_in_sync()
    pair.assert_equal()


def test_an_older_copy_that_has_begun_a_session_is_noticed(pair: Pair, tmp_path: Path) -> None:
    """The link was cut before the answer: the session is begun with another number."""
    end = pair.primary
    pair.start()
    end.kill()
    replica = peers.Replica()
    peer, end.peer = end.peer, f"127.0.0.1:{replica.port}"
    end.start()
    with replica.accepted() as link:
        link.await_frame(peers.HELLO)
        link.send(peers.hello(peers.SECONDARY, sessions=(1, 1)))
        link.await_frame(peers.BEGIN)
    end.kill()
    replica.listener.close()
    end.peer = peer
    with _older(end, tmp_path):
        end.start()
        pair.wait_in_sync()
        _write(pair, 256, 2)
    wait_until(lambda: (pair.primary.status() or {})["left_sync"] == 1, "the full copy")
    pair.wait_in_sync()
    pair.assert_equal()


def _log(end: End) -> str:
    return (end.folder / "log").read_text()


def test_two_copies_of_a_primary_do_not_take_the_replica_from_each_other(
    pair: Pair, tmp_path: Path
) -> None:
    """Each would copy everything, again and again."""
    pair.start()
    _write(pair, 0, 1)
    copy = End(pair.primary.program, tmp_path / "copy", "primary")
    subprocess.run(["cp", "-a", "--sparse=always", f"{pair.primary.folder}/.", copy.folder])
    copy.peer = pair.primary.peer
    for socket in (copy.control, copy.nbd):
        socket.unlink()
    try:
        copy.start()
        wait_until(lambda: copy.is_state("out-of-sync"), "the end of the wait", 20)
        reason = "connected to another primary of this mirror"
        wait_until(lambda: reason in (copy.status() or {})["reason"], "the next attempt", 20)
        assert "primary is connected already" in _log(pair.secondary)
        assert _log(pair.secondary).count("was refused") == 1
        assert _log(copy).count("stop one of them") == 2  # while writes wait, and out of sync
        assert pair.primary.is_state("in-sync")
        assert (pair.primary.status() or {})["left_sync"] == 0
        pair.primary.kill()
        wait_until(lambda: copy.is_state("in-sync"), "the copy", 20)
    finally:
        copy.kill()
    assert copy.bytes() == pair.secondary.bytes()


def test_a_primary_at_the_replica_of_another_mirror_is_told_so(pair: Pair, tmp_path: Path) -> None:
    pair.start()
    pair.secondary.kill()
    other = End(pair.primary.program, tmp_path / "other", "secondary")
    other.image.touch()
    subprocess.run(["truncate", "-s", "8M", str(other.image)], check=True)
    other._run("create", "--role", "secondary", "--volume", f"{78:032x}")
    other.link = pair.secondary.link
    try:
        other.start()
        reason = "the other end belongs to another mirror"
        wait_until(lambda: reason in (pair.primary.status() or {})["reason"], "the reason", 20)
        time.sleep(1)
        assert _log(pair.primary).count(f"link to {other.link}: disconnected: {reason}") == 1
        assert _log(other).count("127.0.0.1 was refused: it is an end of another mirror") == 1
    finally:
        other.kill()
    pair.secondary.start()
    pair.wait_in_sync()
    pair.assert_equal()


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_restored_records_of_an_image_are_refused(pair: Pair, tmp_path: Path, side: str) -> None:
    pair.start()
    end = getattr(pair, side)
    pair.stop()
    kept = end.state.rename(tmp_path / "kept")
    subprocess.run(["cp", "-a", kept, end.state], check=True)
    words = [end.program, "run", *end._files(), "--control", end.control, "--link", end.link]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1
    assert "another file has taken the place of the records" in refused.stderr
    shutil.rmtree(end.state)
    kept.rename(end.state)
    pair.start()
