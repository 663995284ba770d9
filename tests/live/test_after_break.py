"""Which end serves after a break while one of the processes does not run; no daemon restarts it."""

from __future__ import annotations

import subprocess

from mirrord.system import native
from tests.live.command import Mirror
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
