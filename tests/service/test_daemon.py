"""The daemon's life: start, stop, crash, reload, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrord.config.host import Host
from mirrord.control import api
from mirrord.control.commands.prune import prune
from mirrord.control.commands.quiesce import quiesce
from mirrord.core.errors import (
    Busy,
    ConfigError,
    MirrordError,
    NotFound,
    Unreachable,
)
from mirrord.core.results import Silent
from mirrord.core.states import Activity
from mirrord.daemon.daemon import Daemon
from mirrord.daemon.workers import Crew, Workers
from mirrord.drivers.block.volume import Volume
from mirrord.engine.limits import Limits
from mirrord.engine.progress import RunFiles
from mirrord.system.paths import Paths
from tests.service.conftest import Served
from tests.support.labs import open_lab
from tests.support.service import ServiceProcess, until
from tests.support.world import NAME, World


def slow_update(served: Served, rate: str = "200KiB/s") -> threading.Thread:
    """An update of 1.6 MB that takes seconds, in a thread that does not mind how it ends."""
    served.service.throttle(NAME, rate)
    served.lab.change(served.lab.source(), 7)

    def update() -> None:
        try:
            served.daemon.client().update(NAME)
        except MirrordError:
            return

    thread = threading.Thread(target=update)
    thread.start()
    until(lambda: served.row()["activity"] == "transferring")
    return thread


def test_a_second_daemon_is_refused_and_disturbs_nothing(served: Served) -> None:
    second = served.cli("daemon")
    assert second.returncode == 1
    assert "the daemon is already running" in second.stderr and "Traceback" not in second.stderr
    assert served.service.check().status == "done"


def test_a_socket_left_by_a_crash_is_no_obstacle(served: Served) -> None:
    served.initialized()
    served.daemon.end(signal.SIGKILL)
    assert served.paths.act_socket.exists()
    # Nobody answers there: the command does its work itself.
    assert served.cli("status", NAME).returncode == 0
    served.lab.change(served.lab.source(), 1)
    assert served.cli("update", NAME).returncode == 0
    served.daemon.start()
    assert served.service.update(NAME).status == "unchanged"


def test_a_crash_in_the_middle_of_a_transfer_is_recovered_at_the_start(served: Served) -> None:
    served.initialized()
    before = served.view_content()
    thread = slow_update(served)
    served.daemon.end(signal.SIGKILL)
    thread.join()
    assert served.view_content() == before
    served.daemon.start()
    assert "the interrupted update was recovered" in served.daemon.text()
    served.service.throttle(NAME, "unlimited")
    assert served.service.update(NAME).status == "done"
    assert served.in_step()
    history = served.service.history(NAME, limit=5)
    assert any("interrupted" in row.error for row in history.transfers) or any(
        "interrupted" in event.text for event in history.events
    )


def test_a_clean_stop_leaves_a_checkpoint_from_which_the_next_update_goes_on(
    served: Served,
) -> None:
    served.initialized()
    before = served.view_content()
    with Volume.open(served.lab.source().location, writable=True) as volume:
        volume.write(1 << 20, os.urandom(8 << 20))
    thread = slow_update(served, "800KiB/s")
    until(lambda: int(served.row()["running"]["done_bytes"]) > 1_200_000)
    served.service.throttle(NAME, "5KiB/s")  # it would take minutes
    started = time.monotonic()
    assert served.daemon.stop() == 0
    assert time.monotonic() - started < 60
    thread.join()
    assert served.view_content() == before
    assert not served.paths.act_socket.exists()
    served.daemon.start()
    assert int(served.status()["checkpoint_bytes"]) > 0
    served.service.throttle(NAME, "unlimited")
    done = served.service.update(NAME)
    assert done.data["resumed_bytes"] > 0
    assert served.in_step()


def test_a_stop_reaches_a_transfer_whose_definition_is_wrong_by_now(served: Served) -> None:
    served.initialized()
    file = served.paths.mirrors / f"{NAME}.toml"
    slow_update(served, "40KiB/s")
    good = file.read_text()
    file.write_text("id = 3\n")
    assert served.daemon.stop() == 0
    file.write_text(good)
    served.daemon.start()
    [last] = served.service.history(NAME, limit=1).transfers
    assert "the daemon stopping" in last.error


def test_a_stop_lets_a_short_transfer_finish(served: Served) -> None:
    served.initialized()
    thread = slow_update(served)
    served.service.throttle(NAME, "900KiB/s")
    assert served.daemon.stop() == 0
    thread.join()
    assert served.in_step()


def test_abort_reaches_a_running_transfer_and_the_api_answers_meanwhile(served: Served) -> None:
    served.initialized()
    thread = slow_update(served, "20KiB/s")
    started = time.monotonic()
    assert served.row()["running"]
    assert time.monotonic() - started < 15
    assert served.service.abort(NAME, hard=True).data["stopped"]
    thread.join()
    until(lambda: served.row()["activity"] == "idle")
    assert served.service.history(NAME, limit=1).transfers[0].result == "aborted"


def test_ctrl_c_at_the_command_ends_the_transfer_in_the_daemon(served: Served) -> None:
    served.initialized()
    served.service.throttle(NAME, "200KiB/s")
    served.lab.change(served.lab.source(), 3)
    command = subprocess.Popen(
        served.command("update", NAME), env=served.environment(), stderr=subprocess.PIPE, text=True
    )
    until(lambda: served.row()["activity"] == "transferring")
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=90)
    assert command.returncode == 130 and "interrupted" in said
    until(lambda: served.row()["activity"] == "idle")
    until(lambda: served.service.history(NAME, limit=1).transfers[0].result == "aborted")


def test_a_client_that_dies_does_not_take_the_transfer_along(served: Served) -> None:
    served.initialized()
    served.service.throttle(NAME, "200KiB/s")
    served.lab.change(served.lab.source(), 3)
    command = subprocess.Popen(
        served.command("update", NAME), env=served.environment(), stderr=subprocess.DEVNULL
    )
    until(lambda: served.row()["activity"] == "transferring")
    command.kill()
    command.wait()
    served.service.throttle(NAME, "unlimited")
    until(lambda: served.row()["activity"] == "idle")
    until(served.in_step)


def test_what_was_seen_at_work_is_idle_once_it_has_ended(served: Served) -> None:
    served.initialized()
    thread = slow_update(served, "100KiB/s")
    served.service.throttle(NAME, "90KiB/s")  # as any command, it has a look at the mirror
    assert served.row()["running"]
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text().replace("90KiB/s", "90MiB/s"))
    thread.join()
    assert served.row()["running"] is None and served.row()["activity"] == "idle"


def test_a_broken_definition_is_refused_at_reload_and_the_old_one_holds(served: Served) -> None:
    served.initialized(schedule="every 1s")
    file = served.paths.mirrors / f"{NAME}.toml"
    good = file.read_text()
    file.write_text(good.replace("every 1s", "every 1x"))
    with pytest.raises(ConfigError) as caught:
        served.service.reload()
    assert f"{NAME}.toml:" in caught.value.where
    assert served.daemon.process is not None
    served.daemon.process.send_signal(signal.SIGHUP)
    until(lambda: served.daemon.text().count("the old ones remain") == 2)
    until(lambda: served.row()["next_ns"])
    file.write_text(good.replace("every 1s", "every 30m"))
    served.daemon.process.send_signal(signal.SIGHUP)
    until(lambda: int(str(served.row()["next_ns"] or 0)) > 0 and "30m" in str(served.row()))


def test_a_definition_that_goes_while_its_transfer_runs(served: Served) -> None:
    served.initialized()
    thread = slow_update(served)
    (served.paths.mirrors / f"{NAME}.toml").unlink()
    served.service.reload()
    thread.join()
    until(lambda: served.view_content() == served.source_content())
    assert served.service.status() == []
    with pytest.raises(NotFound):
        served.service.update(NAME)


def test_a_definition_that_changes_while_its_transfer_runs(served: Served) -> None:
    served.initialized()
    thread = slow_update(served, "100KiB/s")
    served.define("rpo = '1h'", "schedule = 'every 30m'")
    assert served.row()["rpo_s"] == 3600 and served.row()["next_ns"]
    served.service.throttle(NAME, "unlimited")
    thread.join()
    until(served.in_step)


def test_a_daemon_does_not_start_with_a_broken_definition(tmp_path: Path) -> None:
    daemon = ServiceProcess(tmp_path / "home")
    daemon.paths.mirrors.mkdir(parents=True)
    (daemon.paths.mirrors / "home.toml").write_text("id = 3\n")
    daemon.start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(timeout=90) == 2
    assert "home.toml:1" in daemon.said.read_text() and "Traceback" not in daemon.said.read_text()


# Sockets


def test_a_folder_with_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    daemon = ServiceProcess(tmp_path / ("long" * 30)).start()
    assert daemon.client().status() == []
    assert daemon.stop() == 0


def test_a_daemon_that_is_gone_in_the_middle_is_said_to_be_so(served: Served) -> None:
    served.initialized()
    served.service.throttle(NAME, "100KiB/s")
    served.lab.change(served.lab.source(), 7)
    caught: list[MirrordError] = []

    def update() -> None:
        try:
            served.daemon.client().update(NAME)
        except MirrordError as error:
            caught.append(error)

    thread = threading.Thread(target=update)
    thread.start()
    until(lambda: served.row()["activity"] == "transferring")
    served.daemon.end(signal.SIGKILL)
    thread.join()
    assert isinstance(caught[0], Unreachable)


def test_a_daemon_whose_process_is_stopped_is_not_waited_for(served: Served) -> None:
    served.initialized()
    process = served.daemon.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    began_s = time.monotonic()
    try:
        with pytest.raises(Unreachable, match=f"its process {process.pid} is stopped"):
            served.service.status()
        assert "is stopped" in served.cli("monitor").stdout
    finally:
        process.send_signal(signal.SIGCONT)
    assert time.monotonic() - began_s < 30
    assert served.service.status()


def test_two_updates_of_one_mirror_at_once(served: Served) -> None:
    served.initialized()
    thread = slow_update(served, "100KiB/s")
    with pytest.raises(Busy):
        served.service.update(NAME)
    served.service.throttle(NAME, "unlimited")
    thread.join()
    assert served.in_step()


def test_who_waits_for_a_turn_is_told_when_the_definition_goes(served: Served) -> None:
    served.initialized()
    served.settings("[limits]\ntransfers = 1\n")
    third = str(served.lab.destination()) + "-third"
    served.service.create("other", str(served.lab.source()), third)
    thread = slow_update(served, "20KiB/s")
    caught: list[MirrordError] = []

    def initialize() -> None:
        try:
            served.daemon.client().initialize("other")
        except MirrordError as error:
            caught.append(error)

    waiting = threading.Thread(target=initialize)
    waiting.start()
    until(lambda: served.row("other")["waiting"])
    (served.paths.mirrors / "other.toml").unlink()
    served.service.reload()
    waiting.join(timeout=60)
    assert [error.code for error in caught] == ["refused"]
    assert thread.is_alive(), "its turn has not come"
    served.service.throttle(NAME, "unlimited")
    thread.join()


def test_long_verbs_and_disks_that_hang_hold_up_neither_reports_nor_records(tmp_path: Path) -> None:
    async def check() -> None:
        host, end = Host(), threading.Event()
        workers = Workers(
            Paths(tmp_path, tmp_path, tmp_path), host, Limits(host), lambda _name: False
        )
        held = [
            crew(lambda _service: end.wait(120))
            for crew in (workers.verb, workers.probe)
            for _ in range(20)
        ]
        for crew in (workers.report, workers.record, workers.transfer):
            assert await asyncio.wait_for(crew(lambda _service: True), 60)
        end.set()
        await asyncio.gather(*held)
        workers.close()

    asyncio.run(check())


def test_the_loops_of_policies_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def check() -> None:
        host, together = Host(), threading.Barrier(100)
        workers = Workers(
            Paths(tmp_path, tmp_path, tmp_path), host, Limits(host), lambda _name: False
        )
        loops = [workers.steer(lambda _service: together.wait(60)) for _ in range(100)]
        assert sorted(await asyncio.gather(*loops)) == list(range(100))
        workers.close()

    asyncio.run(check())


def test_threads_that_work_at_the_same_time_have_services_of_their_own(tmp_path: Path) -> None:
    async def check() -> None:
        host, together = Host(), threading.Barrier(3)
        workers = Workers(
            Paths(tmp_path, tmp_path, tmp_path), host, Limits(host), lambda _name: False
        )

        def work(service: api.Service) -> api.Service:
            together.wait(60)
            return service

        first = await asyncio.gather(*(workers.report(work) for _ in range(3)))
        again = await asyncio.gather(*(workers.verb(work) for _ in range(3)))
        assert len(set(map(id, first))) == 3
        assert set(map(id, first)) == set(map(id, again)), "they are used again"
        workers.close()

    asyncio.run(check())


def test_what_was_read_before_a_command_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        daemon = Daemon(world.paths)
        await daemon.begin()
        probe = daemon.workers.probe

        async def slow(work: Any) -> Any:
            found = await probe(work)
            monkeypatch.setattr(daemon.workers, "probe", probe)
            await daemon.call(quiesce(NAME), Silent())
            return found

        monkeypatch.setattr(daemon.workers, "probe", slow)
        await daemon.refresh(NAME)
        assert daemon.scheduler.mirrors[NAME].standing.quiesced
        assert daemon.store.rows()[0].reading.quiesced
        await daemon.end(patience_s=0)

    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home")
        world.initialized()
        asyncio.run(check())
        world.close()


def test_the_status_of_all_shows_a_verb_that_did_not_wait_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        daemon = Daemon(world.paths)
        await daemon.begin()
        do, shown = Crew.__call__, []

        def called(crew: Crew, work: Any, to: Any = None) -> Any:
            if crew is daemon.workers.verb:
                shown.extend(daemon.store.rows())
            return do(crew, work, to)

        monkeypatch.setattr(Crew, "__call__", called)
        await daemon.call(prune(NAME, dry_run=True), Silent())
        [during], [after] = shown, daemon.store.rows()
        assert during.running is not None and during.running.purpose == "prune"
        assert after.running is None and after.activity is Activity.IDLE
        await daemon.end(patience_s=0)

    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home")
        world.initialized()
        asyncio.run(check())
        world.close()


def test_a_stop_ends_what_is_taken_up_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path / "etc", tmp_path / "state", tmp_path / "run")
    begun = threading.Event()

    def recover(_service: api.Service, name: str) -> str:
        begun.set()
        while True:
            RunFiles(paths.run, name).check_abort()
            time.sleep(0.01)

    async def check() -> None:
        daemon = Daemon(paths)
        known = SimpleNamespace(
            definition=SimpleNamespace(name="home"), operation="restore", operation_ns=1
        )

        monkeypatch.setattr("mirrord.daemon.daemon.read_all", lambda _service: [known])
        beginning = asyncio.ensure_future(daemon.begin())
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.wait_for(daemon.end(patience_s=0.1), 60)
        await asyncio.wait_for(beginning, 60)
        assert not daemon.ready.is_set()

    paths.make()
    monkeypatch.setattr(api.Service, "recover", recover)
    asyncio.run(check())


@pytest.mark.parametrize("operation", ["", "restore"])
def test_a_daemon_that_is_stopped_while_it_reads_the_mirrors_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """It went on with threads that had ended: a traceback instead of the end."""
    reading, stopping = threading.Event(), threading.Event()
    known = SimpleNamespace(
        definition=SimpleNamespace(name="home"), operation=operation, operation_ns=1
    )

    def read(_service: api.Service) -> list[Any]:
        reading.set()
        assert stopping.wait(60)
        return [known]

    async def check() -> None:
        daemon = Daemon(paths)
        beginning = asyncio.ensure_future(daemon.begin())
        await asyncio.to_thread(reading.wait, 60)
        ending = asyncio.ensure_future(daemon.end(patience_s=0.1))
        await asyncio.sleep(0.3)
        stopping.set()
        await asyncio.wait_for(asyncio.gather(beginning, ending), 60)
        assert not daemon.ready.is_set()

    paths = Paths(tmp_path / "etc", tmp_path / "state", tmp_path / "run")
    paths.make()
    monkeypatch.setattr("mirrord.daemon.daemon.read_all", read)
    asyncio.run(check())
