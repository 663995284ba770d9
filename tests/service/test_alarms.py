"""Every alarm is seen to be raised and to clear, and those who are to be told are told."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mirrord.config.host import AlarmTargets
from mirrord.core.errors import Diverged
from mirrord.core.records import AlarmKind, Level
from mirrord.daemon.notifiers import Notice, deliver
from tests.service.conftest import Served
from tests.support import btrfs
from tests.support.definitions import set_keep
from tests.support.service import until
from tests.support.snapshots import delete_by_force
from tests.support.world import NAME

QUICK = "stall = '1s'"

ALARM = Notice("home", AlarmKind.LAG, Level.ERROR, "late", "raised", 1)


def test_lag_is_warned_of_and_then_an_error_and_clears(served: Served) -> None:
    served.initialized()
    served.define("rpo = '4s'", "warn_percent = 75", "error_percent = 90000")
    until(lambda: served.alarms() == {"lag": "warning"})
    assert served.row()["rpo_used"] > 0.7
    assert served.cli("monitor").returncode == 1
    served.redefine("error_percent = 90000", "error_percent = 150")
    until(lambda: served.alarms() == {"lag": "error"})
    shown = served.cli("monitor")
    assert shown.returncode == 2 and shown.stdout.startswith("MIRRORD CRITICAL - ")
    assert "RPO has been exceeded" in served.row()["forecast"]
    served.service.update(NAME)
    until(lambda: "cleared lag" in served.daemon.text())
    served.redefine("rpo = '4s'", "rpo = '1h'")  # or the lag grows meanwhile
    until(lambda: served.alarms() == {})
    assert served.cli("monitor").returncode == 0
    log = served.daemon.text()
    assert log.index("ALARM lag") < log.index("cleared lag")

    def recorded() -> bool:
        past = [alarm for alarm in served.service.alarms(up=False) if alarm.kind == "lag"]
        return bool(past) and all(alarm.cleared_ns for alarm in past)

    until(recorded)


def test_lag_is_measured_by_the_schedule_where_nothing_is_promised(served: Served) -> None:
    served.initialized(schedule="every 2s")
    served.service.quiesce(NAME)
    until(lambda: served.alarms().get("lag") == "error")
    assert "while it is quiesced" in served.row()["alarms"][0]["text"]
    served.service.resume(NAME)
    until(lambda: served.alarms() == {})


def test_a_base_that_is_gone_is_an_alarm_before_the_next_update_needs_it(served: Served) -> None:
    served.initialized()
    served.lab.change(served.lab.source(), 1)
    served.service.update(NAME)
    source = served.lab.source()
    delete_by_force(source, source.snapshots()[-1].guid)
    # A look at the ends (every ten minutes, or after any command) finds it.
    served.service.quiesce(NAME)
    until(lambda: served.alarms().get("base") == "error")
    assert "no longer exists at the source" in served.row()["base_risk"]
    assert served.cli("monitor").returncode == 2
    served.service.resume(NAME)
    served.again()  # the first look after a start finds it still so: it does not end meanwhile
    time.sleep(2)
    assert served.alarms() == {"base": "error"} and "cleared" not in served.daemon.text()
    # The way on that the message names: from the newest snapshot that both ends still have.
    served.service.resync(NAME, yes=True)
    until(lambda: served.alarms() == {})


def programs_of(pid: int) -> list[int]:
    """What any of its threads has started and still runs. Not a child that executes no program of
    its own yet: the interpreter waits for that one, and would stop with it.
    """
    found, own = [], os.readlink(f"/proc/{pid}/exe")
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # (it may have ended meanwhile)
            children = (thread / "children").read_text().split()
            found += [int(word) for word in children if os.readlink(f"/proc/{word}/exe") != own]
    return found


def test_another_volume_in_the_place_of_the_source_is_one_alarm_until_it_is_back(
    served_btrfs: Served,
) -> None:
    """It is not raised and cleared again by each run and the probe after it."""
    served = served_btrfs
    served.initialized()
    source = Path(served.lab.source().location)
    source.rename(source.with_name("away"))
    btrfs.make_subvolume(source)
    [status] = served.service.status(NAME)
    assert any("taken the place of the source" in each for each in status.problems)
    explained = served.cli("explain", NAME).stdout
    assert "taken the place of the source" in explained and "is incremental" not in explained
    for _run in range(3):
        with pytest.raises(Diverged, match="taken the place of the source"):
            served.service.update(NAME)
        assert served.alarms().get("base") == "error"
    assert "cleared base" not in served.daemon.text()
    assert served.daemon.text().count("ALARM base") == 1
    source.rename(source.with_name("other"))
    source.with_name("away").rename(source)
    assert served.service.update(NAME).status == "unchanged"
    assert served.alarms() == {} and served.row()["problems"] == []
    assert served.cli("monitor").returncode == 0


def test_a_stalled_transfer_is_an_alarm_and_clears(served_btrfs: Served) -> None:
    served = served_btrfs
    served.initialized()
    served.define(QUICK)
    served.service.throttle(NAME, "300KiB/s")
    view = Path(served.lab.source().facts().view)
    (view / "large").write_bytes(os.urandom(3 << 20))
    thread = threading.Thread(target=lambda: served.daemon.client().update(NAME))
    thread.start()
    until(lambda: served.row()["activity"] == "transferring")
    assert served.daemon.process is not None
    pid = served.daemon.process.pid
    while not (children := programs_of(pid)):
        time.sleep(0.01)
    # The receiver does not read any more: the pipe fills, and no byte moves.
    for child in children:
        os.kill(child, signal.SIGSTOP)
    served.service.throttle(NAME, "unlimited")
    until(lambda: served.alarms().get("stall") == "error")
    for child in children:
        os.kill(child, signal.SIGCONT)
    thread.join()
    until(lambda: served.alarms() == {})
    assert served.in_step()


def test_a_doubted_prune_is_an_alarm_and_clears_when_it_is_accepted(served: Served) -> None:
    served.initialized(keep_source=8, keep_destination=8)
    for seed in range(7):
        served.lab.change(served.lab.source(), seed)
        served.service.update(NAME)
    file = served.paths.mirrors / f"{NAME}.toml"
    set_keep(file, "primary", "2")
    served.service.reload()
    served.lab.change(served.lab.source(), 99)
    done = served.service.update(NAME)
    assert "prune_share" in done.data["prune_refused"]
    until(lambda: served.alarms() == {"prune": "warning"})
    assert served.cli("prune", NAME).returncode == 1
    assert served.cli("prune", NAME, "--accept").returncode == 0
    served.lab.change(served.lab.source(), 100)
    assert served.service.update(NAME).data["prune_refused"] == ""
    until(lambda: served.alarms() == {})


def test_a_lag_target_that_cannot_be_held_is_said_with_what_can_be(served: Served) -> None:
    served.initialized(schedule="lag 3s", throttle="250KiB/s")
    for seed in range(3):
        served.lab.change(served.lab.source(), seed)
        until(served.in_step)
    until(lambda: "target" in served.alarms())
    [text] = [a["text"] for a in served.row()["alarms"] if a["kind"] == "target"]
    assert "smallest lag" in text or "faster than this link can transfer it" in text
    served.service.throttle(NAME, "unlimited")
    # The runs that are remembered get quick again, and the target can be held.
    for seed in range(10, 40):
        if "target" not in served.alarms():
            break
        served.lab.change(served.lab.source(), seed)
        until(served.in_step)
    assert "target" not in served.alarms()


def test_a_clock_that_went_back_is_an_alarm_until_somebody_accepts_it(served: Served) -> None:
    served.initialized(keep_destination="2 hourly")
    served.daemon.stop()
    later = time.time_ns() + (7200 + 59) * 10**9  # it may take that long to start
    with sqlite3.connect(served.paths.catalogue) as book:
        book.execute("INSERT OR REPLACE INTO host VALUES ('seen_ns', ?)", (str(later),))
    served.daemon.start()
    until(lambda: any(a.kind == "clock" for a in served.service.alarms(up=True)))
    assert "went back by 2 h" in served.cli("alarms").stdout
    assert served.cli("monitor").returncode == 2
    served.again()
    until(lambda: any(a.kind == "clock" for a in served.service.alarms(up=True)))
    assert served.cli("alarms", "--accept-clock").returncode == 0
    until(lambda: not served.service.alarms(up=True))
    assert served.cli("monitor").returncode == 0


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_state_folder_is_an_alarm_and_breaks_no_promise(served: Served) -> None:
    served.daemon.stop()
    with small_disk(served.home / "small") as disk:
        served.paths.state.rename(served.home / "old-state")
        served.paths.state.symlink_to(disk)
        served.daemon.start()
        served.initialized(schedule="every 1s")
        before = served.view_content()
        with (disk / "fill").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        served.lab.change(served.lab.source(), 1)
        until(lambda: served.alarms().get("failure") == "error")
        assert served.view_content() in (before, served.source_content())
        until(lambda: "ALARM state" in served.daemon.text())
        # What cannot be recorded is shown all the same, and recorded once that is possible.
        both = {"state", "failure"}
        until(lambda: both <= {a.kind for a in served.service.alarms(up=True)})
        assert "the catalogue cannot be written" in served.cli("monitor").stdout
        (disk / "fill").unlink()
        until(served.in_step)
        until(lambda: "failure" not in served.alarms())
        until(lambda: "cleared state" in served.daemon.text())
        served.daemon.stop()
    served.paths.state.unlink()
    (served.home / "old-state").rename(served.paths.state)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "gibberish"])
def test_an_alarm_that_was_not_taken_is_never_silent(
    status: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                try:
                    made, _ = server.accept()
                except OSError:
                    return  # nobody came a second time
                got.append(made.recv(4))
                made.sendall(
                    f"HTTP/1.1 {status}\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                made.close()

        threading.Thread(target=answer, daemon=True).start()
        with caplog.at_level("WARNING", logger="mirrord"):
            deliver(AlarmTargets(webhook=f"http://127.0.0.1:{port}/secret"), ALARM)
    assert got == [b"POST"]
    assert "could not be posted to 127.0.0.1" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1/", "http://127.0.0.1:9/a secret"])
def test_the_address_of_a_webhook_is_not_logged(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="mirrord"):
        deliver(AlarmTargets(webhook=address), ALARM)
    assert "could not be posted to 127.0.0.1" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("begin", ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 500 /secret\r\n\r\n"])
def test_a_web_address_that_answers_slowly_is_not_awaited(
    begin: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as made, suppress(OSError):
                made.sendall(begin.encode())
                while not ended.wait(0.05):
                    made.sendall(b"x")

        threading.Thread(target=answer, daemon=True).start()
        began_s = time.monotonic()
        timer = threading.Timer(8, ended.set)
        timer.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret"
        with caplog.at_level("WARNING", logger="mirrord"):
            deliver(AlarmTargets(webhook=url, timeout_s=1), ALARM)
        took_s = time.monotonic() - began_s
        ended.set()
        timer.cancel()
    assert took_s < 4
    assert "could not be posted" in caplog.text and "secret" not in caplog.text


class _Hook(http.server.BaseHTTPRequestHandler):
    got: list[dict[str, Any]]

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.got.append(json.loads(self.rfile.read(size)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_programs_and_web_addresses_are_told(served: Served, tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Hook", (_Hook,), {"got": got}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = tmp_path / "tell"
    program.write_text(
        "#!/bin/sh\n"
        'echo "$MIRRORD_ALARM_MIRROR $MIRRORD_ALARM_KIND $MIRRORD_ALARM_STATE"'
        f" >> {tmp_path}/told\n"
    )
    program.chmod(0o755)
    try:
        served.settings(
            f'[alarms]\nprogram = ["{program}"]\n'
            f'webhook = "http://127.0.0.1:{server.server_address[1]}/alarm"\n'
        )
        served.initialized()
        served.define("rpo = '4s'", "warn_percent = 100", "error_percent = 90000")
        until(lambda: any(alarm["state"] == "raised" for alarm in got))
        served.service.update(NAME)
        until(lambda: any(alarm["state"] == "cleared" for alarm in got))
        assert {alarm["kind"] for alarm in got} == {"lag"} and got[0]["mirror"] == NAME
        told = tmp_path / "told"
        for state in ("raised", "cleared"):
            line = f"{NAME} lag {state}"
            until(lambda line=line: told.exists() and line in told.read_text())
    finally:
        server.shutdown()
        server.server_close()


def test_a_target_of_alarms_that_fails_is_only_a_line_in_the_log(served: Served) -> None:
    served.settings(
        '[alarms]\nprogram = ["/nonexistent/tell"]\nwebhook = "http://127.0.0.1:9/secret-token"\n'
    )
    served.initialized()
    served.define("rpo = '1s'", "warn_percent = 100")
    until(lambda: "could not be posted" in served.daemon.text())
    until(lambda: "the alarm program failed" in served.daemon.text())
    assert "secret-token" not in served.daemon.text()
    assert served.service.update(NAME).status in ("done", "unchanged")
