"""A live mirror with a definition and a catalogue on two hosts: what one of them changes is not in
the catalogue of the other one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.sealed import unsealed
from tests.live.command import Home, Mirror, qemu_io
from tests.live.lab import wait_until
from tests.support.service import takes_clients


@pytest.fixture
def other(mirror: Mirror, tmp_path: Path) -> Home:
    """A second host with the definition of the mirror, which is initialized."""
    mirror.initialize("--policy", "sync")
    made = Home(tmp_path / "other")
    shutil.copytree(mirror.home.folder / "etc/mirrors.d", made.folder / "etc/mirrors.d")
    return made


def _is_working(mirror: Mirror, found: dict[str, Any]) -> bool:
    """Whether the status says that the second image is mirrored to the first one."""
    return (found["state"], found["source"]) == ("mirrored", mirror.ends[1])


def test_the_status_has_the_roles_that_the_other_host_has_changed(
    mirror: Mirror, other: Home
) -> None:
    other.run("reverse", "db", "--yes")
    assert _is_working(mirror, mirror.home.status())
    assert mirror.home.is_in_sync()
    other.run("reverse", "db", "--yes")
    assert mirror.home.status()["source"] == mirror.ends[0]
    other.run("break", "db")
    assert mirror.home.status()["state"] == "broken-off"


@pytest.mark.parametrize("verb", ["break", "release", "delete", "initialize"])
def test_a_catalogue_without_the_reverse_that_ended_a_break(
    mirror: Mirror, other: Home, verb: str
) -> None:
    """The mirror works, in the other direction."""
    mirror.home.run("break", "db")
    other.run("reverse", "db", "--yes")
    other.run("serve", "db")
    qemu_io(other.uri(), "write -P 1 0 64k")
    said = mirror.home.refused(verb, "db")
    wanted = {"break": "the roles were changed", "initialize": "it is already initialized"}
    assert wanted.get(verb, "it is not broken off") in said
    assert _is_working(mirror, mirror.home.status())
    qemu_io(other.uri(), "write -P 2 0 64k", "flush")
    assert mirror.source.path.read_bytes() == mirror.destination.path.read_bytes()


def test_a_reverse_after_the_break_of_the_other_host_says_what_is_lost(
    mirror: Mirror, other: Home
) -> None:
    mirror.home.run("serve", "db")
    other.run("break", "db")
    said = mirror.home.run("reverse", "db", status=1)
    assert f"What was written at {mirror.ends[0]} since the break is lost" in said
    # A break that is there already is recorded.
    assert "is a primary of its own" in mirror.home.run("break", "db")
    assert "is broken off already" in mirror.home.run("break", "db")


def test_a_definition_with_another_image_leaves_the_mirror_alone(
    mirror: Mirror, other: Home, tmp_path: Path
) -> None:
    mirror.home.run("serve", "db")
    qemu_io(mirror.home.uri(), "write -P 1 0 64k")
    file = other.folder / "etc/mirrors.d/db.toml"
    file.write_text(file.read_text().replace("b/db.img", "b/wrong.img"))
    before = [(end.pid, (end.store / "end.json").read_bytes()) for end in (mirror.source,)]
    said = other.refused("initialize", "db")
    assert "the image is mirrored already" in said and f"{tmp_path}/b/wrong.img has no" in said
    assert [(end.pid, (end.store / "end.json").read_bytes()) for end in (mirror.source,)] == before
    mirror.source.kill()
    assert "the image is mirrored already" in other.refused("initialize", "db")
    qemu_io(mirror.home.uri(), "write -P 2 0 64k")
    mirror.assert_equal()


def test_what_is_left_of_a_mirror_that_the_other_host_has_deleted(
    mirror: Mirror, other: Home
) -> None:
    mirror.home.run("serve", "db")
    other.run("delete", "db", "--yes")
    assert "the records of the mirror are missing" in mirror.home.run("status", "db")
    assert "has deleted the mirror: 'mirrord delete db'" in mirror.home.run("serve", "db", status=1)
    mirror.home.run("delete", "db", "--yes")
    mirror.home.run("create", "db", *mirror.ends[:1], f"image:{mirror.home.folder}/new.img")


def _cut_link(mirror: Mirror) -> None:
    """The ends do not find each other any more, and the destination is not running."""
    mirror.destination.kill()
    record = mirror.destination.store / "end.json"
    record.write_text(json.dumps({**unsealed(record.read_text()), "peer": "127.0.0.1:9"}))
    mirror.source.ask("peer", "127.0.0.1:9")


def test_a_break_disconnects_clients_of_a_source_that_the_link_does_not_reach(
    mirror: Mirror, other: Home
) -> None:
    """The management connection reaches it."""
    mirror.home.run("serve", "db")
    _cut_link(mirror)
    said = other.run("break", "db")
    assert f"Warning: {mirror.ends[0]} does not reach this end and has not noticed yet." in said
    assert "Its clients are disconnected." in said
    assert mirror.source.status()["role"] == "primary"
    qemu_io(mirror.home.uri(), "write -P 1 0 64k", status=1)
    other.run("serve", "db")
    qemu_io(other.uri(), "write -P 2 0 64k")
    other.run("reverse", "db", "--yes")  # the addresses are told again
    assert mirror.source.path.read_bytes() == mirror.destination.path.read_bytes()


def test_a_daemon_disconnects_clients_of_a_source_that_does_not_know_of_the_break(
    mirror: Mirror, other: Home
) -> None:
    """It can be managed again, and the link is still cut."""
    mirror.home.run("serve", "db")
    _cut_link(mirror)
    pid = mirror.source.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "does not answer" in other.run("break", "db")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert takes_clients(mirror.home.folder / "run/db.nbd")
    mirror.home.start_daemon()
    wait_until(lambda: not takes_clients(mirror.home.folder / "run/db.nbd"), "the end of service")
    assert mirror.source.status()["role"] == "primary"
    other.run("serve", "db", "--socket", str(other.folder / "s"))
    qemu_io(f"nbd+unix:///?socket={other.folder}/s", "write -P 2 0 64k")


SCHEDULED = """policy = "scheduled"

