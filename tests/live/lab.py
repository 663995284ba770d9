"""Two ends of a live mirror as processes, an NBD client, a proxy for the link, and a checker.

The writer stamps each block with its number and the number of the write, so that what an image
holds tells which writes it has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tests.support.mounts import unmount
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
BLOCK = 4096
VOLUME = f"{77:032x}"
#: Times of the product, shortened.
QUICK = ("--hold", "3", "--timeout", "0.6", "--heartbeat", "0.2", "--retry", "0.3")
STAMP = struct.Struct("<QQ")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.02)


class End:
    """One end: an image, its state folder and a process."""

    def __init__(self, program: Path, folder: Path, role: str, size: int = 0) -> None:
        """size: of a new image; 0: nothing is created."""
        self.program, self.folder = program, folder
        folder.mkdir(exist_ok=True)
        self.image, self.state = folder / "image", folder / "state"
        self.control, self.nbd = folder / "ctl", folder / "nbd"
        self.process: subprocess.Popen[bytes] | None = None
        self.link_port = free_port()
        self.link = f"127.0.0.1:{self.link_port}"
        self.peer: str | None = None
        self.boot: str | None = None
        #: Further arguments of `run`.
        self.options: list[str] = []
        self.environment: dict[str, str] = {}
        if not size:
            return
        with self.image.open("wb") as image:
            image.truncate(size)
        self.create(role)

    def create(self, role: str) -> None:
        self._run("create", "--role", role, "--volume", VOLUME)

    def _files(self) -> list[str]:
        return ["--image", str(self.image), "--state", str(self.state)]

    def _run(self, verb: str, *words: str) -> None:
        subprocess.run([self.program, verb, *self._files(), *words], check=True, timeout=30)

    def start(self, patience_s: float = 30) -> None:
        words = [str(self.program), "run", *self._files(), *QUICK]
        words += ["--control", str(self.control), "--nbd", f"unix:{self.nbd}"]
        words += ["--link", self.link]
        if self.peer:
            words += ["--peer", self.peer]
        words += self.options
        environment = {**os.environ, **self.environment}
        if self.boot:
            environment["MIRRORD_LIVE_BOOT_ID"] = self.boot
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stderr=log, env=environment)
        wait_until(lambda: self.status() is not None, "the control socket", patience_s)

    def kill(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def ask(self, line: str) -> Any:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(20)
            control.connect(str(self.control))
            control.sendall(line.encode() + b"\n")
            with control.makefile("rb") as answers:
                return json.loads(answers.readline())

    def status(self) -> dict[str, Any] | None:
        try:
            return dict(self.ask("status"))
        except (OSError, ValueError):
            return None

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes that the process has in memory; VmHWM: the most that it had."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if field in line)

    def is_state(self, state: str) -> bool:
        status = self.status()
        return status is not None and status.get("state") == state

    def bytes(self) -> bytes:
        return self.image.read_bytes()


class Pair:
    """A primary and a secondary."""

    def __init__(self, program: Path, folder: Path, size: int = 8 << 20) -> None:
        self.primary = End(program, folder / "p", "primary", size)
        self.secondary = End(program, folder / "s", "secondary", size)
        self.primary.peer = f"127.0.0.1:{self.secondary.link_port}"
        self.secondary.peer = f"127.0.0.1:{self.primary.link_port}"

    def start(self) -> None:
        self.secondary.start()
        self.primary.start()
        self.wait_in_sync()

    def hold_long(self) -> None:
        """Before it is started: an outage does not last too long because the host is busy."""
        self.primary.options += ["--hold", "20"]

    def wait_in_sync(self) -> None:
        wait_until(lambda: self.primary.is_state("in-sync"), "sync")

    def stop(self) -> None:
        self.primary.kill()
        self.secondary.kill()

    def assert_equal(self) -> None:
        """Both ends hold the same, once the link works again.

        The state is looked at after the flush: until something is sent, a primary may not know
        that the link is cut. (In semi-sync, wait until all is applied before.)
        """
        with Client(self.primary) as client:
            client.flush()
        states = ("in-sync", "semi-sync")
        wait_until(lambda: any(map(self.primary.is_state, states)), " or ".join(states))
        assert self.primary.bytes() == self.secondary.bytes()


class Server(Protocol):
    """What serves clients at a unix socket."""

    nbd: Path


class Client:
    """A small NBD client: requests are sent without waiting, answers read in any order."""

    def __init__(self, end: Server) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        try:
            self.socket.connect(str(end.nbd))
            self._handshake()
        except BaseException:
            self.socket.close()
            raise

    def _handshake(self) -> None:
        assert self._read(18)[:8] == b"NBDMAGIC"
        self.socket.sendall(struct.pack(">I", 3))
        self.socket.sendall(struct.pack(">8sIIIH", b"IHAVEOPT", 7, 6, 0, 0))
        while True:
            _, _, kind, length = struct.unpack(">QIII", self._read(20))
            self._read(length)
            assert kind < 1 << 31, hex(kind)
            if kind == 1:
                return

    def _read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            piece = self.socket.recv(length - len(found))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            found += piece
        return found

    def send(self, kind: int, cookie: int, offset: int, data: bytes | int, flags: int = 0) -> None:
        length = data if isinstance(data, int) else len(data)
        head = struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length)
        self.socket.sendall(head + (b"" if isinstance(data, int) else data))

    def answer(self) -> tuple[int, int]:
        """Cookie and error code of the next answer."""
        magic, code, cookie = struct.unpack(">IIQ", self._read(16))
        assert magic == 0x67446698, hex(magic)
        return cookie, code

    def write(self, offset: int, data: bytes) -> int:
        self.send(1, 1, offset, data)
        return self.answer()[1]

    def read(self, offset: int, length: int) -> bytes:
        self.send(0, 3, offset, length)
        assert self.answer() == (3, 0)
        return self._read(length)

    def flush(self) -> int:
        self.send(3, 2, 0, 0)
        return self.answer()[1]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def stamp(block: int, number: int) -> bytes:
    return STAMP.pack(block, number) * (BLOCK // STAMP.size)


class Writer(threading.Thread):
    """Writes stamped blocks with several requests under way, and reconnects."""

    def __init__(self, end: End, blocks: int, depth: int = 8) -> None:
        super().__init__(daemon=True)
        self.end, self.blocks, self.depth = end, blocks, depth
        self.issued: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.answered = 0
        self.errors: list[int] = []
        self.is_over = threading.Event()
        self.is_paused = threading.Event()
        #: The block of each acknowledged write, in the order of the acknowledgements, with its
        #: number; and how many of them there were when a write was issued.
        self._order: list[tuple[int, int]] = []
        self._before: dict[int, int] = {}
        #: When each write was issued and acknowledged (monotonic).
        self._issued_s: dict[int, float] = {}
        self._answered_s: dict[int, float] = {}
        self._number = 0
        self._pending: dict[int, int] = {}

    def run(self) -> None:
        while not self.is_over.is_set():
            with contextlib.suppress(OSError), Client(self.end) as client:
                self._write(client)
            time.sleep(0.02)

    def _write(self, client: Client) -> None:
        self._pending = {}
        while not self.is_over.is_set() or self._pending:
            may_issue = not (self.is_over.is_set() or self.is_paused.is_set())
            while may_issue and len(self._pending) < self.depth:
                self._number += 1
                block = (self._number * 7919) % self.blocks
                if block in self._pending.values():
                    continue
                self._pending[self._number] = block
                self.issued[block] = self._number
                self._before[self._number] = len(self._order)
                self._issued_s[self._number] = time.monotonic()
                client.send(1, self._number, block * BLOCK, stamp(block, self._number))
            if not self._pending:
                time.sleep(0.01)
                continue
            cookie, code = client.answer()
            block = self._pending.pop(cookie)
            if code:
                self.errors.append(code)
            else:
                self.answered += 1
                self.acknowledged[block] = cookie
                self._answered_s[cookie] = time.monotonic()
                self._order.append((block, cookie))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is under way meanwhile."""
        self.is_paused.set()
        wait_until(lambda: not self._pending, "the answers")
        yield
        self.is_paused.clear()

    def finish(self) -> None:
        self.is_over.set()
        self.join(40)
        assert not self.is_alive()

    def check(self, image: bytes) -> None:
        """Every acknowledged write is there, or a later one to the same block."""
        for block, number in self.acknowledged.items():
            found = STAMP.unpack_from(image, block * BLOCK)
            assert found[0] == block, (block, found)
            assert number <= found[1] <= self.issued[block], (block, number, found)
            assert image[block * BLOCK : (block + 1) * BLOCK] == stamp(block, found[1])

    def check_prefix(self, image: bytes) -> None:
        """The image is one that some moment could have left: with a write, everything is there
        that was acknowledged before it was issued.
        """
        found: dict[int, int] = {}
        for block in range(self.blocks):
            name, number = STAMP.unpack_from(image, block * BLOCK)
            assert image[block * BLOCK : (block + 1) * BLOCK] == (
                stamp(block, number) if number else bytes(BLOCK)
            ), (block, name, number)
            assert number <= self.issued.get(block, 0), (block, number)
            found[block] = number
        newest = max(found.values())
        for block, number in self._order[: self._before.get(newest, 0)]:
            assert found[block] >= number, (newest, block, number, found[block])

    def lost(self, image: bytes) -> list[int]:
        """The acknowledged writes that the image lacks, and that no later one replaced in it."""
        found = [STAMP.unpack_from(image, block * BLOCK)[1] for block in range(self.blocks)]
        return sorted(number for block, number in self._order if found[block] < number)

    def age_s(self, number: int) -> float:
        """At least how old a write was when the last acknowledged one was answered."""
        last = max(number for _, number in self._order)
        return self._issued_s[last] - self._answered_s[number]


