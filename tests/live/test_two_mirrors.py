"""Two mirrors that name one image: what is done with one of them does nothing to the other."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mirrord.core.errors import Refused
from mirrord.core.live import LiveSetup
from mirrord.drivers.image.driver import ImageDriver
from tests.live.command import Image, Mirror, qemu_io


def test_the_other_mirror_goes_on(mirror: Mirror, tmp_path: Path) -> None:
    home, ends = mirror.home, (mirror.source, mirror.destination)
    spare = tmp_path / "c/spare.img"
    spare.parent.mkdir()
    home.run("create", "two", mirror.ends[0], f"image:{spare}")  # the image has no records yet
    mirror.initialize("--policy", "sync")
    home.run("serve", "db")
    before = [(end.pid, (end.store / "end.json").read_bytes()) for end in ends]
    for verb in ("initialize", "serve", "unserve", "release"):
        assert "another mirror" in home.refused(verb, "two")
        assert [(end.pid, (end.store / "end.json").read_bytes()) for end in ends] == before
    said = home.run("delete", "two")
    assert f"{mirror.ends[0]} belongs to the mirror {home.status()['id']}" in said
    assert [(end.pid, (end.store / "end.json").read_bytes()) for end in ends] == before
    qemu_io(home.uri(), "write -P 1 0 64k")
    mirror.assert_equal()


@pytest.mark.parametrize("mirror_id", ["m1", "m2"])
def test_two_hosts_that_create_an_end_at_the_same_time(tmp_path: Path, mirror_id: str) -> None:
    """Of the same mirror, and of two."""
    image = tmp_path / "db.img"
    image.write_bytes(bytes(1 << 20))
    one, two = (ImageDriver.at(str(image)) for _ in range(2))
    setup = LiveSetup("m1", "db", "primary", f"{1:032x}", True, 1 << 20)
    one.live_create(setup)
    record = Image(image).store / "end.json"
    kept = record.rename(record.with_name("kept"))
    refused: list[str] = []

    def create() -> None:
        with suppress(Refused):
            two.live_create(setup._replace(mirror_id=mirror_id, volume=f"{2:032x}"))
            return
        refused.append(mirror_id)

    with one.lock("the first of them"):
        other = threading.Thread(target=create)
        other.start()  # it has found no mirror, and waits for the lock
        time.sleep(1)
        kept.rename(record)
    other.join()
    assert refused == [mirror_id]
    assert (one.live_status().mirror_id, one.live_status().volume) == ("m1", setup.volume)
    two.live_create(setup._replace(volume=f"{2:032x}", replaces=setup.volume))