[scheduled]
hours = "Mon-Sun"
inside = "semi-sync"
outside = "semi-sync"
"""


@pytest.mark.parametrize("policy", ['policy = "sync"', SCHEDULED])
def test_the_daemon_of_another_host_does_not_undo_a_mode(
    mirror: Mirror, other: Home, policy: str
) -> None:
    home = mirror.home
    file = home.folder / "etc/mirrors.d/db.toml"
    text = file.read_text().replace('policy = "sync"\n', "")
    head, _, rest = policy.partition("\n")
    file.write_text(f"{head}\n{text}\n{rest}")
    wanted = "sync" if not rest else "semi-sync"
    home.start_daemon()
    other.start_daemon()

    def is_in(mode: str) -> bool:
        return bool(mirror.source.status()["mode"] == mode)

    try:
        home.run("resync", "db")
        wait_until(lambda: is_in(wanted), wanted)
        other.run("mode", "db", "async")
        for _ in range(16):  # each daemon looks every 3 seconds
            assert is_in("async")
            time.sleep(0.5)
        assert home.status()["problems"] == []
        assert "  mode         async (set by " in home.run("status", "db")
        assert "  mode         async\n" in other.run("status", "db")
        home.run("resync", "db")
        wait_until(lambda: is_in(wanted), "the policy of the host that ran the last command")
        for _ in range(16):
            assert is_in(wanted)
            time.sleep(0.5)
    finally:
        other.stop_daemon()


def test_the_daemon_lets_a_destination_that_was_broken_off_accept_writes(mirror: Mirror) -> None:
    mirror.initialize("--policy", "strict-sync")
    mirror.home.start_daemon()
    mirror.home.run("break", "db")
    mirror.home.run("serve", "db")
    for pattern in range(3):
        qemu_io(mirror.home.uri(), f"write -P {pattern} 0 64k")
        time.sleep(2)  # the daemon looks every 3 seconds
    mirror.home.run("reverse", "db", "--yes")
    assert mirror.destination.status()["mode"] == "strict-sync"
