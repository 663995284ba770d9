"""A mirror whose application is paused: sets are prefixes, and a failed pause leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirrord.control.commands.history import history
from mirrord.control.statustext import details
from mirrord.core.errors import (
    ConfigError,
    MirrordError,
    PauseFailed,
    Refused,
    UsageError,
)
from mirrord.core.records import AlarmKind, Level
from mirrord.system import steps
from tests.crash.faults import EACH, FAULTS, Crash, broken_at, labels, points
from tests.docs.test_prometheus import _get
from tests.pausers.conftest import NAME, VOLUMES, Group, stopped_at
from tests.support.service import until
from tests.support.stripes import FILE, is_prefix, numbers
from tests.support.unit import ROOT, daemon

CYCLES = 10
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("flags", [0, os.O_DSYNC], ids=["buffered", "synced"])
@pytest.mark.parametrize("cycles", [CYCLES, pytest.param(200, marks=NIGHTLY)])
def test_every_set_is_a_prefix(group: Group, cycles: int, flags: int) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.write(50 if cycles == CYCLES else 1, flags=flags)
    counts = []
    group.service.initialize(NAME)
    for _ in range(cycles):
        group.service.update(NAME)
        found = numbers(group.views())
        assert is_prefix(found), "a write is missing that was acknowledged before another"
        counts.append(len(found))
    assert counts == sorted(set(counts)), "each has more than the one before"
    assert not group.app.asked()


def test_without_a_pause_there_are_gaps(group: Group) -> None:
    """The negative control (the paper's figure 6: one snapshot first, then the others)."""
    group.create(pause="none")
    group.write()
    group.service.initialize(NAME)
    steps.observe(lambda label: time.sleep(0.005) if label == "BTRFS:SNAPSHOT:TAKE" else None)
    try:
        for _ in range(CYCLES):
            group.service.update(NAME)
            if not is_prefix(numbers(group.views())):
                return
    finally:
        steps.observe(None)
    pytest.fail("no set had a gap: this test cannot tell whether a pause is needed")


def test_history_has_the_pause_of_each_member(group: Group) -> None:
    group.create()
    file = group.service.definitions.file(NAME)
    text = file.read_text().replace('name = "b"', f'name = "b"\npause = "cgroup:{group.app.path}"')
    file.write_text(text.replace('name = "c"', 'name = "c"\npause = "none"'))
    group.settings(f'pause = "cgroup:{group.app.name}"\npause_max = "5s"')
    group.write()
    group.service.initialize(NAME)
    report = group.report()
    assert [(one.member, one.pauser) for one in report.members] == [
        ("a", f"cgroup:{group.app.name}"),
        ("b", f"cgroup:{group.app.path}"),
    ]
    for one in report.members:
        assert 0 < one.confirm_ms < one.pause_ms <= report.longest_ms < 5000
        assert one.snapshot_ms + one.confirm_ms + one.resume_ms <= one.pause_ms + 5
    assert history.text is not None
    shown = "\n".join(history.text(group.service.history(NAME, limit=5), {"limit": 5}))
    assert f", {report.line()}" in shown
    assert f"b: cgroup:{group.app.path}: paused for" in shown


def test_a_snapshot_that_takes_longer_than_the_pause_may_last(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.service.initialize(NAME)
    before = group.snapshots()
    group.settings('pause_max = "200ms"')
    group.write()

    def slow(label: str) -> None:
        if label == "BTRFS:SNAPSHOT:TAKE":
            time.sleep(0.3)

    steps.observe(slow)
    try:
        with pytest.raises(PauseFailed, match="longer than the pause may last"):
            group.service.update(NAME)
    finally:
        steps.observe(None)
    assert not group.app.asked() and not group.records()
    assert group.snapshots() == before
    assert len(group.service.history(NAME, limit=9).transfers) == 1
    group.settings('pause_alarm = "1s"')
    group.service.update(NAME)
    assert is_prefix(numbers(group.views()))


@pytest.mark.parametrize("fault", EACH)
def test_each_step_is_broken(group: Group, fault: str) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.write(1)
    group.service.initialize(NAME)
    found = points(lambda: group.service.update(NAME))
    at = [number for number, (label, _) in enumerate(found) if label.startswith("ENGINE:PAUSE")]
    around = found[at[0] - 2 : at[-1] + 3]
    assert {label for label, _ in around} >= {"BTRFS:SNAPSHOT:TAKE", "BTRFS:SNAPSHOT:SYNC"}
    for point in around:
        shown = numbers(group.views())
        with broken_at(point, FAULTS[fault]) as told:
            try:
                group.service.update(NAME)
            except (Crash, MirrordError, OSError):
                group.again()
        assert told.met, point
        assert not group.app.asked(), point
        assert is_prefix(numbers(group.views())) and len(numbers(group.views())) >= len(shown)
        group.service.update(NAME)
        assert is_prefix(numbers(group.views())), point
        assert len(group.snapshots()) <= 3, f"no snapshot is left behind, {point}"
        assert not group.records()


@pytest.mark.parametrize("label", ["BEGIN", "CONFIRMED", "TAKEN", "RESUMED"])
@pytest.mark.parametrize("both", [False, True])
def test_a_process_is_killed_at_each_step(group: Group, label: str, both: bool) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.settings('pause_max = "20s"')
    group.write(1)
    group.service.initialize(NAME)
    process = stopped_at(group.home, label)
    paused = label in ("CONFIRMED", "TAKEN")
    assert group.app.frozen() == paused
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if both:
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        until(lambda: all(_ended(pid) for pid in children))
    process.kill()
    process.wait()
    if not both:
        until(lambda: not group.app.asked(), 15)
    assert group.app.asked() == (both and paused)
    group.again().recover(NAME)  # what the daemon does when it starts
    assert not group.app.asked() and not group.records()
    group.service.update(NAME)
    assert is_prefix(numbers(group.views()))
    assert len(group.snapshots()) <= 2


def test_a_pause_that_was_left_ends_although_the_definition_has_none_any_more(
    group: Group,
) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.settings('pause_max = "20s"')
    group.write(1)
    group.service.initialize(NAME)
    process = stopped_at(group.home, "CONFIRMED")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
    until(lambda: all(_ended(pid) for pid in children))
    process.kill()
    process.wait()
    assert group.app.asked()
    service = group.again()
    service.catalogue.end(service.definition(NAME).id)  # also when nothing else is to be recovered
    file = service.definitions.file(NAME)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("pause")))
    service.update(NAME)
    assert not group.app.asked() and not group.records()


