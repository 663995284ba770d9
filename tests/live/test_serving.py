"""What is recorded of where clients connect, and what the process does, agree."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from mirrord.core.errors import IoFailed, LinkLost, NoSpace, Refused
from mirrord.core.live import LiveSetup
from mirrord.drivers.image.driver import ImageDriver
from mirrord.live import mirror as live_mirror
from mirrord.live import serving
from mirrord.system import files, steps
from mirrord.system.explain import explained
from mirrord.system.paths import Paths
from tests.live.command import Image, Mirror, qemu_io
from tests.live.lab import small_file_system, wait_until
from tests.support import preload
from tests.support.service import takes_clients
from tests.support.verbs import Service

#: No folder can be synced.
_NO_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>

int fsync(int fd)
{
    struct stat facts;
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fstat(fd, &facts) || !S_ISDIR(facts.st_mode)) return real(fd);
    errno = EIO;
    return -1;
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "small", "3m") as made:
        yield made


@pytest.fixture
def end(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageDriver]:
    """A primary that runs, on a small file system."""
    monkeypatch.setenv("MIRRORD_HOME", str(tmp_path / "home"))
    image = folder / "db.img"
    with image.open("wb") as file:
        file.truncate(1 << 20)
    made = ImageDriver.at(str(image))
    made.live_create(LiveSetup("m1", "db", "primary", "0" * 31 + "1", True, 1 << 20))
    assert made.live_start("127.0.0.1", "").running
    yield made
    made.live_remove()


def test_nobody_can_connect_where_that_is_not_recorded(
    end: ImageDriver, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "nbd"
    full = folder / "full"
    with pytest.raises(OSError, match="No space left"), full.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(OSError, match="No space left"):
        end.live_serve(f"unix:{path}")
    assert not path.exists() and end.live_status().served == ()
    full.unlink()
    end.live_serve(f"unix:{path}")
    assert takes_clients(path)


def test_what_is_refused_is_not_recorded(end: ImageDriver, tmp_path: Path) -> None:
    """It would keep the process from starting again."""
    path = tmp_path / "nbd"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(Refused, match="in use"):
            end.live_serve(f"unix:{path}")
    assert end.live_status().served == ()


@contextmanager
def _interrupted() -> Iterator[None]:
    """What is called ends between the writes of `end.json` and of the configuration."""

    def die(label: str) -> None:
        if label.startswith("IMAGE:PROCESS:CONFIG"):
            raise KeyboardInterrupt

    steps.observe(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        steps.observe(None)


def test_what_is_recorded_and_not_in_force_is_served_by_the_next_call(
    end: ImageDriver, tmp_path: Path
) -> None:
    path = tmp_path / "nbd"
    with _interrupted():
        end.live_serve(f"unix:{path}")
    assert end.live_status().served == (f"unix:{path}",) and not path.exists()
    for _ in range(2):
        assert end.live_serve(f"unix:{path}") == f"unix:{path}"
        assert takes_clients(path)


def test_what_was_unserved_in_part_is_not_served_by_the_next_start(
    end: ImageDriver, tmp_path: Path
) -> None:
    """A unit starts the process from the configuration alone."""
    end.live_serve("127.0.0.1:0", ("192.0.2.7",))
    config = Image(Path(end.location)).store / "config"
    with _interrupted():
        end.live_unserve()
    assert "nbd 127.0.0.1:0" in config.read_text()
    end.live_unserve()
    assert "nbd" not in config.read_text()


def test_an_address_of_the_other_end_that_was_recorded_in_part_is_in_force(
    end: ImageDriver,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(5)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with _interrupted():
            end.live_start("", address)
        end.live_start("", address)
        other.accept()[0].close()


def test_an_address_that_another_program_has_taken_is_not_said_to_be_served(
    end: ImageDriver, tmp_path: Path
) -> None:
    path = tmp_path / "nbd"
    end.live_serve(f"unix:{path}")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(Refused, match="in use"):
            end.live_serve(f"unix:{path}")
        assert end.live_unserve()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))  # that program's socket was left alone
    path.unlink()
    end.live_serve(f"unix:{path}")
    assert takes_clients(path)


def test_a_file_in_place_of_the_socket_is_left_alone(end: ImageDriver, tmp_path: Path) -> None:
    path = tmp_path / "nbd"
    end.live_serve(f"unix:{path}")
    path.unlink()
    path.write_text("data")
    with pytest.raises(Refused, match="in use"):
        end._process.ask(f"serve unix:{path}")
    assert end.live_unserve()
    assert path.read_text() == "data"


def test_a_socket_that_somebody_removed_is_made_again(end: ImageDriver, tmp_path: Path) -> None:
    path = tmp_path / "nbd"
    end.live_serve(f"unix:{path}")
    path.unlink()
    end.live_serve(f"unix:{path}")
    assert takes_clients(path)


def test_a_record_that_another_command_changes_meanwhile_is_read_again(
    end: ImageDriver, tmp_path: Path
) -> None:
    path, other = tmp_path / "nbd", ImageDriver.at(end.location)
    done: list[bool] = []
    waiting = threading.Thread(target=lambda: done.append(other.live_unserve()))
    with end.lock("test"):
        waiting.start()
        time.sleep(0.3)  # it has read the record then, and waits for the lock
        end.live_serve(f"unix:{path}")
    waiting.join(60)
    assert done == [True] and not path.exists()
    assert end.live_status().served == ()


def test_a_record_that_does_not_fit_is_named_and_leaves_nothing(folder: Path) -> None:
    with suppress(OSError):
        (folder / "full").write_bytes(bytes(3 << 20))
    with pytest.raises(NoSpace) as caught, explained():
        files.write_atomic("TEST", folder / "record", bytes(1 << 20))
    assert caught.value.where == str(folder / "record")
    assert [one.name for one in folder.iterdir()] == ["full"]


def test_a_folder_that_cannot_be_synced_is_named(tmp_path: Path) -> None:
    library = preload.build(_NO_SYNC, tmp_path / "sync.so")
    words = [sys.executable, "-c", "import sys; from mirrord.system import files; "]
    words[-1] += "files.write_atomic('TEST', sys.argv[1], b'x')"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [*words, str(tmp_path / "record")], capture_output=True, text=True, env=environment
    )
    assert done.stderr.splitlines()[-1].endswith(f"Input/output error: '{tmp_path}'")


def test_an_image_that_cannot_get_its_size_is_not_left(tmp_path: Path) -> None:
    """The next attempt would say that the images differ in size."""
    image = tmp_path / "db.img"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{image}'"):
            files.make_sparse("TEST", image, 1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not image.exists()


def test_a_copy_that_the_replica_refuses_for_long_is_not_waited_for(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_mirror, "_CONNECT_S", 3.0)
    service = Service(Paths(*(mirror.home.folder / name for name in ("etc", "state", "run"))))
    with small_file_system(tmp_path / "small", "48m") as made:
        mirror.destination = Image(made / "db.img")
        mirror.ends[1] = f"image:{mirror.destination.path}"
        mirror.initialize("--policy", "sync")
        mirror.home.run("serve", "db")
        with suppress(OSError):
            (made / "full").write_bytes(bytes(48 << 20))
        qemu_io(mirror.home.uri(), "write -P 1 0 4M")
        with pytest.raises(IoFailed, match="no space for before-images") as caught:
            service.resync("db", yes=True)
        assert "tried again" in caught.value.hint and "(0 bytes" not in caught.value.why
        (made / "full").unlink()
        wait_until(mirror.home.is_in_sync, "the copy")
        mirror.assert_equal()
        mirror.close()


def test_a_comparison_ends_when_the_images_are_out_of_sync_for_long(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, end = mirror.home, ImageDriver.at(str(mirror.source.path))
    mirror.initialize("--policy", "sync")
    definition = home.folder / "etc/mirrors.d/db.toml"
    text = definition.read_text()
    definition.write_text(text.replace("[site.", 'verify_rate = "1MiB/s"\n[site.', 1))
    monkeypatch.setattr(serving, "_OUT_OF_SYNC_S", 0.5)

    def leave_sync() -> None:
        wait_until(lambda: end.live_status().verify.state == "running", "the comparison")
        home.run("mode", "db", "async")
        over.wait(20)
        home.run("mode", "db", "sync")  # a comparison without a limit goes on then

    over = threading.Event()
    thread = threading.Thread(target=leave_sync)
    thread.start()
    service = Service(Paths(*(home.folder / name for name in ("etc", "state", "run"))))
    try:
        with pytest.raises(LinkLost, match="out of sync for"):
            service.verify("db")
        assert end.live_status().verify.state == "stopped"
    finally:
        over.set()
        thread.join(60)
        service.close()


def test_unserve_ends_what_is_not_recorded(mirror: Mirror, tmp_path: Path) -> None:
    mirror.initialize()
    path = tmp_path / "nbd"
    mirror.source.ask("serve", f"unix:{path}")
    assert takes_clients(path)
    mirror.home.run("unserve", "db")
    assert not takes_clients(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_comparison_ends_when_a_strict_mirror_is_not_connected(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Nothing is acknowledged then, so that the ends stay in sync."""
    mirror.initialize("--policy", "strict-sync")
    pid = mirror.destination.pid
    assert pid is not None
    os.kill(pid, number)
    try:
        wait_until(lambda: mirror.source.status()["state"] == "holding", "the end of the link")
        said = mirror.home.run("status", "db")
        assert number is signal.SIGSTOP or "not connected (holding: the connection" in said
        monkeypatch.setattr(serving, "_OUT_OF_SYNC_S", 1.5)
        service = Service(Paths(*(mirror.home.folder / name for name in ("etc", "state", "run"))))
        with closing(service), pytest.raises(LinkLost, match="or not connected"):
            service.verify("db")
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