class Proxy:
    """Between the ends: cuts, stalls one direction, and flips bits."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.is_cut = False
        #: Direction to discard: "up" is from the primary.
        self.discards: str | None = None
        self.flips = 0
        #: A path that passes small packets only: what is behind a large one waits for it.
        self.is_black_hole = False
        #: What passed, if a test asks for it.
        self.seen: bytearray | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for name, source, sink in (("up", near, far), ("down", far, near)):
                    words = (name, source, sink)
                    threading.Thread(target=self._pump, args=words, daemon=True).start()

    def _pump(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            is_stuck = False
            while data := source.recv(1 << 16):
                is_stuck |= self.is_black_hole and len(data) > 1400
                if is_stuck or self.discards == name:
                    continue
                if self.seen is not None:
                    self.seen += data
                if self.flips and len(data) > 200:
                    self.flips -= 1
                    data = data[:150] + bytes([data[150] ^ 4]) + data[151:]
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open = []

    def heal(self) -> None:
        self.is_cut = False
        self.discards = None

    def close(self) -> None:
        self.cut()
        self.listener.close()


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs that is soon full."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield folder
    finally:
        unmount(folder)


@contextlib.contextmanager
def ext4(folder: Path, size: str) -> Iterator[Path]:
    """A small ext4 on a loop device."""
    folder.mkdir()
    device = folder.with_suffix(".ext4")
    subprocess.run(["mkfs.ext4", "-q", device, size], check=True)
    subprocess.run(["mount", "-o", "loop", device, folder], check=True)
    try:
        yield folder
    finally:
        unmount(folder)
