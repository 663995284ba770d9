"""Hooks: their environment, their time limit, and what a failure does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirrord.core.errors import HookFailed
from tests.support.labs import open_lab
from tests.support.world import NAME, World


@pytest.fixture
def block(tmp_path: Path) -> World:
    with open_lab("lab_block", tmp_path) as lab:
        return World(lab, tmp_path / "home").initialized()


def hooks(world: World, **programs: str) -> None:
    """Definitions with one-line shell programs as hooks."""
    lines = ["[site.primary.hooks]"]
    for event, text in programs.items():
        if event == "timeout":
            lines.append(f'timeout = "{text}"')
            continue
        program = world.home / event
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        lines.append(f'{event} = ["{program}", "word"]')
    file = world.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text() + "\n" + "\n".join(lines) + "\n")


def test_hooks_run_in_order_and_know_what_happens(block: World) -> None:
    line = (
        'echo "$MIRRORD_EVENT $1 $MIRRORD_MIRROR $MIRRORD_SNAPSHOT $MIRRORD_RESULT $MIRRORD_BYTES"'
        f" >> {block.home}/told"
    )
    hooks(
        block, before_snapshot=line, after_snapshot=line, before_transfer=line, after_transfer=line
    )
    block.lab.change(block.lab.source(), 1)
    done = block.service.update(NAME)
    told = [text.split() for text in (block.home / "told").read_text().splitlines()]
    snapshot, size = done.data["snapshot"], str(done.data["stream_bytes"])
    assert told == [
        ["before_snapshot", "word", NAME],
        ["after_snapshot", "word", NAME, snapshot, "done"],
        ["before_transfer", "word", NAME, snapshot],
        ["after_transfer", "word", NAME, snapshot, "done", size],
    ]


def test_a_failing_hook_before_the_snapshot_stops_the_run_and_says_so(block: World) -> None:
    hooks(
        block,
        before_snapshot="echo database is busy >&2; exit 3",
        after_snapshot=f"echo thawed >> {block.home}/told",
    )
    before = block.view_content()
    block.lab.change(block.lab.source(), 1)
    with pytest.raises(HookFailed) as caught:
        block.service.update(NAME)
    assert "status 3: database is busy" in str(caught.value)
    assert block.view_content() == before
    # What was frozen thaws, however it went.
    assert (block.home / "told").read_text() == "thawed\n"
    assert any("database is busy" in problem for problem in block.status()["problems"])


def test_a_failing_hook_before_the_transfer_leaves_no_snapshot_behind(block: World) -> None:
    hooks(block, before_transfer="exit 1")
    count = len(block.lab.source().snapshots())
    block.lab.change(block.lab.source(), 1)
    with pytest.raises(HookFailed):
        block.service.update(NAME)
    assert len(block.lab.source().snapshots()) == count


def test_a_hook_that_hangs_ends_with_all_that_it_started(block: World) -> None:
    hooks(block, before_snapshot="sleep 600 & sleep 600", timeout="1s")
    block.lab.change(block.lab.source(), 1)
    started = time.monotonic()
    with pytest.raises(HookFailed, match="did not end within 1 s"):
        block.service.update(NAME)
    assert time.monotonic() - started < 90


def test_a_failing_hook_afterwards_is_a_warning(block: World) -> None:
    hooks(block, after_transfer="exit 1")
    block.lab.change(block.lab.source(), 1)
    assert block.service.update(NAME).status == "done"
    assert block.in_step()
    events = block.service.history(NAME, limit=5).events
    assert events[0].level == "warning" and "after_transfer" in events[0].text


def test_no_hook_runs_for_a_source_without_changes(block: World) -> None:
    hooks(block, before_snapshot=f"echo ran >> {block.home}/told")
    assert block.service.update(NAME).status == "unchanged"
    assert not (block.home / "told").exists()
