"""What hostile or broken clients, peers and administrators do."""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.lab import Client, End, Pair, Proxy, stamp, wait_until
from tests.live.peers import crc32c
from tests.support import preload
from tests.support.mounts import unmount
from tests.support.ports import free_port

MIB = 1 << 20


def _descriptors(end: End) -> int:
    assert end.process is not None
    return len(list(Path(f"/proc/{end.process.pid}/fd").iterdir()))


def _log(end: End) -> str:
    return (end.folder / "log").read_text()


def test_garbage_takes_neither_memory_nor_descriptors_nor_time(pair: Pair) -> None:
    buffers = 64 * MIB
    pair.primary.options = ["--buffers", str(buffers)]
    pair.start()
    chance = random.Random(9)
    before = _descriptors(pair.primary), pair.primary.memory()
    good = b"\0\0\0\3" + struct.pack(">8sIIIH", b"IHAVEOPT", 7, 6, 0, 0)
    with Client(pair.primary) as client:
        for number in range(600):
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(pair.primary.nbd))
                request = struct.pack(">IHHQQI", 0x25609513, 0, 1, 0, 0, 32 * MIB)
                tail = [chance.randbytes(200), request + b"x" * 1000, request[:20]][number % 3]
                data = good[: chance.choice([len(good), chance.randrange(28)])] + tail
                with suppress(BrokenPipeError, ConnectionResetError):  # it is refused meanwhile
                    other.sendall(data)
        start = time.monotonic()
        assert client.write(0, stamp(0, 1)) == 0
        assert time.monotonic() - start < 15
    wait_until(lambda: _descriptors(pair.primary) <= before[0] + 1, "connections to be closed")
    assert pair.primary.memory() < before[1] + buffers + 20 * MIB
    pair.wait_in_sync()


def test_clients_do_not_keep_commands_out(pair: Pair) -> None:
    pair.start()
    clients: list[Client] = []
    try:
        with suppress(ConnectionResetError):
            while len(clients) < 500:
                clients.append(Client(pair.primary))
        assert len(clients) == 256
        assert pair.primary.ask("mode async") == {"ok": True}
        assert clients[-1].write(0, stamp(0, 1)) == 0
    finally:
        for client in clients:
            client.socket.close()


@pytest.fixture
def stuck(pair: Pair) -> Iterator[list[Client]]:
    """Clients that announce large writes and send half of them."""
    pair.primary.options = ["--buffers", str(64 * MIB)]
    pair.start()
    clients = [Client(pair.primary) for _ in range(12)]
    yield clients
    for client in clients:
        client.socket.close()


def test_requests_share_one_bound(pair: Pair, stuck: list[Client]) -> None:
    before = pair.primary.memory()
    for client in stuck:
        client.socket.setblocking(False)
        head = struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, 8 * MIB)
        client.socket.send(head)
    left = dict.fromkeys(stuck, 7 * MIB)
    for _ in range(400):
        for client in stuck:
            try:
                left[client] -= client.socket.send(bytes(min(left[client], MIB)))
            except BlockingIOError:
                time.sleep(0.001)
    # Seven of eight MiB, of eight clients.
    assert list(left.values()).count(0) in (7, 8)
    assert pair.primary.memory() < before + 110 * MIB
    # The others are read when those are gone.
    for client in stuck[:10]:
        client.socket.close()
    with Client(pair.primary) as other:
        assert other.write(0, stamp(0, 1)) == 0
    wait_until(lambda: pair.primary.memory() < before + 60 * MIB, "the memory to be free again")


def test_answers_that_nobody_reads_are_bounded(pair: Pair) -> None:
    pair.primary.options = ["--buffers", str(16 * MIB)]
    pair.start()
    before = pair.primary.memory()
    with Client(pair.primary) as greedy:
        greedy.socket.settimeout(30)
        # In tens: a socket takes fewer small messages that are not read than these are.
        requests = [struct.pack(">IHHQQI", 0x25609513, 0, 0, n, 0, MIB) for n in range(120)]
        for first in range(0, 120, 10):
            greedy.socket.sendall(b"".join(requests[first : first + 10]))
            time.sleep(0.01)
        time.sleep(1)
        assert pair.primary.memory() < before + 60 * MIB
        # All of them are answered once they are read.
        for _ in range(120):
            code = struct.unpack(">IIQ", greedy._read(16))[1]
            assert code == 0
            greedy._read(MIB)


