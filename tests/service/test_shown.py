"""What a running service shows: `status` and /metrics while alarms are active."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from tests.support.service import until
from tests.support.unit import OWN, Daemon, daemon, environment
from tests.support.verbs import Client


def metrics(service: Daemon) -> str:
    from mirrord.control.client import _Connection

    connection = _Connection(service.home / "run/status.sock")
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_mirror_with_an_alarm_is_shown_with_it(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as service:
        assert service.run("volume", "create", str(tmp_path / "one"), "16M").returncode == 0
        ends = [f"block:{tmp_path}/one", f"block:{tmp_path}/two"]
        assert service.run("create", "work", *ends, "--rpo", "1s").returncode == 0
        assert service.run("initialize", "work").returncode == 0
        run = service.home / "run"
        client = Client(run / "control.sock", run / "status.sock")
        deadline_s = time.monotonic() + 90
        while not client.status()[0].alarms and time.monotonic() < deadline_s:
            time.sleep(0.1)
        [row] = client.status()
        assert row.healthy is False
        assert row.problems == (row.alarms[0].text,)
        shown = service.run("status")
        assert shown.returncode == 0, shown.stderr
        assert "! the lag is" in shown.stdout
        assert "problem      the lag is" in service.run("status", "work").stdout
        assert 'mirrord_alarm{kind="lag"' in metrics(service)


def test_an_alarm_of_the_host_is_in_the_metrics(tmp_path: Path) -> None:
    with daemon(tmp_path / "home"):
        pass
    ahead = str(time.time_ns() + 3600 * 10**9)
    with sqlite3.connect(tmp_path / "home/state/catalogue.sqlite") as book:
        book.execute("INSERT OR REPLACE INTO host VALUES ('seen_ns', ?)", (json.dumps(int(ahead)),))
    book.close()
    with daemon(tmp_path / "home") as service:
        up = 'mirrord_alarm{kind="clock",level="error",mirror=""} 1.0'
        until(lambda: up in metrics(service))
        assert service.run("alarms", "--accept-clock").stdout.startswith("The clock change")
        until(lambda: 'kind="clock"' not in metrics(service))


def test_watch_shows_all_mirrors_until_it_is_interrupted(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as service:
        for words in (
            ["volume", "create", str(tmp_path / "one"), "16M"],
            ["create", "work", f"block:{tmp_path}/one", f"block:{tmp_path}/two"],
        ):
            assert service.run(*words).returncode == 0
        screen, side = pty.openpty()
        watching = subprocess.Popen(
            [OWN, "watch", "--every", "0.2"], env=environment(service.home) | {"TERM": "xterm"},
            stdin=side, stdout=side, stderr=side,
        )  # fmt: skip
        os.close(side)
        shown = b""
        while b"uninitialized" not in shown:
            shown += os.read(screen, 4096)
        watching.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other side is closed
            while more := os.read(screen, 4096):
                shown += more
        os.close(screen)
        assert watching.wait(timeout=90) == 0
        assert b"error" not in shown
