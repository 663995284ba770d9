"""The record of a pause: what it says is paused is resumed, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from mirrord.core.pause import LeftPaused
from mirrord.pausers.record import add, left_in, recorded, resume_left
from mirrord.pausers.registry import open_pauser
from mirrord.system import clock
from tests.support.cgroups import Cgroup
from tests.support.mounts import unmount
from tests.support.service import until


def entry(text: str) -> LeftPaused:
    return LeftPaused(text, open_pauser(text).mark())


def leave(record: Path, *texts: str) -> None:
    """A record as a guard leaves it that was killed."""
    with pytest.raises(KeyError), recorded(record, [entry(text) for text in texts]):
        raise KeyError


def program(folder: Path, code: str) -> Path:
    made = folder / "program"
    made.write_text(f"#!/bin/sh\n{code}\n")
    made.chmod(0o755)
    return made


def test_what_was_paused_is_resumed(app: Cgroup, record: Path) -> None:
    leave(record, f"cgroup:{app.name}")
    app.freeze(True)
    [left] = left_in(record)
    assert left.line() == (
        f"cgroup:{app.name} may still be paused: the process that paused it was killed"
    )
    assert app.asked(), "looking changes nothing"
    assert resume_left(record) == []
    assert not app.asked() and not record.exists()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_unit_that_was_restarted_is_not_thawed(
    app: Cgroup, record: Path, *, by_name: bool
) -> None:
    leave(record, f"cgroup:{app.name if by_name else app.path}")
    app.folder.rmdir()
    app.folder.mkdir()
    app.freeze(True)  # by the administrator
    assert left_in(record) == []
    assert resume_left(record) == []
    assert app.asked() and not record.exists()


def test_a_unit_that_was_stopped_is_dropped(app: Cgroup, record: Path) -> None:
    leave(record, f"cgroup:{app.name}")
    app.folder.rmdir()
    assert left_in(record) == [] and resume_left(record) == []
    assert not record.exists()
    app.folder.mkdir()


def test_nothing_of_an_earlier_boot_is_thawed(
    app: Cgroup, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(record, f"cgroup:{app.name}")
    app.freeze(True)
    monkeypatch.setattr(clock, "boot_id", lambda: "another")
    assert resume_left(record) == []
    assert app.asked() and not record.exists()


def test_a_record_that_is_removed_meanwhile_is_written_again(record: Path, tmp_path: Path) -> None:
    done = threading.Event()
    descriptor = os.open(record, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    seen: list[bool] = []

    def pause() -> None:
        with recorded(record, [LeftPaused("hook:/bin/true")]):
            seen.append(record.exists())
        done.set()

    thread = threading.Thread(target=pause)
    thread.start()
    assert not done.wait(0.2), "it waits for the lock"
    record.unlink()
    os.close(descriptor)
    thread.join(10)
    assert seen == [True] and not record.exists()


def test_what_an_earlier_pause_left_stays_recorded(record: Path, tmp_path: Path) -> None:
    other = f"hook:{program(tmp_path, 'exit 1')}"
    leave(record, other)
    with recorded(record, [LeftPaused("hook:/bin/true")]):
        pass
    assert [one.pauser for one in left_in(record)] == [other]
    with recorded(record, [LeftPaused(other)]):
        pass
    assert not record.exists(), "it was paused again, and resumed"


def test_a_failure_is_told_and_tried_again(record: Path, tmp_path: Path) -> None:
    text = f"hook:{program(tmp_path, 'echo no database >&2; exit 4')}"
    leave(record, text)
    [left] = resume_left(record)
    assert "no database" in left.why and left_in(record) == [left]
    program(tmp_path, "exit 0")
    assert resume_left(record) == [] and left_in(record) == []


def test_the_pause_of_another_mirror_is_not_ended(record: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    made = program(tmp_path, f"echo $1 >> {ran}")
    leave(record, f"hook:{made}")
    with made.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a guard does
        [left] = resume_left(record, 0)
        assert "another mirror pauses this application" in left.why and not ran.exists()
    assert resume_left(record, 0) == []
    assert ran.read_text() == "resume\n"


def test_other_hosts_are_asked(record: Path) -> None:
    far = LeftPaused("hook:/bin/true", host="two", why="it was cut off")
    add(record, [far])
    with recorded(record, [LeftPaused("hook:/bin/true")]):
        pass
    assert resume_left(record) == [far] == left_in(record)[0:1]
    assert "on host two" in far.line()
    assert resume_left(record, elsewhere=lambda one: "") == []
    assert not record.exists()


def test_a_process_at_work_is_not_disturbed(record: Path) -> None:
    began, end = threading.Event(), threading.Event()

    def pause() -> None:
        with recorded(record, [LeftPaused("hook:/bin/false")]):
            began.set()
            end.wait(10)

    thread = threading.Thread(target=pause)
    thread.start()
    assert began.wait(10)
    assert left_in(record) == [] == resume_left(record, 0)
    [told] = resume_left(record, 0, at_work="not yet")
    assert told.why == "not yet"
    end.set()
    thread.join(10)
    until(lambda: not record.exists())


def test_a_record_of_a_newer_version_is_used(app: Cgroup, record: Path) -> None:
    known = {**entry(f"cgroup:{app.name}")._asdict(), "colour": "red"}
    record.write_text(json.dumps([known]) + "\n")
    app.freeze(True)
    assert len(left_in(record)) == 1
    assert resume_left(record) == [] and not app.asked()


@pytest.mark.parametrize("content", ["[{\n", "[{}]\n", "3\n", "[3]\n"])
def test_a_damaged_record_is_told_until_it_is_deleted(record: Path, content: str) -> None:
    record.write_text(content)
    for _ in range(2):
        [left] = resume_left(record)
        assert left.line().startswith("an application may still be paused: the record ")
        assert str(record) in left.why and left_in(record) == [left]
        with recorded(record, [LeftPaused("hook:/bin/true")]):
            pass


def test_a_record_that_was_not_written_in_full_paused_nothing(record: Path) -> None:
    record.write_text('[{"pauser": "cgr')
    assert left_in(record) == [] == resume_left(record)
    assert not record.exists()


def test_a_full_disk_does_not_lose_what_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], check=True)
    try:
        record = folder / "m.paused"
        far = LeftPaused("hook:/bin/true", host="two", why="it was cut off")
        add(record, [far])
        (folder / "other").write_bytes(bytes(4096))
        with (
            pytest.raises(OSError, match="No space left"),
            recorded(record, [LeftPaused("hook:/bin/true", "x" * 6000)]),
        ):
            pytest.fail("it is paused, and not recorded")
        assert left_in(record) == [far]
    finally:
        unmount(folder)


def test_a_program_that_is_gone_is_told_with_the_way_on(record: Path, tmp_path: Path) -> None:
    made = program(tmp_path, "exit 0")
    leave(record, f"hook:{made}")
    made.unlink()
    [left] = resume_left(record)
    assert f"{made} does not exist; resume it by hand, then delete {record}" in left.line()