def test_the_kernel_looks_after_idle_clients_of_other_hosts(pair: Pair) -> None:
    port = free_port()
    pair.primary.options = ["--nbd", f"127.0.0.1:{port}"]
    pair.start()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        assert client.recv(8) == b"NBDMAGIC"
        words = ["ss", "-Htno", "state", "established", "sport", "=", f":{port}"]
        shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        assert "timer:(keepalive," in shown, shown


def test_a_client_that_vanishes_leaves_whole_blocks(pair: Pair) -> None:
    pair.start()
    for number in range(1, 40):
        client = Client(pair.primary)
        for block in range(8):
            client.send(1, block, block * 4096, stamp(block, number))
        client.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 1, 9, 0, 65536) + b"part")
        client.socket.close()
    wait_until(lambda: pair.primary.bytes()[:4096] == stamp(0, 39), "the last write")
    for block in range(8):
        found = pair.primary.bytes()[block * 4096 :][:4096]
        assert found in [stamp(block, number) for number in range(1, 40)]
    pair.assert_equal()


def test_both_served_as_primary(pair: Pair) -> None:
    # Each end connects to the other one once it is a primary.
    there, back = Proxy(pair.secondary.link_port), Proxy(pair.primary.link_port)
    pair.primary.peer = f"127.0.0.1:{there.port}"
    pair.secondary.peer = f"127.0.0.1:{back.port}"
    pair.start()
    there.cut()
    back.cut()
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
    assert pair.secondary.ask("break") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("out-of-sync"), "service at the other end")
    with Client(pair.primary) as old, Client(pair.secondary) as new:
        assert old.write(0, stamp(0, 1)) == 0
        assert new.write(4096, stamp(1, 2)) == 0
        there.heal()
        back.heal()
        wait_until(lambda: (pair.primary.status() or {}).get("role") == "fenced", "the fence")
        with pytest.raises(OSError):
            old.write(0, stamp(0, 3))
        assert new.write(8192, stamp(2, 2)) == 0
    assert pair.primary.ask("rejoin") == {"ok": True}
    wait_until(lambda: pair.secondary.is_state("in-sync"), "sync the other way around")
    assert pair.primary.bytes() == pair.secondary.bytes()
    assert pair.primary.bytes()[:12288] == bytes(4096) + stamp(1, 2) + stamp(2, 2)
    there.close()
    back.close()


def test_a_peer_of_another_version_is_refused_by_name(pair: Pair) -> None:
    pair.start()
    head = bytearray(64)
    struct.pack_into("<4sBBHQ", head, 0, b"MLF1", 16, 0, 9, 1)
    struct.pack_into("<I", head, 60, crc32c(bytes(head[:60])))
    with socket.create_connection(("127.0.0.1", pair.secondary.link_port), timeout=10) as other:
        other.sendall(head)
        assert other.recv(10) == b""
    assert "the peer speaks version 9 of the live protocol, this end 1" in _log(pair.secondary)
    pair.wait_in_sync()


def test_an_image_that_grows_is_reported_and_served_as_before(pair: Pair) -> None:
    pair.start()
    os.truncate(pair.primary.image, 9 * MIB)
    wait_until(lambda: "the image has grown" in _log(pair.primary), "the report")
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.wait_in_sync()


