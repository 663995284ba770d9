"""Commands that end during a copy, which goes on by itself, or before it; the end of a daemon."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import closing

import pytest

from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.live.command import WORDS, Mirror, qemu_io
from tests.live.lab import wait_until
from tests.support.verbs import Service


def _interrupted(mirror: Mirror, *words: str) -> None:
    """A command is killed while it waits for a copy, which is completed afterwards."""
    winner = mirror.source if words[0] != "reverse" else mirror.destination
    with subprocess.Popen([*WORDS, *words], env=mirror.home.environment) as command:
        wait_until(lambda: winner.status().get("state") == "resync", "the copy")
        command.kill()
    assert winner.status()["state"] == "resync"
    winner.ask("copy-rate", "0")
    wait_until(lambda: bool(winner.status()["in_sync"]), "the end of the copy")


def test_break_after_an_interrupted_resync(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize()
    home.run("throttle", "db", "1MiB/s")
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 8M")
    _interrupted(mirror, "resync", "db", "--yes")
    assert home.status()["state"] == "mirrored"  # as both ends report; it is not recorded
    mirror.source.kill()
    assert "is a primary of its own" in home.run("break", "db")
    assert mirror.destination.status()["role"] == "primary"
    assert home.run("break", "db").startswith("'db' is broken off already")


def test_the_daemon_records_what_an_interrupted_command_did(mirror: Mirror) -> None:
    home = mirror.home
    mirror.source.path.write_bytes(random.Random(2).randbytes(8 << 20))
    mirror.create()
    home.run("throttle", "db", "1MiB/s")
    _interrupted(mirror, "initialize", "db")
    assert home.status()["state"] == "mirrored"  # as both ends report; it is not recorded
    assert "both ends report it" not in home.run("history", "db")
    home.start_daemon()
    wait_until(lambda: "mirrored, epoch 1" in home.run("history", "db"), "the record", 60)
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 8M")
    assert home.status()["state"] == "broken-off"
    home.stop_daemon()
    _interrupted(mirror, "reverse", "db", "--yes")
    home.start_daemon()
    wait_until(lambda: home.status()["source"] == mirror.ends[1], "the record", 60)
    assert home.status()["state"] == "mirrored"
    assert "both ends report it: mirrored, epoch 2" in home.run("history", "db")
    home.run("break", "db")
    assert mirror.source.status()["role"] == "primary"
    assert home.status()["state"] == "broken-off"


def _killed_at(mirror: Mirror, wanted: str, *, nth: int = 1) -> None:
    """An initialize that ends at a step without doing anything more."""
    seen: list[str] = []

    def die(label: str) -> None:
        seen.extend([label] * label.startswith(wanted))
        if len(seen) == nth:
            raise KeyboardInterrupt

    service = Service(Paths(*(mirror.home.folder / name for name in ("etc", "state", "run"))))
    steps.observe(die)
    try:
        with closing(service), pytest.raises(KeyboardInterrupt):
            service.initialize("db")
    finally:
        steps.observe(None)


def test_the_source_is_served_before_a_copy_was_begun(mirror: Mirror) -> None:
    mirror.create()
    _killed_at(mirror, "IMAGE:PROCESS:CONFIG")
    mirror.home.run("serve", "db")
    qemu_io(mirror.home.uri(), "write -P 1 0 1M")
    mirror.home.run("initialize", "db")
    mirror.assert_equal()


@pytest.mark.parametrize("nth", [1, 2])
def test_delete_after_a_write_of_the_records_was_interrupted(mirror: Mirror, nth: int) -> None:
    mirror.create()
    _killed_at(mirror, "IMAGE:LIVE:RECORD:RENAME", nth=nth)
    mirror.home.run("delete", "db", "--yes")
    for end in (mirror.source, mirror.destination):
        assert not (end.path.parent / ".mirrord").exists()


def test_a_daemon_that_ends_while_an_end_hangs_reports_no_bug(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    mirror.home.start_daemon()
    log = mirror.home.folder / "daemon.log"
    wait_until(lambda: "ready: " in log.read_text(), "the daemon")
    pid = mirror.destination.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(3.5)  # a probe waits for it, which begins again after a command
        with subprocess.Popen([*WORDS, "initialize", "db"], env=mirror.home.environment) as command:
            time.sleep(1)
            mirror.home.stop_daemon()
            command.kill()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "unexpected" not in log.read_text()
