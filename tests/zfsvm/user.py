"""The work of a user in the machine: what the host asks for by name (tests/zfsvm/inside.py).

Arguments and results are what JSON can say.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mirrord.drivers.streams import PipeSink
from mirrord.drivers.zfs.stream.send import Sending, ZfsSendStream
from tests.support import files

_PIECE = 1 << 20
_DEVICE_S = 10.0


def run(words: list[str], given: str | None = None) -> tuple[int, str, str]:
    """A command's exit status, output and errors; given: its standard input."""
    done = subprocess.run(
        words, input=given or "", capture_output=True, text=True, errors="surrogateescape"
    )
    return done.returncode, done.stdout, done.stderr


def mirrord(words: list[str]) -> tuple[int, str]:
    """A command line's exit status and all that it prints; without a start of Python."""
    from mirrord.cli.main import run as run_line

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = int(run_line(words) or 0)
    return status, said.getvalue()


def nbd_stamps(path: str, number: int, first: int, end: int) -> list[int]:
    """Write these blocks with that number by NBD, and flush: which error codes came."""
    from tests.live.lab import BLOCK, Client, stamp

    with Client(SimpleNamespace(nbd=Path(path))) as client:
        codes = {client.write(block * BLOCK, stamp(block, number)) for block in range(first, end)}
        codes.add(client.flush())
    return sorted(codes)


def stamps(device: str) -> list[int]:
    """The number in each block."""
    from tests.live.lab import BLOCK, STAMP

    data = Path(device).read_bytes()
    return [STAMP.unpack_from(data, at)[1] for at in range(0, len(data), BLOCK)]


def fill(folder: str, seed: int) -> None:
    """Something of all that a file system can hold."""
    files.fill(Path(folder), seed)


def change(folder: str, seed: int) -> None:
    """A user's work."""
    files.change(Path(folder), seed)


def change_much(folder: str, seed: int) -> None:
    """The same, with 40 MiB that do not compress."""
    files.change(Path(folder), seed)
    made = random.Random(f"much {seed}")
    for number in range(4):
        (Path(folder) / f"much{number}").write_bytes(made.randbytes(10 << 20))


def digest(folder: str) -> str:
    """All that a user sees there. Of a snapshot: also that it is read, not a folder in waiting."""
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(folder)
    return files.digest(path)


