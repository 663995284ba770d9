"""After a break, without a daemon: which end serves, and what a lost or older catalogue does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mirrord.system import native
from tests.live.command import Mirror, qemu_io
from tests.live.lab import wait_until


def test_the_destination_is_started_to_serve_after_a_break(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    mirror.home.run("break", "db")
    mirror.destination.kill()
    assert f"'db' ({mirror.ends[1]}) is served" in mirror.home.run("serve", "db")


def test_a_source_that_does_not_know_of_the_break_is_not_served(mirror: Mirror) -> None:
    """What its clients wrote would be lost by `reverse`."""
    home = mirror.home
    mirror.initialize("--policy", "sync")
    mirror.source.kill()
    home.run("break", "db")
    mirror.destination.kill()
    words = [native.live_program(), "run", "--config", "config"]
    with subprocess.Popen(words, cwd=mirror.source.store, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: mirror.source.status().get("role") == "primary", "the source")
        kept = mirror.destination.path.rename(mirror.destination.path.with_name("kept"))
        assert f"{mirror.destination.path}: No such file" in home.refused("serve", "db")
        kept.rename(mirror.destination.path)
        assert f"'db' ({mirror.ends[1]}) is served" in home.run("serve", "db")
        process.kill()


@pytest.mark.parametrize("verb", ["resync", "reverse"])
def test_a_catalogue_that_is_lost_after_a_break(mirror: Mirror, verb: str) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    assert "'mirrord resync db' copies" in home.run("initialize", "db", status=1)
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    for file in (home.folder / "state").glob("catalogue*"):
        file.unlink()
    said = home.run("initialize", "db", status=1)
    assert "it is broken off" in said and "'mirrord reverse db' the destination" in said
    assert home.run("break", "db").startswith("'db' is broken off already")
    assert "is lost" in home.run(verb, "db", status=1)
    home.run(verb, "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), f"read -P {int(verb == 'reverse')} 0 64k")
    mirror.assert_equal()


@pytest.mark.parametrize("verb", ["resync", "reverse"])
def test_a_catalogue_that_is_lost_after_a_reverse_and_a_break(mirror: Mirror, verb: str) -> None:
    """The end that is fenced then counts as the destination."""
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("reverse", "db", "--yes")
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    for end in (mirror.source, mirror.destination):
        end.kill()
    shutil.rmtree(home.folder / "state")
    for _ in range(2):
        assert "it is broken off" in home.refused("initialize", "db")
    assert "is lost" in home.run(verb, "db", status=1)
    home.run(verb, "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), f"read -P {int(verb == 'resync')} 0 64k")
    mirror.assert_equal()


def test_an_older_catalogue_that_does_not_know_of_a_reverse(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    shutil.copytree(home.folder / "state", home.folder / "older")
    home.run("reverse", "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    shutil.rmtree(home.folder / "state")
    (home.folder / "older").rename(home.folder / "state")
    for words in (["resync", "db"], ["resync", "db", "--yes"]):
        said = home.run(*words, status=1)
        assert "the destination is mirrored to the source" in said
        assert "'mirrord reverse db' records the roles" in said
    home.run("reverse", "db", "--yes")
    assert home.status()["source"] == mirror.ends[1]
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 64k")
    mirror.assert_equal()


@pytest.mark.parametrize("is_lost", [False, True])
def test_break_without_the_record_of_a_reverse(mirror: Mirror, is_lost: bool) -> None:
    """The catalogue is lost, and no process runs; or it is an older one, and both do."""
    home = mirror.home
    mirror.initialize("--policy", "sync")
    shutil.copytree(home.folder / "state", home.folder / "older")
    home.run("reverse", "db", "--yes")
    shutil.rmtree(home.folder / "state")
    if is_lost:
        mirror.source.kill()
        mirror.destination.kill()
    else:
        (home.folder / "older").rename(home.folder / "state")
    said = home.refused("break", "db")
    assert f"the roles were changed: {mirror.ends[0]} is the secondary" in said
    assert home.status()["source"] == mirror.ends[1]
    assert mirror.destination.status()["role"] == "primary"
    assert f"'db' is broken off: {mirror.ends[0]} is a primary" in home.run("break", "db")
    assert mirror.destination.status()["role"] == "fenced"


def test_initialize_without_the_record_of_a_reverse(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("reverse", "db", "--yes")
    mirror.source.kill()
    mirror.destination.kill()
    shutil.rmtree(home.folder / "state")
    assert "the roles were changed" in home.refused("initialize", "db")
    assert "it is already initialized" in home.refused("initialize", "db")
    home.run("resync", "db")
    assert home.status()["source"] == mirror.ends[1]


def test_release_and_delete_without_the_record_of_a_resync(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("break", "db")
    shutil.copytree(home.folder / "state", home.folder / "older")
    home.run("resync", "db", "--yes")
    home.run("serve", "db")
    shutil.rmtree(home.folder / "state")
    (home.folder / "older").rename(home.folder / "state")
    for verb in ("release", "delete"):
        assert "is not possible now: it is not broken off" in home.refused(verb, "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    mirror.assert_equal()


def test_delete_names_the_image_of_the_primary(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    mirror.home.run("reverse", "db", "--yes")
    assert f"The primary was {mirror.ends[1]}." in mirror.home.run("delete", "db", "--yes")


def test_serve_without_the_records_of_the_source_names_break(mirror: Mirror) -> None:
    mirror.initialize("--policy", "sync")
    shutil.rmtree(mirror.source.store)
    wait_until(lambda: mirror.source.pid is None, "the end of its process")
    assert "Without the source: 'mirrord break db'" in mirror.home.run("serve", "db", status=1)
    mirror.home.run("break", "db")
    mirror.home.run("serve", "db")


def test_break_says_that_it_is_not_known_what_is_missing(mirror: Mirror) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("break", "db")
    # A `resync` that was interrupted: the source has taken over, and nothing was copied.
    mirror.source.ask("reclaim")
    mirror.source.ask("mode", "async")
    wait_until(lambda: mirror.destination.status()["role"] == "fenced", "the fence")
    mirror.destination.ask("rejoin")
    wait_until(lambda: mirror.destination.status()["role"] == "secondary", "the role")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    mirror.source.kill()
    assert "writes that the source has acknowledged may be missing" in home.run("break", "db")


def test_break_of_an_end_that_an_interrupted_resync_has_fenced(mirror: Mirror) -> None:
    """Then the source is lost: the destination has what was written there."""
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 1 0 64k")
    mirror.source.ask("reclaim")
    wait_until(lambda: mirror.destination.status()["role"] == "fenced", "the fence")
    mirror.source.kill()
    mirror.source.path.rename(mirror.source.path.with_name("lost"))
    assert "does not answer" in home.run("break", "db")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 1 0 64k")


def test_a_source_that_hangs_does_not_delay_the_service_for_long(
    mirror: Mirror, tmp_path: Path
) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("serve", "db")
    source = mirror.source.pid
    assert source is not None
    os.kill(source, signal.SIGSTOP)
    try:
        home.run("break", "db")
        began_s = time.monotonic()
        home.run("serve", "db", "--socket", f"{tmp_path}/other")
        assert time.monotonic() - began_s < 45
    finally:
        os.kill(source, signal.SIGCONT)