def test_a_truncated_image_is_not_served_any_more(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        os.truncate(pair.primary.image, 4 * MIB)
        wait_until(lambda: pair.primary.is_state("failed"), "the end of service")
        assert client.write(0, stamp(0, 2)) == 5
        client.send(0, 4, 0, 4096)
        assert client.answer() == (4, 5)
    assert "the image was truncated: it has 4194304 bytes, and had 8388608" in _log(pair.primary)
    # The other end has everything.
    assert pair.secondary.ask("break") == {"ok": True}
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def test_reads_that_waited_fail_when_the_image_is_truncated(pair: Pair) -> None:
    pair.start()
    pair.stop()
    pair.primary.boot = f"{5:032x}"
    pair.primary.start()
    wait_until(lambda: pair.primary.is_state("waiting-for-replica"), "the wait")
    with Client(pair.primary) as client:
        client.send(0, 4, 0, 4096)
        os.truncate(pair.primary.image, 4 * MIB)
        assert client.answer() == (4, 5)


@pytest.mark.parametrize("how", ["deleted", "replaced", "renamed"])
def test_a_deleted_image_is_not_served_any_more(pair: Pair, how: str) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
        if how == "renamed":  # and another file has its name
            pair.primary.image.rename(pair.primary.image.with_name("kept"))
        if how == "deleted":
            pair.primary.image.unlink()
        else:
            other = pair.primary.image.with_name("other")
            other.write_bytes(bytes(8 * MIB))
            other.rename(pair.primary.image)
        wait_until(lambda: pair.primary.is_state("failed"), "the end of service")
        assert client.write(0, stamp(0, 2)) == 5
    assert "the image was deleted or replaced" in _log(pair.primary)
    assert pair.secondary.ask("break") == {"ok": True}
    assert pair.secondary.bytes()[:4096] == stamp(0, 1)


def _is_refused(end: End, why: str = "another file has taken the place of the image") -> None:
    words: list[str | Path] = [end.program, "run", "--image", end.image, "--state", end.state]
    words += ["--control", end.folder / "other"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and why in done.stderr


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_another_file_in_the_place_of_an_image_is_not_opened(pair: Pair, role: str) -> None:
    """The process did not run while it was replaced: only the records can tell."""
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.stop()
    end = pair.primary if role == "primary" else pair.secondary
    kept = end.image.with_name("kept")
    end.image.rename(kept)
    end.image.write_bytes(bytes(8 * MIB))
    _is_refused(end)
    assert end.image.read_bytes() == bytes(8 * MIB)
    shutil.copyfile(kept, end.image)
    _is_refused(end)  # it may be an old copy
    identity = end.state / "identity"
    known = identity.read_text()
    for damaged in (known[:9], f"x {known}"):
        identity.write_text(damaged)
        _is_refused(end, f"error[records-damaged]: {identity}: damaged")
        assert identity.read_text() == damaged
    (end.state / "identity").unlink()  # its owner says that it is complete
    pair.start()
    pair.stop()
    (end.state / "identity").unlink()
    kept.rename(end.image)
    pair.start()
    pair.wait_in_sync()
    pair.assert_equal()
    assert end.bytes()[:4096] == stamp(0, 1)


def test_an_image_that_was_copied_with_its_records_is_opened(pair: Pair) -> None:
    pair.start()
    with Client(pair.primary) as client:
        assert client.write(0, stamp(0, 1)) == 0
    pair.stop()
    for path, copied in ((pair.primary.image, shutil.copy2), (pair.primary.state, shutil.copytree)):
        old = path.rename(path.with_name("old"))
        copied(old, path)
        old.rename(path.with_name(f"{path.name}-before"))
    pair.start()
    pair.assert_equal()
    assert pair.primary.bytes()[:4096] == stamp(0, 1)
    pair.stop()
    (pair.primary.folder / "image-before").rename(pair.primary.image)
    _is_refused(pair.primary)  # the records are those of the copy


def test_a_file_that_is_refused_for_its_size_is_not_remembered(pair: Pair) -> None:
    """With records from before the file had to be the same one."""
    pair.start()
    pair.stop()
    (pair.primary.state / "identity").unlink()
    kept = pair.primary.image.rename(pair.primary.image.with_name("kept"))
    pair.primary.image.write_bytes(bytes(4 * MIB))
    _is_refused(pair.primary, "restore its size")
    kept.rename(pair.primary.image)
    pair.start()
    assert (pair.primary.state / "identity").exists()


def test_clients_are_held_back_only_where_they_are_served(pair: Pair) -> None:
    """What holds them back is told when this end serves no more."""
    pair.start()
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(20)
        control.connect(str(pair.primary.control))
        control.sendall(b"hold 60000\n")
        assert b"true" in control.recv(100)
        os.truncate(pair.primary.image, 4 * MIB)
        assert control.recv(100) == b""
    assert pair.primary.is_state("failed")
    assert "no client is served" in pair.primary.ask("hold 60000")["error"]


def test_an_end_that_cannot_start_names_the_address(pair: Pair) -> None:
    end = pair.secondary
    with socket.create_server(("127.0.0.1", 0)) as other:
        end.link = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AssertionError):
            end.start(1)
        end.kill()
    assert f"error[address-in-use]: {end.link}: Address already in use" in _log(end)
    end.link = "host.invalid:1"
    with pytest.raises(AssertionError):
        end.start(1)
    assert "error[refused]: host.invalid:1: " in _log(end)


#: No file can be removed.
_NO_UNLINK = """
#include <errno.h>
int unlink(const char *path) { errno = EIO; return -1; }
"""


def test_a_socket_that_cannot_be_removed_is_not_said_to_be_in_use(
    pair: Pair, tmp_path: Path
) -> None:
    end = pair.secondary
    end.start()
    end.kill()
    end.environment = {"LD_PRELOAD": str(preload.build(_NO_UNLINK, tmp_path / "unlink.so"))}
    with pytest.raises(AssertionError):
        end.start(1)
    assert f"error[refused]: unix:{end.control}: Input/output error" in _log(end)


def test_records_that_get_no_space_are_named(program: Path, tmp_path: Path) -> None:
    end = End(program, tmp_path, "primary")
    with end.image.open("wb") as image:
        image.truncate(8 * MIB)
    words = ["prlimit", f"--fsize={MIB >> 2}", str(program), "create", *end._files()]
    words += ["--role", "primary", "--volume", "0" * 32]
    # Python ignores SIGXFSZ.
    done = subprocess.run(words, capture_output=True, text=True, restore_signals=False)
    assert f"{end.state}/tracking: File too large" in done.stderr


def test_a_truncated_replica_stops(pair: Pair) -> None:
    pair.start()
    os.truncate(pair.secondary.image, 4 * MIB)
    assert pair.secondary.process is not None
    pair.secondary.process.wait(10)
    assert "the image was truncated" in _log(pair.secondary)
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)


