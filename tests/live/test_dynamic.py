"""Policies that change the mode of a real mirror: a link that becomes slow and good again, killed
processes, and policies of other packages that fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from socket import SHUT_RDWR, socket
from threading import Thread
from typing import Any

import pytest

from mirrord.core.sealed import unsealed
from mirrord.system import native
from tests.live.command import Home, Mirror
from tests.live.lab import BLOCK, ROOT, Proxy, Writer, wait_until
from tests.live.test_commands import Served
from tests.live.test_semi_sync import _lost

_BLOCKS = 1024
_MAX_LAT_S = 0.1
_MAX_RPO = 32 * BLOCK


class SlowProxy(Proxy):
    """A proxy that is late, by as much in each direction."""

    late_s = 0.0

    def _pump(self, name: str, source: socket, sink: socket) -> None:
        pieces: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

        def send() -> None:
            with suppress(OSError):
                while (piece := pieces.get())[1]:
                    time.sleep(max(0.0, piece[0] - time.monotonic()))
                    sink.sendall(piece[1])
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(SHUT_RDWR)

        Thread(target=send, daemon=True).start()
        with suppress(OSError):
            while data := source.recv(1 << 16):
                pieces.put((time.monotonic() + self.late_s, data))
        pieces.put((0.0, b""))


class TimedWriter(Writer):
    """One write at a time; notes how long each took."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(Served(mirror), _BLOCKS, depth=1)

    def slowest_s(self, seconds: float) -> float:
        """The longest of the waits between two answers from now on."""
        slowest, before, at = 0.0, self.answered, time.monotonic()
        until = at + seconds
        while (now := time.monotonic()) < until:
            if self.answered != before:
                before, at = self.answered, now
            slowest = max(slowest, now - at)
            time.sleep(0.002)
        return slowest


def _primary(mirror: Mirror) -> dict[str, Any]:
    command = [native.live_program(), "ctl", str(mirror.source.store / "control"), "status"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout or "{}")
    assert isinstance(found, dict)
    return found


def _is(mirror: Mirror, state: str) -> bool:
    return bool(_primary(mirror).get("state") == state)


def _changes(mirror: Mirror) -> int:
    """How often semi-sync was begun."""
    command = [native.live_program(), "ctl", str(mirror.source.store / "control"), "events 0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return sum("the replica journals" in each["text"] for each in json.loads(done.stdout))


@contextmanager
def _slow(mirror: Mirror) -> Iterator[SlowProxy]:
    """From now on the primary reaches the secondary through a proxy."""
    file = mirror.source.store / "end.json"
    end = unsealed(file.read_text())
    proxy = SlowProxy(int(end["peer"].rpartition(":")[2]))
    file.write_text(json.dumps({**end, "peer": f"127.0.0.1:{proxy.port}"}))
    mirror.source.kill()
    try:
        yield proxy
    finally:
        proxy.close()


def _begin(mirror: Mirror, *keys: str) -> None:
    words = ["--policy", "dynamic", "--max-lat", f"{_MAX_LAT_S * 1000:g}ms", "--hold-down", "6s"]
    mirror.initialize(*words, *keys)
    file = mirror.home.folder / "etc/mirrors.d/db.toml"
    file.write_text(file.read_text().replace("[dynamic]", '[dynamic]\nwindow = "2s"'))


def test_sync_is_left_for_a_slow_link_and_entered_once_when_it_is_good_again(
    mirror: Mirror,
) -> None:
    _begin(mirror)
    with _slow(mirror) as proxy:
        mirror.home.start_daemon()
        mirror.home.run("serve", "db")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        writer = TimedWriter(mirror)
        writer.start()
        time.sleep(4)
        assert _is(mirror, "in-sync") and writer.answered > 20
        proxy.late_s = 0.3  # a round trip is 0.6 s
        wait_until(lambda: _is(mirror, "semi-sync"), "semi-sync", 20)
        left_s = time.monotonic()
        # Clients are answered in time: after the first seconds M is what it has to be. (The host
        # may be busy for a while; the link remains slow.)
        time.sleep(2)
        bound_s = _MAX_LAT_S + 0.15
        wait_until(lambda: writer.slowest_s(2) < bound_s, "answers in time", 30)
        found = _primary(mirror)
        assert 0 < found["lag_limit_bytes"] <= found["window_bytes"] == 1 << 30
        assert found["answer_within_us"] == round(_MAX_LAT_S * 1e6)
        shown = mirror.home.run("status", "db")
        assert "semi-sync (policy dynamic)" in shown and "(at most 1.00 GiB)" in shown
        assert mirror.home.status()["problems"] == []
        # It stays there while the link is slow, whatever the hold-down.
        time.sleep(max(0.0, left_s + 8 - time.monotonic()))
        assert _is(mirror, "semi-sync")
        proxy.late_s = 0.0
        wait_until(lambda: _is(mirror, "in-sync"), "the return", 60)
        time.sleep(5)
        assert _is(mirror, "in-sync") and _changes(mirror) == 1
        writer.finish()
        assert writer.errors == []
        mirror.assert_equal()
        writer.check(mirror.destination.path.read_bytes())


@pytest.mark.parametrize("state", ["in-sync", "semi-sync"])
def test_a_killed_primary_loses_at_most_max_rpo(mirror: Mirror, state: str) -> None:
    _begin(mirror, "--max-rpo", str(_MAX_RPO))
    with _slow(mirror) as proxy:
        mirror.home.start_daemon()
        mirror.home.run("serve", "db")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        writer = TimedWriter(mirror)
        writer.start()
        if state == "semi-sync":
            proxy.late_s = 0.3
            wait_until(lambda: _is(mirror, state), state, 30)
            time.sleep(2)
            found = _primary(mirror)
            assert found["lag_bytes"] > 0 and found["window_bytes"] == _MAX_RPO
        else:
            wait_until(lambda: writer.answered > 50, "writes")
        mirror.home.stop_daemon()
        mirror.source.kill()
        mirror.home.run("break", "db")
        lost = _lost(writer, mirror.destination.path.read_bytes()) * BLOCK
        assert lost <= (_MAX_RPO if state == "semi-sync" else 0)
        writer.is_over.set()


def test_a_cut_link_releases_the_clients_and_its_return_brings_sync(mirror: Mirror) -> None:
    _begin(mirror)
    with _slow(mirror) as proxy:
        mirror.home.start_daemon()
        mirror.home.run("serve", "db")
        wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
        writer = TimedWriter(mirror)
        writer.start()
        wait_until(lambda: writer.answered > 50, "writes")
        time.sleep(3)
        proxy.cut()
        wait_until(lambda: _is(mirror, "out-of-sync"), "the policy", 20)
        assert _primary(mirror)["mode"] == "async"
        before = writer.answered
        wait_until(lambda: writer.answered > before + 50, "writes without the link", 20)
        proxy.heal()
        wait_until(
            lambda: _is(mirror, "in-sync") and _primary(mirror)["mode"] == "sync", "sync", 60
        )
        writer.finish()
        assert writer.errors == []
        mirror.assert_equal()
        writer.check(mirror.destination.path.read_bytes())


_PLUGIN = """
import time
from mirrord.core.live import Mode
from mirrord.policies.policy import Directive

class Failing:
    def __init__(self, how):
        self.how = how

    def begin(self):
        return time.monotonic() + 4

    def decide(self, seen, until_s):
        if time.monotonic() < until_s:
            return Directive(Mode.SYNC), until_s
        if self.how == "raises":
            raise RuntimeError("no decision")
        if self.how == "hangs":
            while True:
                time.sleep(60)
        return "async", until_s

def make(options):
    return Failing(options["how"])
"""


def _installed(folder: Path, code: str, entry: str) -> str:
    """A package with a policy; returns the path to search."""
    folder.mkdir()
    module = entry.partition("=")[2].strip().partition(":")[0]
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mirrord.policies]\n{entry}\n")
    return f"{folder}:{ROOT}"


