"""The life of a live mirror by the command line, both ends on one host."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mirrord.system import native
from tests.live.command import WORDS, Image, Mirror, qemu_io
from tests.live.lab import BLOCK, End, Writer, stamp, wait_until


class Served(End):
    """What the lab's client and writer need of an end that a command serves."""

    def __init__(self, mirror: Mirror) -> None:
        self.nbd = mirror.home.folder / "run/db.nbd"


def _wait_for_writes(writer: Writer) -> None:
    before = writer.answered
    wait_until(lambda: writer.answered > before + 100, "writes")


def test_from_create_to_break_and_back(mirror: Mirror) -> None:
    home = mirror.home
    data = random.Random(1).randbytes(8 << 20)
    mirror.source.path.write_bytes(data)
    mirror.initialize("--policy", "sync")
    assert mirror.destination.path.read_bytes() == data
    assert mirror.destination.path.stat().st_mode & 0o777 == 0o600
    said = home.run("serve", "db")
    assert home.uri() in said
    assert "already" in home.run("serve", "db")
    assert (
        "size: 8388608"
        in subprocess.run(
            ["nbdinfo", home.uri()], capture_output=True, text=True, check=True
        ).stdout
    )
    qemu_io(home.uri(), "write -P 1 0 1M")
    mirror.assert_equal()
    assert "are equal: 8.00 MiB compared" in home.run("verify", "db")
    with mirror.destination.path.open("r+b") as image:
        image.seek(1 << 20)
        image.write(b"other")
    assert "differ in 4.00 KiB" in home.refused("verify", "db")
    qemu_io(home.uri(), "write -P 1 1M 4k")
    # The destination becomes a primary, and the clients of the source are disconnected.
    assert "is fenced" in home.run("break", "db")
    assert home.status()["state"] == "broken-off"
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 1M", "write -P 2 0 64k")
    assert home.run("break", "db").startswith("'db' is broken off already")
    # What was written there is lost.
    assert "confirmation required" in home.refused("resync", "db")
    home.run("resync", "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 64k", "write -P 3 0 64k")
    mirror.assert_equal()
    # A planned switchover, and back.
    home.run("reverse", "db", "--yes")
    assert home.status()["source"] == mirror.ends[1]
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 3 0 64k", "write -P 4 0 64k")
    home.run("reverse", "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 4 0 64k")
    mirror.assert_equal()
    events = home.run("history", "db")
    for text in ("initialized: ", "broken off, epoch 2", "resynchronized", "reversed, epoch"):
        assert text in events
    assert "not broken off" in home.refused("delete", "db")
    home.run("delete", "db", "--yes")
    assert {path.name for path in mirror.source.path.parent.iterdir()} == {"db.img"}
    assert mirror.source.pid is None and mirror.destination.pid is None


def test_after_a_break_the_destination_wins_by_reverse(mirror: Mirror) -> None:
    mirror.initialize()
    home = mirror.home
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 1M")
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 2 512k 1M")
    home.run("reverse", "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 512k", "read -P 2 512k 1M")
    mirror.assert_equal()
    found = home.status()
    assert (found["state"], found["source"]) == ("mirrored", mirror.ends[1])


def test_it_is_used_while_the_first_copy_is_made(mirror: Mirror) -> None:
    home, size = mirror.home, 256 << 20
    os.truncate(mirror.source.path, size)
    mirror.source.path.write_bytes(random.Random(2).randbytes(1 << 20) * (size >> 20))
    mirror.create()
    home.run("throttle", "db", "8MiB/s")
    done: list[str] = []
    copy = threading.Thread(target=lambda: done.append(home.run("initialize", "db")))
    copy.start()
    wait_until(lambda: mirror.source.pid is not None, "the process")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 5 0 4M", f"write -P 6 {size - (4 << 20)} 4M")
    is_early = not done
    mirror.source.ask("copy-rate", str(size))
    copy.join(60)
    assert done and is_early
    mirror.assert_equal()


