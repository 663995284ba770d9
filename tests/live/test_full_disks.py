"""Images on a file system that is full: what has its space already goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.command import Image, Mirror, qemu_io
from tests.live.lab import small_file_system, wait_until


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "small", "40m") as made:
        yield made


@pytest.fixture(params=["source", "destination"])
def end(mirror: Mirror, small: Path, request: pytest.FixtureRequest) -> Iterator[Image]:
    """The image at one end of the mirror, which is served and in sync; its disk is full."""
    made = Image(small / "db.img")
    if request.param == "source":
        mirror.source = made
        with made.path.open("wb") as file:
            file.truncate(8 << 20)
    else:
        mirror.destination = made
    mirror.ends = [f"image:{one.path}" for one in (mirror.source, mirror.destination)]
    mirror.initialize("--policy", "sync")
    mirror.home.run("serve", "db")
    with (made.store / "log").open("ab") as log:
        log.write(b"\n" * (-log.tell() % 4096))  # the next line needs a block of its own
    with suppress(OSError), (small / "full").open("wb", buffering=0) as full:
        while full.write(bytes(4096)):
            pass
    yield made
    mirror.close()


def test_a_log_that_has_no_space_does_not_end_the_process(mirror: Mirror, end: Image) -> None:
    pid = end.pid
    is_source = end is mirror.source
    said = qemu_io(mirror.home.uri(), "write -P 1 0 1M", status=int(is_source))
    assert is_source == ("No space left on device" in said)
    assert end.pid == pid
    end.path.parent.joinpath("full").unlink()
    qemu_io(mirror.home.uri(), "write -P 2 0 1M")
    wait_until(mirror.home.is_in_sync, "sync")
    mirror.assert_equal()


def test_an_end_is_started_again(mirror: Mirror, end: Image) -> None:
    end.kill()
    verb = "serve" if end is mirror.source else "break"
    mirror.home.run(verb, "db")
    assert end.status()["role"] == "primary"


def test_an_end_that_has_no_space_for_its_last_words(mirror: Mirror, end: Image) -> None:
    end.kill()
    kept = end.path.rename(end.path.with_name("kept"))
    said = mirror.home.refused("resync", "db")
    assert "mirrord-live did not start: it ended: it gave no reason" in said
    kept.rename(end.path)
    mirror.home.run("resync", "db")