def test_a_replica_whose_image_is_deleted_stops(pair: Pair) -> None:
    pair.start()
    pair.secondary.image.unlink()
    assert pair.secondary.process is not None
    pair.secondary.process.wait(30)
    assert "the image was deleted or replaced" in _log(pair.secondary)
    wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_an_end_whose_records_are_deleted_stops(pair: Pair, side: str) -> None:
    """It could not tell after a restart what it has acknowledged."""
    pair.start()
    end, other = pair.primary, pair.secondary
    if side == "secondary":
        end, other = other, end
    shutil.rmtree(end.state)
    assert end.process is not None
    assert end.process.wait(30) == 0
    assert "the records of this end were deleted" in _log(end)
    if side == "secondary":
        wait_until(lambda: other.is_state("out-of-sync"), "leaving sync", 15)
    else:
        assert other.ask("break") == {"ok": True}


@pytest.fixture
def device(pair: Pair, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A device whose writes are slow, and fail while a file exists: image and file."""
    switch, image = tmp_path / "fail", tmp_path / "device"
    image.touch()
    words = ["nbdfuse", str(image), "--command", "nbdkit", "-s", "--filter=error"]
    words += ["--filter=delay", "memory", "8M", "error-pwrite-rate=100%", f"error-file={switch}"]
    mounted = subprocess.Popen([*words, "wdelay=2ms"])
    wait_until(lambda: image.stat().st_size == 8 * MIB, "the device")
    yield image, switch
    pair.stop()
    unmount(image)
    mounted.wait(20)


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_disk_that_fails_at_one_end(pair: Pair, device: tuple[Path, Path], side: str) -> None:
    end = pair.primary if side == "primary" else pair.secondary
    end.image, switch = device
    pair.start()
    with Client(pair.primary) as client:
        for block in range(20):
            assert client.write(block * 4096, stamp(block, 1)) == 0
        switch.touch()
        # An error at the primary is the client's; one at the replica is not.
        assert client.write(0, stamp(0, 2)) == (5 if side == "primary" else 0)
        wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync", 15)
        switch.unlink()
        assert client.write(4096, stamp(1, 2)) == 0
        pair.wait_in_sync()
        assert client.flush() == 0
    assert pair.primary.bytes() == pair.secondary.bytes()
    assert pair.secondary.bytes()[4096:8192] == stamp(1, 2)
