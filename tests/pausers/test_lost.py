"""Applications that die in the pause, and members that the group has lost since the last cycle."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import Diverged, MirrordError, PauseFailed
from mirrord.system import steps
from tests.pausers.conftest import NAME, VOLUMES, Group
from tests.support import btrfs
from tests.support.cgroups import Cgroup
from tests.support.service import until
from tests.support.stripes import FILE, is_prefix, numbers


def _killed(app: Cgroup) -> None:
    """All its processes die; the kernel does that although they are frozen."""
    (app.folder / "cgroup.kill").write_text("1")
    until(lambda: not app.pids())


def _removed(app: Cgroup) -> None:
    """As systemd does it when the last process has ended."""
    _killed(app)
    app.folder.rmdir()


def _restarted(app: Cgroup) -> None:
    """As systemd does it for `Restart=always`."""
    _removed(app)
    app.folder.mkdir()


@pytest.mark.parametrize(
    ("event", "step"),
    [(_killed, "CONFIRMED"), (_removed, "TAKEN"), (_restarted, "CONFIRMED")],
)
def test_an_application_that_dies_in_the_pause(
    group: Group, event: Callable[[Cgroup], None], step: str
) -> None:
    """A set counts if its cgroup is there, and frozen: otherwise something new may have written."""
    group.create(pause=f"cgroup:{group.app.path}")
    group.settings('pause_max = "10s"\npause_alarm = "10s"')
    group.write(1)
    group.service.initialize(NAME)
    before, shown = group.snapshots(), numbers(group.views())
    steps.observe(lambda label: event(group.app) if label == f"ENGINE:PAUSE:{step}" else None)
    try:
        if event is _killed:
            group.service.update(NAME)
            assert len(numbers(group.views())) > len(shown)
        else:
            with pytest.raises(PauseFailed, match="ended before the snapshots were taken"):
                group.service.update(NAME)
            assert group.snapshots() == before and numbers(group.views()) == shown
    finally:
        steps.observe(None)
    assert is_prefix(numbers(group.views())) and not group.records()
    if not group.app.folder.exists():
        group.app.folder.mkdir()
    assert not group.app.asked()
    assert group.service.update(NAME).status in ("done", "unchanged")
    assert is_prefix(numbers(group.views()))


def _logging(group: Group, folder: Path) -> Path:
    """Create the mirror with a program that pauses; its log."""
    program, log = folder / "pause-db", folder / "log"
    program.write_text(f"#!/bin/sh\necho $1 >> {log}\n")
    program.chmod(0o755)
    group.create(pause=f"hook:{program}")
    group.service.initialize(NAME)
    log.write_text("")
    return log


def test_a_member_that_was_replaced_is_named(group: Group, tmp_path: Path) -> None:
    """The application is not paused for a set that cannot be transferred."""
    log = _logging(group, tmp_path)
    (group.here / "b").rename(group.here / "away")
    btrfs.make_subvolume(group.here / "b")
    for _ in range(2):
        with pytest.raises(Diverged, match="another volume has taken the place") as failure:
            group.service.update(NAME)
        assert failure.value.where == f"btrfs:{group.here}/b"
    assert log.read_text() == "" and len(group.snapshots()) == 1
    subprocess.run(["btrfs", "-q", "subvolume", "delete", group.here / "b"], check=True)
    (group.here / "away").rename(group.here / "b")
    (group.here / "b" / FILE).write_text("1")
    assert group.service.update(NAME).status == "done"


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_member_that_is_gone(group: Group, tmp_path: Path, *, is_snapshot: bool) -> None:
    """Itself, or the snapshot of the last set: nothing is paused, and the copies stay."""
    log = _logging(group, tmp_path)
    shown = [view.resolve() for view in group.views()]
    place = group.here / "b"
    if is_snapshot:
        [place] = group.here.glob(".mirrord/b/snapshots/*/*")
    subprocess.run(["btrfs", "-q", "subvolume", "delete", place], check=True)
    for _ in range(2):
        with pytest.raises(MirrordError) as failure:
            group.service.update(NAME)
        assert "\n" not in str(failure.value) and failure.value.hint
    assert log.read_text() == "" and not group.records()
    assert [view.resolve() for view in group.views()] == shown
    assert len([*group.here.glob(".mirrord/*/snapshots/*/*")]) == len(VOLUMES) - is_snapshot