def _stubborn(folder: Path) -> Path:
    """A program that cannot resume."""
    program = folder / "pause-db"
    program.write_text("#!/bin/sh\n[ $1 = pause ] || { echo no database >&2; exit 4; }\n")
    program.chmod(0o755)
    return program


def test_an_application_that_may_still_be_paused_is_told_until_it_runs(
    group: Group, tmp_path: Path
) -> None:
    program = _stubborn(tmp_path)
    group.create(pause=f"hook:{program}")
    group.service.initialize(NAME)
    (group.here / "a" / FILE).write_text("1")
    result = group.service.update(NAME)
    assert result.status == "done" and f"may still be paused: hook:{program}" in result.text
    assert result.update is not None and "no database" in result.update.not_resumed
    assert result.data["not_resumed"] == result.update.not_resumed
    assert {one.problem for one in group.report().members} != {""}
    assert "it may still be paused" in "\n".join(group.report().details())
    [status] = group.again().status(NAME)
    [fault] = status.reading.faults
    assert (fault.kind, fault.level) == (AlarmKind.PAUSE, Level.ERROR)
    assert f"hook:{program} may still be paused" in fault.text and not status.healthy
    group.service.recover(NAME)
    assert group.service.status(NAME)[0].reading.faults, "it was tried again, and failed"
    events = [one.text for one in group.service.history(NAME, limit=99).events]
    assert sum("may still be paused" in text for text in events) == 1, "once"
    program.write_text("#!/bin/sh\n")
    group.service.recover(NAME)
    assert group.service.status(NAME)[0].healthy
    (group.here / "a" / FILE).write_text("2")
    result = group.service.update(NAME)
    assert "Warning" not in result.text and result.data["not_resumed"] == ""


def test_the_service_resumes_until_it_succeeds(group: Group, tmp_path: Path) -> None:
    program = _stubborn(tmp_path)
    group.create(pause=f"hook:{program}")
    group.service.close()
    with daemon(group.home) as service:
        assert "may still be paused" in service.run("initialize", NAME).stdout
        until(lambda: "may still be paused" in service.run("alarms").stdout, 20)
        program.write_text("#!/bin/sh\n")
        until(lambda: "may still be paused" not in service.run("alarms").stdout, 30)
        assert "may still be paused" not in service.run("status", NAME).stdout
    assert not group.records()


def test_the_pause_expired_and_the_application_may_still_be_paused(
    group: Group, tmp_path: Path
) -> None:
    program = _stubborn(tmp_path)
    group.create(pause=f"hook:{program}")
    group.settings('pause_max = "200ms"')

    def slow(label: str) -> None:
        if label == "ENGINE:PAUSE:CONFIRMED":
            time.sleep(0.5)

    steps.observe(slow)
    try:
        with pytest.raises(PauseFailed, match="longer than the pause may last") as failure:
            group.service.initialize(NAME)
    finally:
        steps.observe(None)
    assert any("may still be paused" in note for note in failure.value.__notes__)
    assert group.service.status(NAME)[0].reading.faults
    program.write_text("#!/bin/sh\n")
    group.service.recover(NAME)
    kinds = {one.kind for one in group.service.status(NAME)[0].reading.faults}
    assert AlarmKind.PAUSE not in kinds


