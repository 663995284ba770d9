"""Members of one mirror on two hosts: one pause, by a guard on each host."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import (
    Busy,
    LinkLost,
    MirrordError,
    PauseFailed,
    Unreachable,
    Unsupported,
    Untrusted,
)
from mirrord.core.pause import LeftPaused
from mirrord.link import connect
from mirrord.pausers.applock import lock
from mirrord.pausers.record import UNKNOWN, add
from mirrord.pausers.registry import open_pauser
from mirrord.system import steps
from tests.pausers.conftest import NAME, stopped_at
from tests.pausers.hosts import Hosts, hosts
from tests.support import btrfs
from tests.support.cgroups import Cgroup
from tests.support.service import until
from tests.support.stripes import FILE, is_prefix, numbers
from tests.support.verbs import Service

CYCLES = 10
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "home") as made:
        yield made


@pytest.mark.parametrize("flags", [0, os.O_DSYNC], ids=["buffered", "synced"])
@pytest.mark.parametrize("cycles", [CYCLES, pytest.param(200, marks=NIGHTLY)])
def test_every_set_is_a_prefix(pair: Hosts, cycles: int, flags: int) -> None:
    pair.paused()
    pair.write(flags=flags)
    counts = []
    pair.service.initialize(NAME)
    for _ in range(cycles):
        pair.service.update(NAME)
        found = numbers(pair.views())
        assert is_prefix(found), "a write is missing that was acknowledged before another"
        counts.append(len(found))
    assert counts == sorted(set(counts)), "each has more than the one before"
    assert not pair.any_asked() and not pair.records()
    report = pair.report()
    assert [one.member for one in report.members] == ["a", "b", "c"]
    assert {one.pauser for one in report.members} == {
        f"cgroup:{app.path}" for app in pair.apps.values()
    }
    assert all(one.network_ms > 0 for one in report.members)


def test_without_a_pause_there_are_gaps(pair: Hosts) -> None:
    """The negative control."""
    pair.create(pause="none")
    pair.write()
    pair.service.initialize(NAME)
    for _ in range(CYCLES):
        pair.service.update(NAME)
        if not is_prefix(numbers(pair.views())):
            return
    pytest.fail("no set had a gap: this test cannot tell whether a pause is needed")


def test_a_pause_needs_a_right_of_its_own(pair: Hosts) -> None:
    pair.paused()
    pair.allow("two", f"send={pair.here}", f"receive={pair.there}", "pause=other.service")
    with pytest.raises(Untrusted, match="may not pause that application") as failure:
        pair.service.initialize(NAME)
    assert f"--allow pause=cgroup:{pair.apps['two'].path}" in failure.value.hint
    assert "two" in failure.value.where and pair.snapshots() == []
    pair.allow("two")
    with pytest.raises(Untrusted, match="may not pause that application"):
        pair.service.initialize(NAME)
    assert not pair.any_asked() and pair.snapshots() == []


def test_a_peer_that_cannot_pause(pair: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.paused()
    monkeypatch.setattr(connect, "VERSIONS", (2, 1))
    pair.service.shared.links.close()
    with pytest.raises(Unsupported, match="too old to pause applications") as failure:
        pair.service.initialize(NAME)
    assert "same version" in failure.value.hint
    assert pair.snapshots() == []


#: The other steps take minutes.
STEPS = (
    "CONFIRMED",
    *(pytest.param(one, marks=pytest.mark.nightly) for one in ("BEGIN", "TAKEN", "RESUMED")),
)


def _kill_guard(pair: Hosts) -> None:
    pair.kill("two", "mirrord.pausers.guard")


def _kill_agent(pair: Hosts) -> None:
    pair.kill("two", "agent")


def _kill_both(pair: Hosts) -> None:
    pids = [*pair.processes("two", "mirrord.pausers.guard"), *pair.processes("two", "agent")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _cut(pair: Hosts) -> None:
    pair.networks["two"].cut()


def _update_when_free(service: Service) -> None:
    """An agent that was cut off holds its volumes until the silence has lasted for 12 s."""
    deadline = time.monotonic() + 30
    while True:
        try:
            service.update(NAME)
            return
        except Busy:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("label", STEPS)
@pytest.mark.parametrize("event", [_kill_guard, _kill_agent, _kill_both, _cut])
def test_a_host_is_lost_at_each_step(
    pair: Hosts, label: str, event: Callable[[Hosts], None]
) -> None:
    pair.paused("1s")
    pair.write()
    pair.service.initialize(NAME)
    before, shown = pair.snapshots(), len(numbers(pair.views()))
    done = list[float]()

    def act(reached: str) -> None:
        if reached == f"ENGINE:PAUSE:{label}":
            event(pair)
            done.append(time.monotonic())

    steps.observe(act)
    try:
        pair.service.update(NAME)
        failed = False
    except MirrordError as error:
        failed = True
        assert isinstance(error, PauseFailed | LinkLost | Unreachable), error
    finally:
        steps.observe(None)
    assert done and (failed or label == "RESUMED")
    assert not pair.apps["one"].asked()
    if event is not _kill_both:
        until(lambda: not pair.any_asked(), 10)
    found = numbers(pair.views())
    assert is_prefix(found) and (len(found) == shown or not failed)
    if event is _cut:
        pair.networks["two"].mend()
    _update_when_free(pair.again())
    assert not pair.any_asked() and not pair.records()
    assert is_prefix(numbers(pair.views())) and len(numbers(pair.views())) > shown
    pair.service.update(NAME)
    assert len(pair.snapshots()) <= len(before) + 1, "no snapshot is left behind"


@pytest.mark.parametrize("label", STEPS)
def test_the_coordinator_is_killed_at_each_step(pair: Hosts, label: str) -> None:
    pair.paused("20s")
    pair.write()
    pair.service.initialize(NAME)
    pair.service.shared.links.close()
    process = stopped_at(pair.home, label)
    paused = label in ("CONFIRMED", "TAKEN")
    assert [app.frozen() for app in pair.apps.values()] == [paused] * 2
    process.kill()
    process.wait()
    until(lambda: not pair.any_asked(), 15)
    until(lambda: not pair.records(), 15)
    pair.again().update(NAME)
    assert is_prefix(numbers(pair.views()))
    assert len(pair.snapshots()) <= 2


A_YEAR_AHEAD = """
from mirrord.system import clock
true_ns = clock.now_ns
clock.now_ns = lambda: true_ns() + 365 * 86400 * 10**9
"""


def test_a_host_whose_clock_is_a_year_off(pair: Hosts) -> None:
    pair.allow("two", *pair.rules("two"), code=A_YEAR_AHEAD)
    pair.paused()
    pair.write()
    pair.service.initialize(NAME)
    pair.service.update(NAME)
    assert is_prefix(numbers(pair.views()))
    [row] = pair.service.history(NAME, limit=1).transfers
    assert row.spread_ms is not None and row.spread_ms < 60_000
    assert pair.report().longest_ms < 60_000


SLOW = """
import time
from mirrord.system import steps
steps.observe(lambda label: time.sleep(1) if label == "BTRFS:SNAPSHOT:TAKE" else None)
"""


def test_a_member_whose_snapshot_is_slow(pair: Hosts) -> None:
    pair.paused("500ms")
    pair.write()
    pair.service.initialize(NAME)
    before, shown = pair.snapshots(), numbers(pair.views())
    pair.allow("two", *pair.rules("two"), code=SLOW)
    with pytest.raises(PauseFailed, match="longer than the pause may last"):
        pair.service.update(NAME)
    assert not pair.any_asked() and pair.snapshots() == before
    assert numbers(pair.views()) == shown
    pair.allow("two", *pair.rules("two"))
    pair.service.update(NAME)
    assert is_prefix(numbers(pair.views()))


def test_a_member_that_was_lost(pair: Hosts) -> None:
    pair.paused()
    pair.service.initialize(NAME)
    os.rename(pair.here / "c", pair.here / "away")
    with pytest.raises(MirrordError, match="two") as failure:
        pair.service.update(NAME)
    assert "\n" not in str(failure.value) and not pair.any_asked()


def runs(pair: Hosts) -> bool:
    """Whether nothing may still be paused, after another attempt to resume."""
    pair.again().recover(NAME)
    return "may still be paused" not in "\n".join(pair.service.status(NAME)[0].problems)


def test_an_application_of_another_host_that_may_still_be_paused(
    pair: Hosts, tmp_path: Path
) -> None:
    program = tmp_path / "pause-db"
    program.write_text("#!/bin/sh\n[ $1 = pause ] || { echo no database >&2; exit 4; }\n")
    program.chmod(0o755)
    pair.allow("two", *pair.rules("two"), f"pause=hook:{program}")
    pair.paused()
    file = pair.service.definitions.file(NAME)
    paused = f"cgroup:{pair.apps['two'].path}"
    file.write_text(file.read_text().replace(paused, f"hook:{program}"))
    result = pair.service.initialize(NAME)
    assert f"may still be paused: hook:{program}" in result.text
    [status] = pair.again().status(NAME)
    assert f"hook:{program} on host two may still be paused" in "\n".join(status.problems)
    pair.networks["two"].cut()
    pair.service.recover(NAME)
    assert "may still be paused" in "\n".join(pair.service.status(NAME)[0].problems), "not known"
    pair.networks["two"].mend()
    program.write_text("#!/bin/sh\n")
    until(lambda: runs(pair), 20)
    assert not pair.records()


def test_a_damaged_record_on_another_host_is_an_alarm_until_it_is_deleted(pair: Hosts) -> None:
    pair.paused()
    pair.service.initialize(NAME)
    damaged = pair.agent_home("two") / "run/agents/damaged.paused"
    damaged.write_text("{\n")
    mirror_id = pair.service.status(NAME)[0].reading.id
    left = LeftPaused(UNKNOWN, host="two", why="the host has not confirmed that it runs")
    add(pair.paths.run / "paused" / mirror_id, [left])
    assert not runs(pair)
    [problem] = [text for text in pair.service.status(NAME)[0].problems if "paused" in text]
    assert f"{damaged} is damaged" in problem
    damaged.unlink()
    assert runs(pair)


def test_a_host_that_was_cut_off_has_to_confirm_that_it_runs(pair: Hosts) -> None:
    pair.paused("1s")
    pair.service.initialize(NAME)
    (pair.here / "a" / FILE).write_text("1")

    def cut(label: str) -> None:
        if label == "ENGINE:PAUSE:CONFIRMED":
            pair.networks["two"].cut()

    steps.observe(cut)
    try:
        with pytest.raises(MirrordError):
            pair.service.update(NAME)
    finally:
        steps.observe(None)
    app = f"cgroup:{pair.apps['two'].path}"
    assert f"{app} on host two may still be paused" in "\n".join(
        pair.service.status(NAME)[0].problems
    )
    pair.networks["two"].mend()
    until(lambda: runs(pair), 20)
    assert not pair.any_asked()


def test_hosts_are_prepared_in_one_order(pair: Hosts) -> None:
    """Nothing is held on a later host while the first one is waited for, so that two mirrors cannot
    wait for each other.
    """
    pair.paused()
    file = pair.service.definitions.file(NAME)
    text = file.read_text()
    first, *members = text.split("[[member]]")
    file.write_text("[[member]]".join([first, *reversed(members)]))  # `two` is named first
    pair.service.check()
    failed: list[MirrordError] = []

    def update() -> None:
        try:
            pair.service.initialize(NAME)
        except MirrordError as error:
            failed.append(error)

    waiting = threading.Thread(target=update)
    with locked(pair.apps["one"]) as release:
        waiting.start()
        until(lambda: bool(pair.processes("one", "mirrord.pausers.guard")), 30)
        time.sleep(0.5)
        assert not pair.processes("two", "mirrord.pausers.guard"), "the first host comes first"
        release()
    waiting.join(60)
    assert not failed and not waiting.is_alive() and not pair.any_asked()


@contextmanager
def locked(app: Cgroup) -> Iterator[Callable[[], None]]:
    """As another mirror holds it that pauses it."""
    path = open_pauser(f"cgroup:{app.path}").lock_path()
    assert path is not None
    with ExitStack() as stack:
        lock(path, stack, 0)
        yield stack.close


def test_two_mirrors_over_the_same_hosts(pair: Hosts) -> None:
    """Both pause the same applications, and name the hosts in opposite order."""
    pair.paused()
    for name in ("d", "e"):
        btrfs.make_subvolume(pair.here / name)
    ends = [("two", "e"), ("one", "d")]
    other = tuple(
        f"btrfs://{host}{pair.here / one}=btrfs://{host}{pair.there / one}" for host, one in ends
    )
    pair.service.create("other", members=other)
    file = pair.service.definitions.file("other")
    text = file.read_text()
    for host, one in ends:
        line = f'name = "{one}"'
        text = text.replace(line, f'{line}\npause = "cgroup:{pair.apps[host].path}"')
    file.write_text(f'pause_max = "5s"\n{text}')
    pair.service.initialize(NAME)
    pair.service.initialize("other")
    failed: list[BaseException] = []

    def update(name: str, member: str) -> None:
        service = Service(pair.paths)
        try:
            for number in range(4):
                (pair.here / member / "file").write_text(str(number))
                service.update(name)
        except BaseException as error:
            failed.append(error)
        finally:
            service.close()
            service.shared.links.close()

    threads = [threading.Thread(target=update, args=each) for each in ((NAME, "a"), ("other", "d"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "the mirrors wait for each other"
    assert not failed and not pair.any_asked()


def test_one_guard_for_a_host_that_is_written_in_two_ways(pair: Hosts) -> None:
    pair.paused()
    file = pair.service.definitions.file(NAME)
    text = file.read_text()
    a, b = f"btrfs://one{pair.here / 'a'}", f"btrfs://one{pair.here / 'b'}"
    assert a in text and b in text
    login = pair.sshds["one"].host(name="one").user
    file.write_text(text.replace(b, b.replace("//one", f"//{login}@one")))
    seen: list[int] = []

    def count(label: str) -> None:
        if label == "ENGINE:PAUSE:BEGIN":
            seen.append(len(pair.processes("one", "mirrord.pausers.guard")))

    steps.observe(count)
    try:
        pair.service.initialize(NAME)
    finally:
        steps.observe(None)
    assert seen == [1]
    assert [one.member for one in pair.report().members] == ["a", "b", "c"]


@pytest.mark.parametrize("whole", [False, True])
def test_an_aborted_set_on_a_host_that_could_not_be_reached(pair: Hosts, *, whole: bool) -> None:
    """The next command finds the host unreachable, too; the one after that deletes the set. whole:
    no member could be reached.
    """
    pair.copies_here = True
    pair.paused("1s")
    pair.service.initialize(NAME)
    before = pair.snapshots()
    (pair.here / "a" / FILE).write_text("1")
    away = ("one", "two") if whole else ("two",)

    def cut(label: str) -> None:
        if label == "ENGINE:PAUSE:TAKEN":
            for host in away:
                pair.networks[host].cut()

    steps.observe(cut)
    try:
        with pytest.raises(MirrordError):
            pair.service.update(NAME)
    finally:
        steps.observe(None)
    pair.again().recover(NAME)
    assert pair.service.catalogue.operation(pair.service.definition(NAME).id) is None
    for host in away:
        pair.networks[host].mend()
    left = [one for one in pair.again().snapshots(NAME).snapshots if one.source]
    assert len(left) > len(before), "this is about a set that was left"
    aborted = left[-1].name
    pair.service.update(NAME)
    assert aborted not in pair.snapshots()
    assert aborted not in [one.name for one in pair.service.snapshots(NAME).snapshots]
    assert len(pair.snapshots()) <= len(before) + 1


def test_the_group_is_broken_off_reversed_and_paused_at_the_other_site(pair: Hosts) -> None:
    """The pausers are those of the members, wherever the source is."""
    pair.paused()
    for host in ("one", "two"):
        rules = [f"send={pair.here}", f"send={pair.there}", f"receive={pair.there}"]
        rules += [f"receive={pair.here}", f"pause=cgroup:{pair.apps[host].path}"]
        pair.allow(host, *rules)
    pair.service.initialize(NAME)
    pair.service.break_off(NAME)
    for name in ("a", "b", "c"):
        (pair.there / name / "current" / "written").write_text(name)
    assert pair.service.resync(NAME, yes=True).status == "done"
    assert pair.service.reverse(NAME, yes=True).status == "done"
    for name in ("a", "b", "c"):
        (pair.there / name / "current" / "later").write_text(name)
    pair.service.update(NAME)
    shown = [(pair.here / name / "later").read_text() for name in ("a", "b", "c")]
    assert shown == ["a", "b", "c"]
    assert [one.member for one in pair.report().members] == ["a", "b", "c"]