def test_an_interrupted_first_copy_is_continued(mirror: Mirror) -> None:
    mirror.source.path.write_bytes(random.Random(2).randbytes(1 << 20) * 64)
    mirror.create()
    copy = subprocess.Popen(
        [sys.executable, "-m", "mirrord", "initialize", "db"], env=mirror.home.environment
    )
    wait_until(lambda: mirror.destination.pid is not None, "the process")
    copy.kill()
    copy.wait()
    mirror.source.kill()
    mirror.destination.kill()
    mirror.home.run("initialize", "db")
    mirror.home.run("serve", "db")
    mirror.assert_equal()


def test_break_without_the_source(mirror: Mirror) -> None:
    mirror.initialize()
    home = mirror.home
    home.run("serve", "db")
    writer = Writer(Served(mirror), blocks=500)
    writer.start()
    wait_until(lambda: writer.answered > 500, "writes")
    mirror.source.kill()
    said = home.run("break", "db")
    assert "does not answer" in said
    writer.finish()
    writer.check(mirror.destination.path.read_bytes())
    assert any("mirrord-live is not running" in each for each in home.status()["problems"])
    # Its process is started by the next command that needs it.
    home.run("reverse", "db", "--yes")
    home.run("serve", "db")
    mirror.assert_equal()


@pytest.mark.parametrize("end", ["source", "destination"])
def test_a_killed_process_loses_nothing(mirror: Mirror, end: str) -> None:
    mirror.initialize()
    home = mirror.home
    home.run("serve", "db")
    writer = Writer(Served(mirror), blocks=500)
    writer.start()
    for _ in range(2):
        _wait_for_writes(writer)
        getattr(mirror, end).kill()
        home.start_daemon()  # it restarts what ended
        wait_until(lambda: getattr(mirror, end).pid is not None, "the process again", 60)
        home.stop_daemon()
    wait_until(home.is_in_sync, "sync", 60)
    writer.finish()
    assert not writer.errors
    mirror.assert_equal()
    writer.check(mirror.destination.path.read_bytes())


def test_the_daemon_is_restarted_while_clients_write(mirror: Mirror) -> None:
    home = mirror.home
    home.start_daemon()
    mirror.initialize()
    home.run("serve", "db")
    pids = mirror.source.pid, mirror.destination.pid
    writer = Writer(Served(mirror), blocks=500)
    writer.start()
    for number in (9, 15):
        home.stop_daemon(number)
        _wait_for_writes(writer)
        home.start_daemon()
    assert home.status()["live"]["source"]["left_sync"] == 0
    assert (mirror.source.pid, mirror.destination.pid) == pids
    writer.finish()
    assert not writer.errors
    mirror.assert_equal()