def _ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_everything_is_prepared_before_the_pause(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.service.initialize(NAME)
    (group.here / "a" / FILE).write_text("1")
    seen = labels(lambda: group.service.update(NAME))
    begin, taken = seen.index("ENGINE:PAUSE:BEGIN"), seen.index("ENGINE:PAUSE:TAKEN")
    assert seen[begin - 1] == "BTRFS:SNAPSHOT:SYNC"
    assert [one for one in seen[begin:taken] if "TAKE" in one] == ["BTRFS:SNAPSHOT:TAKE"] * 3


def test_a_missing_application_prevents_the_update(group: Group) -> None:
    group.create(pause="cgroup:no-such.service")
    with pytest.raises(PauseFailed, match="does not exist"):
        group.service.initialize(NAME)
    assert group.snapshots() == []


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ('pause = "cgroups:x"', "db.toml:1: 'cgroups' is not a kind of pause"),
        ("pause = 3", "db.toml:1: 'pause' is invalid: expected a string"),
        ('pause = "fsfreeze:x"', "db.toml:1: 'fsfreeze:x' is not a valid pause"),
        ('pause_max = "2s"', "db.toml:1: 'pause_max' requires a pause"),
        ('pause = "none"\npause_max = "2min"', "db.toml:2: 'pause_max' is invalid"),
    ],
)
def test_errors_in_a_definition_have_a_line(group: Group, lines: str, wanted: str) -> None:
    group.create()
    group.settings(lines)
    with pytest.raises((ConfigError, UsageError)) as failure:
        group.service.check()
    assert wanted in str(failure.value)


def test_an_error_in_a_member_has_a_line(group: Group) -> None:
    group.create()
    file = group.service.definitions.file(NAME)
    file.write_text(file.read_text() + 'pause = "hook:x"\n')
    with pytest.raises(ConfigError, match="is not a valid pause") as failure:
        group.service.check()
    assert "db.toml:" in str(failure.value)


def test_create_writes_what_is_paused(group: Group) -> None:
    with pytest.raises(UsageError):
        group.create(pause="cgroup:")
    group.create(pause='hook:/bin/true "x y"')
    definition = group.service.definitions.load(NAME)
    assert definition.pausers == ('hook:/bin/true "x y"',) * len(VOLUMES)


# What people see


def test_a_pause_is_tried_without_a_transfer(group: Group) -> None:
    group.create()
    with pytest.raises(Refused, match="nothing is paused"):
        group.service.pause_once(NAME)
    group.settings(f'pause = "cgroup:{group.app.name}"')
    group.write(1)
    group.service.initialize(NAME)
    before, shown = group.snapshots(), numbers(group.views())
    found = group.service.pause_once(NAME, count=3)
    assert len(found.pauses) == 3 and all(len(one.members) == 3 for one in found.pauses)
    assert group.snapshots() == before and numbers(group.views()) == shown
    assert len(group.service.history(NAME, limit=9).transfers) == 1
    done = subprocess.run(
        [sys.executable, "-m", "mirrord", "group", "test", NAME, "-n", "2"],
        env={**os.environ, "MIRRORD_HOME": str(group.home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    shown_lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(shown_lines) == 7, done.stderr
    assert shown_lines[0].startswith(f"a: cgroup:{group.app.name}: paused for ")
    assert shown_lines[-1].startswith("median ")
    assert not group.app.asked()


def test_a_failed_test_leaves_nothing(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.service.initialize(NAME)
    before = group.snapshots()
    group.app.freeze(True)
    with pytest.raises(PauseFailed, match="frozen already"):
        group.service.pause_once(NAME)
    group.app.freeze(False)
    assert group.snapshots() == before
    group.service.pause_once(NAME)


def test_status_and_alarm(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.write(1)
    group.service.initialize(NAME)
    [status] = group.service.status(NAME)
    assert {one.pause for one in status.reading.members} == {f"cgroup:{group.app.name}"}
    shown = "\n".join(details(status))
    assert f"pause        cgroup:{group.app.name} (a, b, c)" in shown
    assert f", {group.report().line()}" in shown
    group.settings('pause_alarm = "1ms"')
    [status] = group.service.status(NAME)
    [fault] = status.reading.faults
    assert fault.kind is AlarmKind.PAUSE and "longer than 1 ms" in fault.text
    assert fault.text in status.problems
    group.settings('pause_max = "30s"')
    file = group.service.definitions.file(NAME)
    file.write_text(file.read_text().replace('pause_alarm = "1ms"\n', ""))
    assert not group.service.status(NAME)[0].reading.faults


def test_metrics_have_a_histogram(group: Group) -> None:
    group.create(pause=f"cgroup:{group.app.name}")
    group.service.close()
    with daemon(group.home) as service:
        assert service.run("initialize", NAME).returncode == 0
        group.write(1)
        assert service.run("update", NAME).returncode == 0
        text = _get(service, "/metrics")
    assert f'mirrord_pause_seconds_count{{mirror="{NAME}"}} ' in text
    assert f'mirrord_pause_seconds_bucket{{le="0.05",mirror="{NAME}"}} ' in text
