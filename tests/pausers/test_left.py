"""What a pause has left paused is resumed or told, whatever became of its mirror."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mirrord.agent.pauses import resume_first
from mirrord.core.errors import MirrordError
from mirrord.core.pause import LeftPaused
from mirrord.engine import stillpaused
from mirrord.pausers.record import add, left_in
from mirrord.pausers.session import Guard
from tests.pausers.conftest import NAME, Group, stopped_at
from tests.pausers.test_record import leave, program
from tests.support import btrfs
from tests.support.service import until
from tests.support.stripes import is_prefix, numbers
from tests.support.unit import daemon

FAILING = 'case $1 in resume) echo "no database" >&2; exit 4;; esac'


def record_of(group: Group, name: str = NAME) -> Path:
    made = group.paths.run / "paused" / group.service.definition(name).id
    made.parent.mkdir(exist_ok=True)
    return made


def left_paused(group: Group, *more: str) -> None:
    """As after the death of mirrord and of the guard."""
    leave(record_of(group), f"cgroup:{group.app.path}", *more)
    group.app.freeze(True)


def renamed(group: Group) -> str:
    file = group.service.definitions.file(NAME)
    file.rename(file.with_name("other.toml"))
    return "other"


def second(group: Group) -> str:
    """Another mirror, which pauses nothing."""
    btrfs.make_subvolume(group.here / "alone")
    group.service.create("alone", f"btrfs:{group.here}/alone", f"btrfs:{group.there}/alone")
    return "alone"


def problems(group: Group, name: str = NAME) -> str:
    return "\n".join(group.service.status(name)[0].problems)


def events(group: Group, name: str = NAME) -> list[str]:
    return [one.text for one in group.service.history(name, limit=99).events]


def test_a_mirror_that_was_renamed_keeps_its_record(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.path}")
    group.service.initialize(NAME)
    left_paused(group)
    name = renamed(group)
    assert "may still be paused" in problems(group, name)
    group.service.update(name)
    assert not group.app.asked() and not group.records()
    assert any("is not paused any more" in text for text in events(group, name))


def test_the_next_command_resumes_for_a_mirror_without_a_definition(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.path}")
    left_paused(group)
    name = second(group)
    group.service.initialize(name)
    assert group.app.asked() and group.records(), "it is resumed by its own mirror, which tells it"
    group.service.definitions.file(NAME).unlink()
    group.service.update(name)
    assert not group.app.asked() and not group.records()
    [told] = [text for text in events(group, name) if "not paused any more" in text]
    assert group.app.path in told


def test_a_host_that_has_left_the_mirror_has_not_resumed(group: Group) -> None:
    group.create(pause="none")
    group.service.initialize(NAME)
    path = record_of(group)
    add(path, [LeftPaused("cgroup:db.service", host="two", why="it was cut off")])
    for _ in range(2):
        group.service.recover(NAME)
        found = problems(group)
        assert "cgroup:db.service on host two may still be paused: the mirror has no vol" in found
        assert f"resume it there, then delete {path}" in found
    told = [text for text in events(group) if "on host two" in text]
    assert len(told) == 1, "once"
    assert not any("not paused any more" in text for text in events(group))
    path.unlink()
    assert group.service.status(NAME)[0].healthy


def test_what_an_update_holds_paused_is_not_resumed_by_another_process(
    group: Group, tmp_path: Path
) -> None:
    """Neither what it has paused itself, nor that of a record of another mirror."""
    ran, made = tmp_path / "ran", tmp_path
    hook = f"hook:{program(made, f'echo $1 >> {ran}')}"
    group.create(pause=f"cgroup:{group.app.path}")
    file = group.service.definitions.file(NAME)
    file.write_text(file.read_text().replace('name = "b"', f'name = "b"\npause = "{hook}"'))
    group.settings('pause_max = "40s"')
    group.write(1)
    group.service.initialize(NAME)
    name = second(group)
    shown = len(numbers(group.views()))
    ran.unlink()
    process = stopped_at(group.home, "CONFIRMED")
    try:
        leave(record_of(group, name), f"cgroup:{group.app.path}", hook)
        group.again().resume_left(NAME)
        group.service.resume_left(name)
        told = list[str]()
        stillpaused.resume_forsaken([record_of(group), record_of(group, name)], told.append)
        assert told == []
        assert group.app.frozen() and ran.read_text() == "pause\n"
        assert len(left_in(record_of(group, name))) == 2
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    assert is_prefix(numbers(group.views())) and len(numbers(group.views())) > shown
    group.service.resume_left(name)
    assert not group.records()


def test_the_hosts_that_follow_are_told_when_the_end_of_one_fails(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.create(pause=f"cgroup:{group.app.path}")
    noted, close = list[list[LeftPaused]](), Guard.close

    def fails(guard: Guard) -> None:
        close(guard)
        raise OSError("no file descriptors")

    monkeypatch.setattr(Guard, "close", fails)
    monkeypatch.setattr(stillpaused, "note", lambda _mirror, left: noted.append(left))
    with pytest.raises((OSError, MirrordError), match="no file descriptors"):
        group.service.initialize(NAME)
    assert noted == [[]]


def test_a_daemon_that_starts_resumes_before_it_looks_at_the_mirrors(
    group: Group, tmp_path: Path
) -> None:
    """It needs no definition for that, and no volume that may hang."""
    group.create(pause=f"cgroup:{group.app.path}")
    group.service.initialize(NAME)
    failing = f"hook:{program(tmp_path, FAILING)}"
    left_paused(group, failing)
    group.service.definitions.file(NAME).unlink()
    group.service.close()
    with daemon(group.home) as service:
        until(lambda: not group.app.asked(), 60)
        until(lambda: failing in service.run("alarms").stdout, 20)
        shown = service.run("alarms").stdout
        assert "may still be paused: " in shown and "no database" in shown
        program(tmp_path, "exit 0")
        until(lambda: "may still be paused" not in service.run("alarms").stdout, 30)
    assert not group.records()
    log = (group.home / "log").read_text()
    assert f"cgroup:{group.app.path}" in log and "not paused any more" in log


def test_a_program_that_hangs_does_not_hold_up_an_agent(record: Path, tmp_path: Path) -> None:
    began, end = tmp_path / "began", tmp_path / "end"
    wait = f"touch {began}; while [ ! -e {end} ]; do sleep 0.1; done"
    leave(record, f"hook:{program(tmp_path, wait)}")
    at_s = time.monotonic()
    resume_first(record.parent)
    assert began.exists() and record.exists() and time.monotonic() - at_s < 10
    end.touch()
    until(lambda: not record.exists())