def test_a_stop_of_the_daemon_ends_a_slow_comparison(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize()
    file = home.folder / "etc/mirrors.d/db.toml"
    file.write_text(f'verify_rate = "32KiB/s"\n{file.read_text()}')  # minutes
    home.start_daemon()
    words = [*WORDS, "verify", "db"]
    with subprocess.Popen(words, env=home.environment, stderr=subprocess.PIPE, text=True) as verify:
        wait_until(lambda: mirror.source.status()["verify"]["state"] == "running", "the comparison")
        home.stop_daemon()
        _, said = verify.communicate(timeout=60)
    assert verify.returncode == 1
    assert said.startswith("error: the verification was ended: the daemon is stopping")
    assert "unexpected" not in (home.folder / "daemon.log").read_text()


def test_break_during_a_resync_goes_back(mirror: Mirror) -> None:
    home, size = mirror.home, 256 << 20
    os.truncate(mirror.source.path, size)
    mirror.initialize("--policy", "async")
    home.run("serve", "db")
    qemu_io(home.uri(), f"write -P 1 0 {size}")
    copy = subprocess.Popen([*WORDS, "resync", "db"], env=home.environment, stderr=subprocess.PIPE)

    def is_under_way() -> bool:
        with mirror.destination.path.open("rb") as image:
            return any(image.read(4096))

    wait_until(is_under_way, "the resync")
    said = home.run("break", "db")
    assert "went back to its last consistent image" in said
    assert copy.wait(30) == 1
    assert copy.stderr is not None and b"abort" in copy.stderr.read()
    copy.stderr.close()
    home.run("serve", "db")
    qemu_io(home.uri(), f"read -P 0 0 {size}")


def test_in_the_foreground_it_is_served_until_ctrl_c(mirror: Mirror) -> None:
    mirror.initialize()
    home = mirror.home
    words = [*WORDS, "serve", "db", "--foreground"]
    with subprocess.Popen(words, env=home.environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"is served at" in process.stdout.readline()
        qemu_io(home.uri(), "write -P 1 0 64k")
        process.send_signal(signal.SIGINT)
        assert b"not served any more" in process.stdout.readline()
        assert process.wait(30) == 0
    assert mirror.source.pid is not None
    qemu_io(home.uri(), "read 0 4k", status=1)


def test_modes(mirror: Mirror) -> None:
    mirror.initialize("--policy", "async")
    home = mirror.home
    wait_until(lambda: home.status()["live"]["source"]["state"] == "out-of-sync", "the mode")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    assert mirror.destination.path.read_bytes()[:BLOCK] == bytes(BLOCK)
    assert home.status()["healthy"]
    assert "is sync (before: async)" in home.run("mode", "db", "sync")
    wait_until(home.is_in_sync, "sync")
    mirror.assert_equal()
    assert 'policy = "sync"' in (home.folder / "etc/mirrors.d/db.toml").read_text()
    home.run("mode", "db", "strict-sync")
    mirror.destination.kill()
    found = home.status()
    assert found["live"]["source"]["mode"] == "strict-sync" and not found["healthy"]
    assert "'fast' is not a mode" in home.refused("mode", "db", "fast", status=2)


def test_only_what_a_command_copied_is_its_result(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    assert ": 0 B copied; both ends are in sync" in mirror.home.run("resync", "db")


def test_semi_sync(mirror: Mirror) -> None:
    mirror.initialize("--policy", "semi-sync", "--window", "64KiB")
    home = mirror.home

    def source() -> Any:
        return home.status()["live"]["source"]

    wait_until(lambda: source()["state"] == "semi-sync", "semi-sync")
    assert source()["window_bytes"] == 64 << 10 and home.status()["healthy"]
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    assert " of 64.0 KiB" in home.run("status", "db")
    assert "cannot be compared in semi-sync" in home.refused("verify", "db")
    mirror.destination.kill()
    qemu_io(home.uri(), "write -P 2 0 64k")
    assert source()["lag_bytes"] == 64 << 10
    home.run("mode", "db", "async")
    qemu_io(home.uri(), "write -P 3 64k 64k")
    home.run("resync", "db")  # it starts the process, too
    home.run("mode", "db", "semi-sync")
    wait_until(lambda: source()["state"] == "semi-sync" and source()["connected"], "semi-sync")
    home.run("reverse", "db", "--yes")
    assert source()["role"] == "primary" and source()["window_bytes"] == 64 << 10
    wait_until(lambda: source()["state"] == "semi-sync", "semi-sync in the other direction")


def test_what_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    home, (source, destination) = mirror.home, mirror.ends
    said = home.refused("create", "x", f"image:{tmp_path}/none", destination)
    assert "the image does not exist" in said
    other = tmp_path / "other.img"
    other.write_bytes(bytes(4 << 20))
    said = home.refused("create", "x", source, f"image:{other}")
    assert "differ in size" in said and "8388608" in said
    other.write_bytes(b"x" * (8 << 20))
    assert "not empty" in home.refused("create", "x", source, f"image:{other}")
    with mirror.source.path.open("r+b"):
        said = home.refused("create", "x", source, destination)
        assert "in use" in said and f"process {os.getpid()}" in said
    said = home.refused("create", "x", source, destination, "--schedule", "every 5m", status=2)
    assert "'schedule' is not possible for images" in said
    said = home.refused("create", "x", "block:/srv/a", "block:/srv/b", "--policy", "sync", status=2)
    assert "is for images" in said
    mirror.create()
    for words in (["serve", "db"], ["unserve", "db"]):
        assert "the mirror is not initialized" in home.refused(*words)
    assert "never initialized" in home.refused("break", "db")
    home.run("initialize", "db")
    assert "for mirrors by snapshots" in home.refused("update", "db")
    assert "has no snapshots" in home.refused("break", "db", "--snapshot", "x")
    assert home.status()["healthy"]
    said = home.refused("serve", "db", "--socket", str(mirror.source.path))
    assert "not a socket" in said and mirror.source.path.exists()
    assert "not an address and a port" in home.refused("serve", "db", "--listen", "1", status=2)
    assert "--allow" in home.run("serve", "db", "--listen", "0.0.0.0:1", status=1)
    words = ["serve", "db", "--listen", "0.0.0.0:1", "--allow"]
    assert "not a network" in home.refused(*words, "here", status=2)
    with Occupied(tmp_path / "used.sock") as used:
        assert "in use" in home.refused("serve", "db", "--socket", str(used.path))
        assert "in use" in home.refused("serve", "db", "--listen", f"127.0.0.1:{used.port}")
    assert "is not served" in home.run("unserve", "db")


class Occupied:
    """A socket and a port that another program uses."""

    def __init__(self, path: Path) -> None:
        import socket

        self.path = path
        self._sockets = [socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))]
        self._sockets[0].bind(str(path))
        self._sockets[0].listen()
        self.port = self._sockets[1].getsockname()[1]

    def __enter__(self) -> Occupied:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()


def test_unserve_disconnects(mirror: Mirror) -> None:
    mirror.initialize()
    home = mirror.home
    home.run("serve", "db")
    writer = Writer(Served(mirror), blocks=100)
    writer.start()
    wait_until(lambda: writer.answered > 50, "writes")
    assert "disconnected" in home.run("unserve", "db")
    assert not (home.folder / "run/db.nbd").exists()
    before = writer.answered
    # A restarted process does not serve either.
    mirror.source.kill()
    home.start_daemon()
    wait_until(lambda: mirror.source.pid is not None, "the process", 60)
    assert writer.answered == before
    home.run("serve", "db")
    wait_until(lambda: writer.answered > before, "writes again")
    writer.finish()
    assert stamp(0, 1)  # the writer's blocks are checked here
    writer.check(mirror.source.path.read_bytes())


def test_a_replica_that_was_made_a_primary_is_never_overwritten(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 7 0 64k")
    home.run("release", "db")
    assert "the destination is not empty" in home.refused("initialize", "db")
    qemu_io(home.uri(), "read -P 7 0 64k")


def test_what_differs_is_repaired_and_the_rates_are_those_of_the_definition(mirror: Mirror) -> None:
    home = mirror.home
    with mirror.source.path.open("r+b") as image:
        image.write(random.Random(1).randbytes(8 << 20))
    mirror.create("--policy", "sync")
    home.run("throttle", "db", "4MiB/s")
    began_s = time.monotonic()
    home.run("initialize", "db")
    assert time.monotonic() - began_s > 1.5
    home.run("throttle", "db", "unlimited")
    definition = home.folder / "etc/mirrors.d/db.toml"
    text = definition.read_text()
    definition.write_text(text.replace("[site.", 'verify_rate = "4MiB/s"\n[site.', 1))
    with mirror.destination.path.open("r+b") as image:
        image.seek(5 << 20)
        image.write(b"wrong")
    began_s = time.monotonic()
    assert "the images differ in 4.00 KiB" in home.refused("verify", "db")
    assert time.monotonic() - began_s > 1.5
    definition.write_text(text)
    assert "4.00 KiB" in home.run("verify", "db", "--repair")
    assert "Both images of 'db' are equal" in home.run("verify", "db", "--repair")
    assert mirror.source.path.read_bytes() == mirror.destination.path.read_bytes()


def test_a_rate_applies_to_a_copy_in_progress_and_after_a_restart(mirror: Mirror) -> None:
    home = mirror.home
    mirror.create("--policy", "sync")
    home.run("throttle", "db", "100KiB/s")
    home.run("initialize", "db")

    def rate() -> int:
        source = home.status()["live"]["source"]
        return int(source["copy_rate"]) if source["running"] else -1

    assert rate() == 1 << 20
    mirror.source.kill()
    # (As systemd does it, which does not wait for the daemon.)
    words = [native.live_program(), "run", "--config", "config"]
    with subprocess.Popen(words, cwd=mirror.source.store, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: mirror.source.pid is not None, "the process")
        assert rate() == 1 << 20
        process.kill()
    home.start_daemon()
    mirror.source.kill()
    wait_until(lambda: rate() == 1 << 20, "the rate after a restart", 60)
    home.run("throttle", "db", "8MiB/s")
    assert rate() == 8 << 20


def test_an_end_has_the_settings_of_the_definition_as_soon_as_it_is_a_primary(
    mirror: Mirror,
) -> None:
    """(No daemon runs, which would apply them a moment later.)"""
    home = mirror.home
    mirror.create("--policy", "sync", "--window", "64KiB")
    definition = home.folder / "etc/mirrors.d/db.toml"
    text = definition.read_text()
    changed = 'ack = "durable"\ncompress = false\nmerge_above = "1MiB"\n[site.'
    definition.write_text(text.replace("[site.", changed, 1))

    def settings(end: Image) -> list[Any]:
        found = end.status()
        return [found[key] for key in ("durable", "compress", "merge_above_bytes", "window_bytes")]

    home.run("initialize", "db")
    wanted = [True, False, 1 << 20]
    assert settings(mirror.source)[:3] == wanted
    home.run("mode", "db", "semi-sync")  # it has a window
    home.run("break", "db")
    assert settings(mirror.destination) == [*wanted, 64 << 10]
    # Changed while nothing tells the ends.
    definition.write_text(definition.read_text().replace("compress = false", "compress = true"))
    home.run("reverse", "db", "--yes")
    wanted[1] = True
    assert settings(mirror.destination) == [*wanted, 64 << 10]
    mirror.source.ask("break")
    assert settings(mirror.source) == [*wanted, 64 << 10]


def test_another_file_in_the_place_of_an_image_is_not_mirrored(mirror: Mirror) -> None:
    mirror.initialize()
    home, image, pid = mirror.home, mirror.source.path, mirror.source.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mirror.source.pid is None, "the end of its process")
    kept = image.rename(image.with_name("kept"))
    image.write_bytes(bytes(kept.stat().st_size))
    said = home.refused("resync", "db", "--yes")
    assert "another file has taken the place of the image" in said
    kept.rename(image)
    home.run("resync", "db", "--yes")
    copy = mirror.destination.path
    wait_until(lambda: copy.read_bytes() == image.read_bytes(), "equal images")


def test_an_image_that_was_deleted_is_named_with_what_to_do(mirror: Mirror) -> None:
    mirror.initialize()
    home, pid = mirror.home, mirror.destination.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mirror.destination.pid is None, "the end of its process")
    mirror.destination.path.unlink()
    said = home.refused("resync", "db", "--yes")
    assert f"{mirror.destination.path}: No such file" in said and "does not exist" in said
    home.run("delete", "db", "--yes")
    mirror.initialize()
    assert mirror.destination.path.exists()
