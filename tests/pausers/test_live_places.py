"""`live` through the agent of another host, and for an image that is a block device there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirrord.core.errors import PauseFailed, Untrusted
from tests.live.command import Home, Image, Mirror
from tests.live.test_devices import attached
from tests.pausers.conftest import NAME
from tests.pausers.hosts import Hosts, hosts
from tests.pausers.test_live import _SIZE, _elsewhere, _written
from tests.support.service import until
from tests.support.stripes import FILE, RECORD, is_prefix, numbers_in

#: The snapshot of this host is taken some time after that of the other one.
_LATER = """
import time
from mirrord.system import steps
steps.observe(lambda label: time.sleep(0.1) if label == "BTRFS:SNAPSHOT:TAKE" else None)
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "home") as made:
        made.create()
        yield made


@contextmanager
def served(pair: Hosts, folder: Path, *, is_device: bool) -> Iterator[Path]:
    """The image of a live mirror on host two, on the member `c`; a device: a loop device on it."""
    with ExitStack() as stack:
        backing = stack.enter_context(_elsewhere(pair.here, folder / "at")) / "c/db.img"
        backing.write_bytes(b"")
        with backing.open("r+b") as file:
            file.truncate(_SIZE)
        image = stack.enter_context(attached(backing)) if is_device else backing
        (folder / "live").mkdir()
        live = Mirror(folder / "live", size=_SIZE)
        live.home, live.source = Home(pair.agent_home("two")), Image(image)
        live.ends[0] = f"image:{image}"
        stack.callback(live.close)
        live.initialize("--policy", "sync")
        live.home.run("serve", "db")
        yield image


def _pausing(pair: Hosts, pause: str) -> None:
    """Let the member `c` have this pause."""
    file = pair.service.definitions.file(NAME)
    file.write_text(file.read_text().replace('name = "c"', f'name = "c"\npause = "{pause}"'))
    pair.settings('pause_max = "5s"\npause_alarm = "5s"')


@pytest.mark.parametrize(
    ("is_device", "is_paused"),
    [
        pytest.param(False, True, id="image", marks=pytest.mark.nightly),
        pytest.param(True, True, id="device"),
        pytest.param(True, False, id="device-unpaused", marks=pytest.mark.nightly),
    ],
)
def test_an_image_on_another_host(
    pair: Hosts, tmp_path: Path, *, is_device: bool, is_paused: bool
) -> None:
    """Its client writes to the image and to a volume of the other host, and is not paused."""
    with served(pair, tmp_path, is_device=is_device) as image:
        pair.allow("one", *pair.rules("one"), code=_LATER)
        pair.allow("two", *pair.rules("two"), f"pause=live:{image}")
        if is_paused:
            _pausing(pair, f"live:{image}")
        words = [pair.agent_home("two") / "run/db.nbd", pair.here / "a" / FILE, _SIZE // RECORD]
        with _written(*words):
            until(lambda: (pair.here / "a" / FILE).stat().st_size > 0)
            pair.service.initialize(NAME)
            found = [_updated(pair) for _ in range(3)]
        counts = [len(one) for one in found]
        assert all(map(is_prefix, found)) == is_paused, counts
        assert counts == sorted(set(counts)), "each has more than the one before"


def _updated(pair: Hosts) -> list[int]:
    """The numbers of a new set."""
    pair.service.update(NAME)
    files = (pair.there / "c/current/db.img", pair.there / "a/current" / FILE)
    return sorted(number for file in files for number in numbers_in(file))


def test_an_image_that_cannot_be_held_back_there(pair: Hosts, tmp_path: Path) -> None:
    """Without the right, and without its process: nothing is taken."""
    with served(pair, tmp_path, is_device=False) as image:
        _pausing(pair, f"live:{image}")
        with pytest.raises(Untrusted, match="may not pause that application") as untrusted:
            pair.service.initialize(NAME)
        assert f"--allow pause=live:{image}" in untrusted.value.hint
        pair.allow("two", *pair.rules("two"), f"pause=live:{image}")
        Image(image).kill()
        with pytest.raises(PauseFailed, match="does not answer") as failure:
            pair.service.initialize(NAME)
        assert "two" in failure.value.where and pair.snapshots() == []
