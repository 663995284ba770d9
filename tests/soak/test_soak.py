"""A short soak with fixed seeds, and that the soak can fail: each rule is broken once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import events
from tests.soak.disks import call
from tests.soak.game import Game, game
from tests.soak.history import History, Violation
from tests.support.btrfs import make_subvolume, require_btrfs

pytestmark = pytest.mark.platform

#: They pass through failing steps, kills, a power cut, full disks and a lost catalogue.
SEEDS = (102, 106)
EVENTS = 4


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    require_btrfs()
    made = History(tmp_path / "history")
    yield made
    made.close()


@pytest.fixture
def begun(history: History) -> Iterator[Game]:
    """A mirror, a line that was acknowledged, and nobody who writes."""
    with game(1, history) as made:
        made.begin()
        worker = made.people.start(made.home, "path")
        deadline_s = time.monotonic() + 60
        while not made.people.lines:
            assert time.monotonic() < deadline_s, worker.refused
            time.sleep(0.01)
        made.stop_writers()
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed(history: History, seed: int) -> None:
    with game(seed, history) as made:
        events.play(made, EVENTS)
        assert made.people.lines


def test_a_line_that_is_nowhere_is_missed(begun: Game) -> None:
    assert begun.model.check_lines() == len(begun.people.lines)
    shutil.rmtree(begun.home / "docs")
    begun.model.check_lines()
    (begun.home / "line-1").unlink()
    with pytest.raises(Violation, match=r"LOST: .* acknowledged lines are nowhere"):
        begun.model.check_lines()


def test_a_line_in_a_snapshot_only_is_there_until_that_is_pruned(begun: Game) -> None:
    begun.calm()
    (begun.home / "line-1").unlink()
    begun.model.check_lines()
    for disk in begun.disks:
        for path in disk.mount.glob("**/.mirrord/*/snapshots/*/mirrord.*"):
            call("btrfs", "subvolume", "delete", path)
    begun.model.check_lines()
    assert begun.model.retired == {line.token for line in begun.people.lines}


def test_a_line_in_staging_does_not_count(begun: Game) -> None:
    staging = begun.view.parent / ".mirrord/current/staging/t"
    staging.mkdir()
    (begun.home / "line-1").rename(begun.home / "kept")
    shutil.move(begun.home / "kept", staging / "line-1")
    with pytest.raises(Violation, match="LOST"):
        begun.model.check_lines()
    with pytest.raises(Violation, match="leftover"):
        begun.model.check_leftovers([begun.view.parent / ".mirrord/current"])


def test_a_view_that_is_no_state_of_the_source_is_seen(begun: Game) -> None:
    begun.calm()
    shown = begun.view.resolve()
    call("btrfs", "property", "set", "-f", shown, "ro", "false")
    (shown / "docs" / "file0").write_text("not what was mirrored")
    with pytest.raises(Violation, match="view"):
        begun.model.check_view(begun.view)


def test_a_snapshot_whose_content_differs_is_seen(begun: Game) -> None:
    begun.calm()
    shown = begun.view.resolve()
    call("btrfs", "subvolume", "delete", shown)
    make_subvolume(shown)
    with pytest.raises(Violation, match="content"):
        begun.model.check_snapshots()


def test_the_soak_test_detects_a_mirror_that_is_stuck(begun: Game) -> None:
    begun.commands.run("quiesce", "home")
    begun.definition.write_text("name = 1")
    with pytest.raises(Violation, match="stuck"):
        begun.calm()


@pytest.mark.parametrize("text", ["Traceback (most recent call last):", "an unexpected error"])
def test_the_soak_test_detects_a_malformed_message(begun: Game, text: str) -> None:
    with pytest.raises(Violation, match="message"):
        begun.commands.look(f"error: {text}", "update")


def test_a_power_cut_leaves_what_was_acknowledged(begun: Game) -> None:
    begun.start_writers()
    time.sleep(0.5)
    begun.cut_power(None)
    assert begun.model.check_lines() > 1
    begun.calm()
    begun.inspect_disks()
