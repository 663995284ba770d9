"""`verify_updates` on btrfs: what was received is compared with the source before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import TransferFailed
from mirrord.drivers.btrfs import ioctl, subvolume
from mirrord.system import steps
from tests.btrfs.history import History
from tests.crash.faults import Crash
from tests.integration.test_verify import MIB, NAME, Pair, content
from tests.support import btrfs
from tests.support.definitions import add_lines
from tests.support.sshd import Sshd


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with (
        btrfs.filesystem(size_mib=512) as here,
        btrfs.filesystem(size_mib=512, options="nodatasum") as there,
    ):
        made = Pair(tmp_path / "home", here, there)
        add_lines(made.file, "verify_updates = true")
        yield made
        made.service.close()


@contextmanager
def at_step(label: str, work: Callable[[], object]) -> Iterator[list[str]]:
    """Do that when the step is passed for the first time."""
    done: list[str] = []

    def observer(passed: str) -> None:
        if passed == label and not done:
            done.append(label)
            work()

    steps.observe(observer)
    try:
        yield done
    finally:
        steps.observe(None)


def overwrite(pair: Pair, name: str, at: int, data: bytes) -> None:
    """As root could change what has arrived and is not committed yet."""
    wrappers = (pair.mount / "copy/.mirrord/current/staging").glob("*/*/*")
    [staged] = filter(subvolume.is_subvolume, wrappers)
    uuid, transaction = subvolume.info(staged).guid.split(":")
    subvolume.set_read_only("TEST", staged, read_only=False)
    with (staged / name).open("r+b") as file:
        file.seek(at)
        file.write(data)
    ioctl.set_received(staged, uuid, int(transaction))
    subvolume.set_read_only("TEST", staged)


def shown(pair: Pair, name: str) -> bytes:
    return (pair.mount / "copy/current" / name).read_bytes()


def test_each_update_is_proven_and_recorded(pair: Pair) -> None:
    pair.write("large", content(1, 8 * MIB))
    pair.service.initialize(NAME)
    first = pair.status()["verified"]
    assert first.mode.value == "full" and first.name == pair.status()["shown"]
    for seed in range(6):
        btrfs.change(pair.source, seed)
        pair.write("large", content(seed, 5000), at=seed * MIB)
        done = pair.service.update(NAME)
        assert done.data["phases"]["verify"] > 0
        seen = pair.status()
        assert seen["verified"].name == seen["shown"] == done.data["snapshot"]
        assert seen["verified"].mode.value == "changed" and not seen["verified"].differences
        assert pair.verify().data["root"] == seen["verified"].root


@pytest.mark.parametrize("seed", range(3))
def test_what_is_taken_over_from_the_base_is_what_reading_everything_gives(
    pair: Pair, seed: int
) -> None:
    """Hard links, renamed and exchanged folders, what was deleted: after each update of a random
    history the digests at both ends are those of a full verification.
    """
    history = History(pair.source, seed)
    history.run(40)
    pair.service.initialize(NAME)
    for number in range(12):
        history.run(1 + 3 * (number % 4))
        if pair.service.update(NAME).status != "done":
            continue
        done = pair.status()["verified"]
        assert done.mode.value == "changed"
        found = pair.verify()
        assert found.data["equal"] and found.data["root"] == done.root, number


def test_what_was_changed_before_the_commit_is_not_shown(pair: Pair) -> None:
    pair.write("large", content(1))
    pair.service.initialize(NAME)
    before = pair.status()
    new = content(2)
    pair.write("large", new)
    with (
        at_step("BTRFS:FINISH:SYNC", lambda: overwrite(pair, "large", MIB + 9, b"wrong")) as done,
        pytest.raises(TransferFailed, match="differs from the source") as raised,
    ):
        pair.service.update(NAME)
    assert done
    assert raised.value.why == f"metadata large; content large, bytes {MIB}-{MIB + (128 << 10) - 1}"
    assert shown(pair, "large") == content(1)
    after = pair.status()
    assert after["shown"] == before["shown"] and after["verified"] == before["verified"]
    assert "differs from the source" in after["last_transfer"].error
    assert not list((pair.mount / "copy/.mirrord/current/staging").iterdir())
    assert pair.service.update(NAME).status == "done"
    assert shown(pair, "large") == new
    assert pair.verify().data["equal"]


def test_bytes_flipped_on_the_disk_before_the_commit_are_found(pair: Pair) -> None:
    marker = b"a marker that is not on the disk yet"
    pair.service.initialize(NAME)
    pair.write("file", content(3) + marker)
    with (
        at_step("BTRFS:FINISH:RECORD:WRITE", lambda: pair.damage(marker)) as done,
        pytest.raises(TransferFailed, match="differs from the source"),
    ):
        pair.service.update(NAME)
    assert done
    assert not (pair.mount / "copy/current/file").exists()
    assert pair.service.update(NAME).status == "done"
    assert shown(pair, "file") == content(3) + marker


def test_what_arrived_before_a_crash_is_proven_before_it_is_shown(pair: Pair) -> None:
    """Also by the commands that only clean up."""
    pair.write("large", content(1))
    pair.service.initialize(NAME)

    def crash() -> None:
        raise Crash

    for seed, label in enumerate(("VERIFY:LOCK", "VERIFY:TREE"), 2):
        new = content(seed)
        pair.write("large", new)
        with at_step(label, crash) as done, pytest.raises(Crash):
            pair.service.update(NAME)
        assert done
        pair.damage(new[MIB : MIB + 40])
        pair.service.abort(NAME, hard=False)
        assert shown(pair, "large") == content(1)
        with pytest.raises(TransferFailed, match="differs from the source"):
            pair.service.update(NAME)
        assert shown(pair, "large") == content(1)
    assert pair.service.update(NAME).status == "done"
    assert shown(pair, "large") == new


def test_a_copy_on_another_host_is_proven(tmp_path: Path, host: Sshd) -> None:
    with (
        btrfs.filesystem(size_mib=512) as here,
        btrfs.filesystem(size_mib=512, options="nodatasum") as there,
    ):
        pair = Pair(tmp_path / "home", here, there, host)
        add_lines(pair.file, "verify_updates = true")
        pair.service.initialize(NAME)
        pair.write("file", content(1))
        pair.service.update(NAME)
        assert pair.status()["verified"].mode.value == "changed"
        pair.service.close()
        pair.service.shared.links.close()
