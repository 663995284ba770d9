"""Block devices as images; here they are loop devices."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.command import Mirror, qemu_io
from tests.live.lab import Client, End, Pair, stamp, wait_until

MIB = 1 << 20


@contextmanager
def attached(backing: Path) -> Iterator[Path]:
    words = ["losetup", "--find", "--show", str(backing)]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a device of 8 MiB from the file of that name."""
    with ExitStack() as stack:

        def make(name: str) -> Path:
            backing = tmp_path / name
            with backing.open("wb") as file:
                file.truncate(8 * MIB)
            return stack.enter_context(attached(backing))

        yield make


@pytest.fixture
def mirror(tmp_path: Path, device: Callable[[str], Path]) -> Iterator[Mirror]:
    mirror = Mirror(tmp_path)
    mirror.ends = [f"image:{device(name)}" for name in ("one", "two")]
    try:
        yield mirror
    finally:
        mirror.home.stop_daemon()
        mirror.home.run("delete", "db", "--yes")


def test_devices_are_mirrored_and_swap_roles(mirror: Mirror, tmp_path: Path) -> None:
    home = mirror.home
    mirror.initialize("--policy", "sync")
    home.run("serve", "db")
    qemu_io(home.uri(), "write -P 7 1M 64k", "discard 1M 4k", "flush")
    assert mirror.home.is_in_sync()
    home.run("reverse", "db", "--yes")
    home.run("serve", "db")
    qemu_io(home.uri(), "read -P 0 1M 4k", "read -P 7 1028k 60k", "write -P 8 2M 4k", "flush")
    found = (tmp_path / "one").read_bytes()
    assert found == (tmp_path / "two").read_bytes()
    assert found[2 * MIB : 2 * MIB + 4096] == b"\x08" * 4096


@contextmanager
def _mounted(device: Path, folder: Path) -> Iterator[None]:
    subprocess.run(["mkfs.ext4", "-q", device], check=True)
    folder.mkdir()
    subprocess.run(["mount", device, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def _mounted_by_another_name(device: Path, folder: Path) -> Iterator[None]:
    other = folder.with_name("same")
    number = device.stat().st_rdev
    subprocess.run(["mknod", other, "b", str(number >> 8), str(number & 255)], check=True)
    with _mounted(other, folder):
        yield


@contextmanager
def _opened(device: Path, folder: Path) -> Iterator[None]:
    with device.open("r+b"):
        yield


@contextmanager
def _looped(device: Path, folder: Path) -> Iterator[None]:
    with attached(device):
        yield


@pytest.mark.parametrize("use", [_mounted, _mounted_by_another_name, _opened, _looped])
def test_a_device_in_use_is_refused(
    tmp_path: Path, device: Callable[[str], Path], use: Callable[..., ExitStack]
) -> None:
    mirror = Mirror(tmp_path)
    mirror.ends[0] = f"image:{device('one')}"
    with use(Path(mirror.ends[0].removeprefix("image:")), tmp_path / "folder"):
        assert "in use" in mirror.home.refused("create", "db", *mirror.ends)


@pytest.fixture
def pair(program: Path, tmp_path: Path, device: Callable[[str], Path]) -> Iterator[Pair]:
    pair = Pair(program, tmp_path)
    pair.primary = _end(program, tmp_path / "dp", "primary", device("one"))
    pair.secondary = _end(program, tmp_path / "ds", "secondary", device("two"))
    pair.primary.peer = f"127.0.0.1:{pair.secondary.link_port}"
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def _end(program: Path, folder: Path, role: str, device: Path) -> End:
    end = End(program, folder, role)
    end.image = device
    end.create(role)
    return end


def _resize(end: End, folder: Path, name: str, size: int) -> None:
    with (folder / name).open("r+b") as backing:
        backing.truncate(size)
    subprocess.run(["losetup", "--set-capacity", end.image], check=True)


def _log(end: End) -> str:
    return (end.folder / "log").read_text()


def test_a_mirrored_device_cannot_be_mounted(pair: Pair, tmp_path: Path) -> None:
    done = subprocess.run(["mount", pair.secondary.image, tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.assert_equal()


def test_a_device_that_grows_is_served_as_before(pair: Pair, tmp_path: Path) -> None:
    _resize(pair.primary, tmp_path, "one", 9 * MIB)
    wait_until(lambda: "the image has grown" in _log(pair.primary), "the report")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.wait_in_sync()


def test_a_device_that_shrinks_is_not_served_any_more(pair: Pair, tmp_path: Path) -> None:
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        _resize(pair.primary, tmp_path, "one", 4 * MIB)
        wait_until(lambda: pair.primary.is_state("failed"), "the end of service")
        assert client.write(0, stamp(0, 2)) == 5
    assert pair.secondary.ask("break") == {"ok": True}
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def test_a_device_of_another_size_is_not_started(pair: Pair, tmp_path: Path) -> None:
    pair.secondary.kill()
    _resize(pair.secondary, tmp_path, "two", 9 * MIB)
    with pytest.raises(AssertionError):
        pair.secondary.start(5)
    assert "the image has 9437184 bytes, and had 8388608" in _log(pair.secondary)