def sent(snapshot: str, guid: str) -> list[Any]:
    """SHA-256 of what a stream moves into a pipe or lets read, and how much of it was not read."""
    sending = Sending(None, None, snapshot, guid, raw=False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    whole, unseen = hashlib.sha256(), 0
    with ZfsSendStream(sending, snapshot, None) as stream:
        sink = PipeSink(writing, stream.waiting)
        while (moved := stream.pass_on(sink, 1 << 15)) != 0:
            if moved is None:
                whole.update(stream.read())
                continue
            unseen += moved
            while moved:
                part = os.read(reading, moved)
                whole.update(part)
                moved -= len(part)
    return [whole.hexdigest(), unseen]


def volume_change(device: str, seed: int, size_bytes: int) -> None:
    """Write here and there on a block device, as a database would."""
    made = random.Random(f"volume {seed}")
    with _device(device).open("r+b", buffering=0) as file:
        for _ in range(20):
            file.seek(made.randrange(size_bytes // 4096 - 4) * 4096)
            file.write(made.randbytes(4096 * made.randrange(1, 4)))
        file.seek(made.randrange(size_bytes - 1_500_000))
        file.write(made.randbytes(1_000_000 if seed % 2 else 10))
    _let_go()


def volume_change_much(device: str, seed: int, size_bytes: int) -> None:
    """Write 40 MiB."""
    volume_change(device, seed, size_bytes)
    made = random.Random(f"much {seed}")
    with _device(device).open("r+b", buffering=0) as file:
        file.seek(size_bytes - (41 << 20))
        for _ in range(40):
            file.write(made.randbytes(_PIECE))
    _let_go()


def _let_go() -> None:
    """Until nobody has a device open: udev looks at each that was written, and when it is the last
    to close one, OpenZFS writes that down: the volume counts as changed once more.
    """
    subprocess.run(["udevadm", "settle", "--timeout=60"], check=True)


def volume_digest(device: str) -> str:
    """Of all that is on a block device."""
    whole = hashlib.md5(usedforsecurity=False)
    with _device(device).open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            whole.update(piece)
    return whole.hexdigest()


def _device(path: str) -> Path:
    """The device, which udev may still be making."""
    until = time.monotonic() + _DEVICE_S
    while not Path(path).exists():
        if time.monotonic() > until:
            raise FileNotFoundError(f"{path} did not appear in {_DEVICE_S:.0f} s")
        time.sleep(0.01)
    return Path(path)


def many_snapshots(dataset: str, count: int) -> None:
    """Take so many snapshots, without a program's start for each."""
    pairs, core = ctypes.CDLL("libnvpair.so.3"), ctypes.CDLL("libzfs_core.so.3")
    assert core.libzfs_core_init() == 0
    for number in range(count):
        names, errors = ctypes.c_void_p(), ctypes.c_void_p()
        assert pairs.nvlist_alloc(ctypes.byref(names), 1, 0) == 0
        pairs.nvlist_add_boolean(names, f"{dataset}@owners.{number}".encode())
        assert core.lzc_snapshot(names, None, ctypes.byref(errors)) == 0
        pairs.nvlist_free(names)
    core.libzfs_core_fini()


def write_text(path: str, text: str) -> None:
    """Write a small file, with its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def read_text(path: str) -> str:
    """A small file; "" when there is none."""
    return Path(path).read_text() if Path(path).exists() else ""


def kill(pid: int) -> None:
    """End a process without a word, and wait until it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    gone(pid)


def gone(pid: int, within_s: float = 20.0) -> bool:
    """Wait until a process has ended."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def running(part: str) -> list[str]:
    """The command lines of the processes that have `part` in theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
            if part in line:
                found.append(line)
    return found


def clean(parent: str) -> None:
    """Destroy a dataset with all that is below it, whoever holds its snapshots."""
    for _ in range(20):
        status, _, said = run(["zfs", "destroy", "-R", parent])
        if status == 0 or "does not exist" in said:
            return
        _, listed, _ = run(["zfs", "list", "-Hpr", "-t", "snapshot", "-o", "name,userrefs", parent])
        for line in listed.splitlines():
            name, _, holders = line.partition("\t")
            if holders not in ("0", "-"):
                _, holds, _ = run(["zfs", "holds", "-H", name])
                for hold in holds.splitlines():
                    run(["zfs", "release", hold.split("\t")[1], name])
        run(["zfs", "receive", "-A", parent])
        time.sleep(0.05)
    raise AssertionError(f"{parent} cannot be destroyed: {said}")


def half_received(origin: str, target: str) -> None:
    """Leave at `target` what another program began to receive, and never ended; once."""
    if run(["zfs", "list", target])[0] == 0:
        return
    assert run(["zfs", "create", origin])[0] == 0
    Path(f"/{origin}/file").write_bytes(os.urandom(2 << 20))
    assert run(["zfs", "snapshot", f"{origin}@some"])[0] == 0
    sending = subprocess.Popen(["zfs", "send", f"{origin}@some"], stdout=subprocess.PIPE)
    assert sending.stdout is not None
    begun = sending.stdout.read(1 << 20)
    sending.stdout.close()
    sending.wait()
    subprocess.run(["zfs", "receive", "-s", "-u", target], input=begun, capture_output=True)
    token = run(["zfs", "get", "-Ho", "value", "receive_resume_token", target])[1].strip()
    assert len(token) > 10, token


def suspended(pool: str) -> None:
    """Write to a pool whose disk is gone until it is suspended."""
    until = time.monotonic() + 60
    while "SUSPENDED" not in run(["zpool", "list", "-Ho", "health", pool])[1]:
        if time.monotonic() > until:
            raise AssertionError(f"{pool} is not suspended")
        # (A new dataset is a write that does not wait for one that hangs.)
        subprocess.Popen(
            ["zfs", "create", f"{pool}/touched{time.monotonic_ns()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)


def write_random(path: str, size_bytes: int) -> None:
    """A file with so much that does not compress."""
    with Path(path).open("wb") as file:
        for _ in range(size_bytes // _PIECE):
            file.write(os.urandom(_PIECE))
        file.write(os.urandom(size_bytes % _PIECE))


def overwrite(folder: str, seed: int) -> None:
    """Other bytes in the place of some."""
    files.overwrite(Path(folder), seed)


def volume_overwrite(device: str, seed: int) -> None:
    """The same on a block device."""
    with _device(device).open("r+b", buffering=0) as file:
        old = file.read(4096)
        file.seek(0)
        file.write(bytes(byte ^ (1 + seed % 255) for byte in old))


def written(folder: str) -> list[int]:
    """The numbers that programs wrote there."""
    return sorted(files.written(Path(folder)))


def volume_written(device: str, offset: int) -> list[int]:
    """The same on a block device: a byte for each number."""
    with _device(device).open("rb") as file:
        file.seek(offset)
        return [number for number, byte in enumerate(file.read(1000)) if byte == 1]


_writing: dict[str, int] = {}


def begin_writing(path: str) -> None:
    """Have a file, or a block device, open for writing until `end_writing`."""
    made = 0 if path.startswith("/dev/") else os.O_CREAT | os.O_APPEND
    _writing[path] = os.open(path, os.O_WRONLY | os.O_SYNC | made)


def write_number(path: str, offset: int, number: int) -> bool:
    """Append a number, or write a byte for it; whether that was acknowledged."""
    try:
        if path.startswith("/dev/"):
            os.pwrite(_writing[path], b"\1", offset + number)
        else:
            os.write(_writing[path], b"%d\n" % number)
    except OSError:
        return False
    return True


def end_writing(path: str) -> None:
    """Close it."""
    os.close(_writing.pop(path))


def freeze_and_die(location: str) -> None:
    """A process that freezes a dataset, and is killed."""
    from mirrord.core.model import Endpoint
    from mirrord.drivers.registry import open_driver

    child = os.fork()
    if child == 0:
        try:
            driver = open_driver(Endpoint("zfs", location))
            driver.freeze()
            if driver.facts().frozen:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        raise RuntimeError(f"{location} was not frozen")


_open: list[int] = []


def hold_open(path: str) -> None:
    """Have a file or a folder open until `let_go`."""
    _open.append(os.open(path, os.O_RDONLY))


def let_go() -> None:
    """Close what `hold_open` opened."""
    while _open:
        os.close(_open.pop())


def destroy_snapshot(full: str) -> None:
    """Destroy a snapshot, whoever holds it."""
    for hold in run(["zfs", "holds", "-H", full])[1].splitlines():
        run(["zfs", "release", hold.split("\t")[1], full])
    status, _, said = run(["zfs", "destroy", full])
    assert status == 0, said


def write_lines(folders: list[str], log: str, held: bool, pause_s: float = 0.0) -> int:
    """Write numbered lines with O_SYNC until killed, and note in `log` each that was acknowledged;
    returns the process. held: by one descriptor, in the first folder; otherwise each by its path,
    in the first folder that takes it, below a folder that is made when it is not there. What fails
    is tried again with the next line.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.closerange(3, 1000)
        _write_lines(folders, log, held, pause_s)
    finally:
        os._exit(0)


def _write_lines(folders: list[str], log: str, held: bool, pause_s: float) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC
    noted = os.open(log, flags)
    opened = os.open(f"{folders[0]}/lines", flags) if held else -1
    number = 0
    while True:
        number += 1
        line = f"line {number}\n".encode()
        for folder in folders:
            try:
                if not held:
                    os.makedirs(f"{folder}/in", exist_ok=True)
                    opened = os.open(f"{folder}/in/lines{number // 20}", flags)
                os.write(opened, line)
            except OSError:
                time.sleep(0.005)
            else:
                os.write(noted, line)
                break
            finally:
                if not held and opened >= 0:
                    os.close(opened)
                    opened = -1
        time.sleep(pause_s)


def lines(places: list[str]) -> list[str]:
    """The lines in all files that begin so, below these folders, or in these files."""
    found: list[str] = []
    for place in places:
        for path in [Path(place)] if Path(place).is_file() else Path(place).rglob("lines*"):
            found += path.read_text().splitlines()
    return found


def refused(path: str) -> str:
    """Append to a file, or write to a device; why that is refused, "" when it is not."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            if not path.startswith("/dev/"):
                os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def overwrite_file(path: str) -> None:
    """Other data in the same place, no more and no less."""
    with Path(path).open("r+b", buffering=0) as file:
        file.write(os.urandom(4096))
        os.fsync(file.fileno())
    _let_go()


def below_mountpoint(folder: str) -> list[str]:
    """What is in the directory that a file system is mounted on, whatever is mounted there."""
    above, _, name = folder.rpartition("/")
    seen = "/var/tmp/seen"
    os.makedirs(seen, exist_ok=True)
    subprocess.run(["mount", "--bind", above, seen], check=True)
    try:
        return sorted(os.listdir(f"{seen}/{name}")) if os.path.isdir(f"{seen}/{name}") else []
    finally:
        subprocess.run(["umount", seen], check=True)


def hold_for_writing(path: str) -> None:
    """Have a file or a device open for writing until `let_go`."""
    _open.append(os.open(path, os.O_WRONLY))


def unprotect(folder: str) -> None:
    """Undo what keeps people from writing where nothing is mounted: as if it could not be done."""
    from mirrord.drivers.zfs.dataset import mountpoint

    mountpoint.release(folder)