def _with_policy(home: Home, policy: str, option: str) -> None:
    file = home.folder / "etc/mirrors.d/db.toml"
    text = file.read_text().replace('policy = "sync"', f'policy = "{policy}"')
    file.write_text(f"{text}\n[policy_options]\n{option}\n")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "RuntimeError: no decision"),
        ("hangs", "it has not answered for 1 s"),
        ("nonsense", "TypeError: decide returned"),
    ],
)
def test_a_policy_that_fails_changes_nothing_but_an_alarm(
    mirror: Mirror, tmp_path: Path, how: str, says: str
) -> None:
    path = _installed(tmp_path / "package", _PLUGIN, "failing = failing:make")
    mirror.home.environment["PYTHONPATH"] = path
    mirror.initialize()
    _with_policy(mirror.home, "failing", f'how = "{how}"')
    mirror.home.start_daemon()
    mirror.home.run("serve", "db")
    assert mirror.home.status()["problems"] == []
    writer = Writer(Served(mirror), _BLOCKS)
    writer.start()
    wait_until(lambda: mirror.home.status()["problems"] != [], "the alarm", 60)
    [problem] = mirror.home.status()["problems"]
    assert problem.startswith("the policy 'failing' failed, what it said last holds: ")
    assert says in problem
    assert _primary(mirror)["mode"] == "sync" and _is(mirror, "in-sync")
    before = writer.answered
    wait_until(lambda: writer.answered > before + 50, "writes")
    mirror.home.run("mode", "db", "sync")
    wait_until(lambda: mirror.home.status()["problems"] == [], "the end of the alarm", 60)
    writer.finish()
    assert writer.errors == []


def test_the_policy_of_the_document_is_used(mirror: Mirror, tmp_path: Path) -> None:
    page = (ROOT / "docs/policies.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    [entry] = [line for line in page.splitlines() if line.startswith("patient = ")]
    [option] = [line for line in page.splitlines() if line.startswith("away = ")]
    path = _installed(tmp_path / "package", code, entry.replace('"', ""))
    mirror.home.environment["PYTHONPATH"] = path
    mirror.initialize()
    _with_policy(mirror.home, "patient", option.replace("30s", "5s"))
    mirror.home.start_daemon()
    mirror.home.run("serve", "db")
    wait_until(lambda: _is(mirror, "in-sync"), "sync", 60)
    writer = Writer(Served(mirror), _BLOCKS)
    writer.start()
    wait_until(lambda: writer.answered > 50, "writes")
    secondary = mirror.destination.pid or 0
    os.kill(secondary, signal.SIGSTOP)  # clients wait
    time.sleep(2.5)
    os.kill(secondary, signal.SIGCONT)
    wait_until(lambda: _primary(mirror).get("mode") == "semi-sync", "the policy", 60)
    wait_until(lambda: _is(mirror, "in-sync"), "the return", 60)
    writer.finish()
    # (The daemon's last look may be from before.)
    wait_until(lambda: mirror.home.status()["problems"] == [], "a look at it", 60)
