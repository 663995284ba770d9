"""The guard program: everything is resumed, whoever is killed, and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mirrord.core.errors import PauseFailed
from mirrord.pausers.guard import Order
from mirrord.pausers.record import left_in, resume_left
from mirrord.pausers.session import Guard
from tests.pausers.test_record import program
from tests.support.cgroups import Cgroup
from tests.support.service import until
from tests.support.unit import ROOT

COUNT = """
import sys
with open(sys.argv[1], "w", buffering=1) as file:
    number = 0
    while True:
        number += 1
        file.seek(0)
        file.write(str(number))
"""
#: A coordinator that pauses and is killed.
COORDINATOR = """
import sys, time
from mirrord.pausers.guard import Order
from mirrord.pausers.session import Guard
guard = Guard(Order([sys.argv[1]], float(sys.argv[3]), [], sys.argv[2]))
guard.ready(lambda: None)
if sys.argv[4] == "paused":
    guard.pause()
print(guard._process.pid, flush=True)
time.sleep(60)
"""


def order(record: Path, *pausers: str, max_s: float = 5.0) -> Order:
    return Order(pausers, max_s, [], str(record))


def started(wanted: Order) -> Guard:
    guard = Guard(wanted)
    guard.ready(lambda: None)
    return guard


def test_nothing_runs_between_pause_and_resume(app: Cgroup, record: Path, tmp_path: Path) -> None:
    counted = tmp_path / "count"
    app.python(COUNT, counted)
    until(lambda: counted.exists() and counted.read_text() != "")
    guard = started(order(record, f"cgroup:{app.name}"))
    assert not record.exists() and not app.asked()
    [confirm_s] = guard.pause()
    assert app.frozen() and record.exists()
    before = counted.read_text()
    time.sleep(0.1)
    assert counted.read_text() == before
    found = guard.resume()
    assert not app.asked() and not record.exists()
    until(lambda: counted.read_text() not in ("", before))
    assert 0 < confirm_s < found.pause_s[0] and 0.1 < found.pause_s[0] < 5
    assert 0 <= found.resume_s[0] < 1 and found.problems == []
    guard.close()


@pytest.mark.parametrize("stage", ["ready", "paused"])
def test_the_coordinator_is_killed(app: Cgroup, record: Path, stage: str) -> None:
    words = [sys.executable, "-c", COORDINATOR, f"cgroup:{app.path}", str(record), "30", stage]
    app.python("import time; time.sleep(100)")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert app.frozen() == (stage == "paused")
        process.kill()
    until(lambda: not app.asked(), 2, what="long before the 30 s are over")
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert not record.exists()


def test_the_coordinator_hangs(app: Cgroup, record: Path) -> None:
    app.python("import time; time.sleep(100)")
    guard = started(order(record, f"cgroup:{app.name}", max_s=0.3))
    began_s = time.monotonic()
    guard.pause()
    until(lambda: not app.asked())
    assert 0.25 < time.monotonic() - began_s < 2
    with pytest.raises(PauseFailed, match="took longer than the pause may last") as failure:
        guard.resume()
    assert failure.value.retryable and "pause_max" in failure.value.hint
    guard.close()
    assert not record.exists()


def test_the_guard_is_killed(app: Cgroup, record: Path) -> None:
    app.python("import time; time.sleep(100)")
    guard = started(order(record, f"cgroup:{app.name}"))
    guard.pause()
    os.kill(guard._process.pid, signal.SIGKILL)
    with pytest.raises(PauseFailed, match="has ended"):
        guard.resume()
    guard.close()
    assert not app.asked() and not record.exists()


def test_a_program_that_outlives_its_guard_is_waited_for(record: Path, tmp_path: Path) -> None:
    """What it pauses after the death of the guard is resumed, too."""
    began, end, log = tmp_path / "began", tmp_path / "end", tmp_path / "log"
    wait = f"touch {began}; until [ -e {end} ]; do sleep 0.05; done"
    made = program(tmp_path, f"[ $1 = resume ] || {{ {wait}; }}\necho $1 >> {log}")
    guard = started(order(record, f"hook:{made}"))
    guard.ask_pause()
    until(began.exists)
    os.kill(guard._process.pid, signal.SIGKILL)
    with pytest.raises(PauseFailed, match="has ended"):
        guard.paused()
    [left] = resume_left(record, 0)
    assert "is still running" in left.why and left_in(record) == [left] and not log.exists()
    end.touch()
    guard.close()
    assert log.read_text().split() == ["pause", "resume"] and not record.exists()


def test_what_a_program_leaves_running_is_not_waited_for(record: Path, tmp_path: Path) -> None:
    """Such as a session of a database that locks its tables until `resume` ends it."""
    pid, resumed = tmp_path / "pid", tmp_path / "resumed"
    session = f"sleep 100 > /dev/null 2>&1 & echo $! > {pid}"
    resume = f"kill $(cat {pid}) && touch {resumed}"
    made = program(tmp_path, f"if [ $1 = pause ]; then {session}; else {resume}; fi")
    guard = started(order(record, f"hook:{made}"))
    guard.pause()
    os.kill(guard._process.pid, signal.SIGKILL)
    guard.close()
    assert resumed.exists() and not record.exists()


def test_both_are_killed_and_the_next_command_resumes(app: Cgroup, record: Path) -> None:
    app.python("import time; time.sleep(100)")
    words = [sys.executable, "-c", COORDINATOR, f"cgroup:{app.path}", str(record), "30", "paused"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        process.kill()
    assert app.frozen() and record.exists()
    assert resume_left(record) == []
    assert not app.asked() and not record.exists()
    assert resume_left(record) == []


def test_a_signal_for_all_does_not_end_the_guard(app: Cgroup, record: Path) -> None:
    app.python("import time; time.sleep(100)")
    guard = started(order(record, f"cgroup:{app.name}"))
    guard.pause()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guard._process.pid, number)
    assert app.frozen()
    guard.resume()
    guard.close()


def test_two_mirrors_pause_one_application_one_after_the_other(app: Cgroup, tmp_path: Path) -> None:
    app.python("import time; time.sleep(100)")
    first = started(order(tmp_path / "a.paused", f"cgroup:{app.name}"))
    second = Guard(order(tmp_path / "b.paused", f"cgroup:{app.path}"))
    ready = threading.Event()

    def wait() -> None:
        second.ready(lambda: None)
        ready.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.pause()
    assert not ready.wait(0.5), "the first one holds it"
    first.resume()
    first.close()
    waiting.join(10)
    assert ready.is_set()
    second.pause()
    assert app.frozen()
    second.resume()
    second.close()


def test_no_other_user_can_prevent_a_pause(app: Cgroup, record: Path) -> None:
    """Every user can open the folder of a cgroup, and lock it."""
    app.python("import time; time.sleep(100)")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words: list[str | Path] = [*nobody, "flock", "--no-fork", app.folder]
    words += ["sh", "-c", "echo; exec sleep 100"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        try:
            guard = started(order(record, f"cgroup:{app.name}"))
            guard.pause()
            guard.resume()
            guard.close()
        finally:
            other.kill()


def test_the_first_failure_resumes_all(app: Cgroup, record: Path, tmp_path: Path) -> None:
    app.python("import time; time.sleep(100)")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/log\n[ $1 = resume ] || exit 3\n")
    program.chmod(0o755)
    guard = started(order(record, f"cgroup:{app.name}", f"hook:{program}"))
    with pytest.raises(PauseFailed, match="exited with status 3"):
        guard.pause()
    guard.close()
    assert not app.asked() and not record.exists()
    assert (tmp_path / "log").read_text().split() == ["pause", "resume"]


def test_what_is_still_being_paused_when_another_fails_is_resumed_after_it(
    record: Path, tmp_path: Path
) -> None:
    programs = []
    for name, work in (("slow", "sleep 0.5"), ("wrong", "exit 3")):
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\n[ $1 = resume ] || {work}\necho $1 >> {tmp_path}/{name}.log\n"
        )
        program.chmod(0o755)
        programs.append(f"hook:{program}")
    guard = started(order(record, *programs))
    with pytest.raises(PauseFailed, match="exited with status 3"):
        guard.pause()
    guard.close()
    assert (tmp_path / "slow.log").read_text().split() == ["pause", "resume"]
    assert not record.exists()


def test_the_record_cannot_be_written(app: Cgroup, tmp_path: Path) -> None:
    """It is tried before any host pauses."""
    guard = Guard(order(tmp_path / "no" / "folder" / "m", f"cgroup:{app.name}"))
    with pytest.raises(PauseFailed, match="No such file or directory"):
        guard.ready(lambda: None)
    guard.close()
    assert not app.asked()


def test_nothing_is_loaded_from_the_working_directory(
    app: Cgroup, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    guard = started(order(record, f"cgroup:{app.name}"))
    guard.close()


def test_what_cannot_be_resumed_is_told_and_stays_recorded(record: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n[ $1 = pause ] || { echo no database >&2; exit 4; }\n")
    program.chmod(0o755)
    guard = started(order(record, f"hook:{program}"))
    guard.pause()
    [problem] = guard.resume().problems
    assert "no database" in problem
    assert record.exists()
    program.write_text("#!/bin/sh\n")
    guard.close()
    assert not record.exists()
