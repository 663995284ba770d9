"""Synchronous mirroring of an image over NBD, beside QEMU's quorum: 8 KiB random writes by fio.

The configurations alternate, round by round, as other load on the machine changes; medians are
compared. Processor time is that of both daemons, per write. The mirror's tracking is on a real
disk; the images are in memory, so that the software is measured, and on that disk for writes that
are followed by a flush. With TLS both encrypt the link. In an image of 1 TiB almost each write is
the first one in its extent. The cost of sync on disks of a limited rate: live_capped.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, median, need
from tests.live.lab import VOLUME
from tests.live.test_tls import Authority
from tests.support.ports import free_port
from tests.support.service import processor_s

_NATIVE = Path(__file__).parents[1] / "native"
ROUNDS = 3
RUN_S = 2
SIZE = 1 << 30
SPARSE = 1 << 40
#: Added to each round trip of the delayed link, microseconds.
DELAY_US = 5000


def build() -> Path:
    """The program, compiled beside what the measurements need."""
    cargo = [shutil.which("with-cargo") or str(_NATIVE.parent / ".venv/bin/with-cargo"), "cargo"]
    words = [
        *cargo,
        "build",
        "--release",
        "--quiet",
        "--locked",
        "-p",
        "mirrord-live",
        "-p",
        "mirrord-live-sim",
    ]
    subprocess.run(words, cwd=_NATIVE, check=True, timeout=280)
    target = Path(os.environ.get("CARGO_TARGET_DIR", _NATIVE / "target"))
    return target / "release/mirrord-live"


class Result(NamedTuple):
    """One run of fio."""

    iops: float
    latency_us: float
    processor_us: float


class Running:
    """Programs that serve one image; `uri` is where a client connects. group: the control group
    that they run in.
    """

    def __init__(self, folder: Path, size: int = SIZE, group: Path | None = None) -> None:
        self.folder, self.size, self.group = folder, size, group
        self.uri = f"nbd+unix:///d0?socket={folder}/q.sock"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str | Path, counted: bool = True, library: str = "") -> None:
        environment = dict(os.environ)
        if library:
            environment["LD_LIBRARY_PATH"] = library
        process = subprocess.Popen(
            [str(word) for word in words], env=environment, stderr=subprocess.DEVNULL
        )
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(process.pid))
        if counted:
            self.processes.append(process)
        else:
            self.helper = process

    def processor_s(self) -> float:
        return sum(processor_s(process.pid) for process in self.processes)

    def stop(self) -> None:
        # A server may wait for its clients to close: all are told before one is waited for.
        started = [*self.processes, *([self.helper] if hasattr(self, "helper") else [])]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(place: Path | int) -> None:
    """Wait until a program listens at that unix socket, or at that port of this host."""
    deadline = time.monotonic() + 60
    kind, address = (
        (socket.AF_UNIX, str(place))
        if isinstance(place, Path)
        else (socket.AF_INET, ("127.0.0.1", place))
    )
    while True:
        with socket.socket(kind) as client:
            if client.connect_ex(address) == 0:
                break
        assert time.monotonic() < deadline, f"nothing listens at {place}"
        time.sleep(0.02)
    time.sleep(0.5)


def _image(folder: Path, name: str, size: int = SIZE) -> Path:
    path = folder / name
    with path.open("wb") as image:
        image.truncate(size)
    return path


class Devices(NamedTuple):
    """Existing images of both ends, of one size, and the control group of what writes to them."""

    primary: Path
    secondary: Path
    size: int
    group: Path


def mirrord(
    folder: Path,
    disk: Path,
    delay: int = 0,
    *,
    size: int = SIZE,
    devices: Devices | None = None,
    authority: Authority | None = None,
) -> Running:
    program = build()
    running = Running(folder, size)
    if devices is not None:
        running = Running(folder, devices.size, devices.group)
    port = free_port()
    for role in ("secondary", "primary"):
        state = disk / f"{role}-{port}"
        image = getattr(devices, role) if devices else _image(folder, role, size)
        files: list[str | Path] = ["--image", image, "--state", state]
        words: list[str | Path] = [
            "create",
            *files,
            "--role",
            role,
            "--volume",
            VOLUME,
            "--in-sync",
        ]
        subprocess.run([program, *words], check=True)
        words = [program, "run", *files, "--control", folder / f"{role}.ctl", "--export", "d0"]
        if authority is not None:
            peer = "primary" if role == "secondary" else "secondary"
            words += authority.link(role, peer)
        if role == "secondary":
            running.start(*words, "--link", f"127.0.0.1:{port}")
            continue
        target = port
        if delay:
            target = free_port()
            proxy = program.with_name("delay-proxy")
            ends = (f"127.0.0.1:{target}", f"127.0.0.1:{port}")
            running.start(proxy, *ends, str(delay), counted=False)
            time.sleep(0.3)
        nbd = f"unix:{folder}/q.sock"
        running.start(*words, "--nbd", nbd, "--peer", f"127.0.0.1:{target}")
    _wait_for(folder / "q.sock")
    return running


def _qemu() -> tuple[str, str]:
    """QEMU's storage daemon and its libraries: version 10 if the tests' cache has it."""
    for root in Path.home().glob(".cache/mirrord/zfsvm/*/qemu"):
        return str(root / "usr/bin/qemu-storage-daemon"), str(root / "usr/lib/x86_64-linux-gnu")
    return need("qemu-storage-daemon", "qemu-system-common"), ""


def quorum(
    folder: Path,
    nbdkit: bool,
    delay: int = 0,
    *,
    size: int = SIZE,
    authority: Authority | None = None,
) -> Running:
    program, library = _qemu()
    running = Running(folder, size)
    port = free_port()
    near, far = _image(folder, "p.raw", size), _image(folder, "s.raw", size)

    def node(name: str, path: Path) -> list[str]:
        file = f"driver=file,node-name=f{name},filename={path}"
        return ["--blockdev", file, "--blockdev", f"driver=raw,node-name={name},file=f{name}"]

    if nbdkit:
        words = [need("nbdkit", "nbdkit"), "-f", "-p", str(port), "-i", "127.0.0.1", "-e", "s0"]
        delays = ["--filter=delay"] if delay else []
        options = [f"wdelay={delay // 1000}ms"] if delay else []
        running.start(*words, "-t", "128", *delays, "file", far, *options)
    else:
        server = f"addr.type=inet,addr.host=127.0.0.1,addr.port={port}"
        export = "type=nbd,id=e0,node-name=d0,name=s0,writable=on"
        words = [program, *_credentials(authority, "server"), *node("d0", far), "--nbd-server"]
        words += [f"{server},tls-creds=t0" if authority else server, "--export", export]
        running.start(*words, library=library)
    _wait_for(port)
    remote = f"driver=nbd,node-name=r0,server.type=inet,server.host=127.0.0.1,server.port={port}"
    if authority is not None:
        remote += ",tls-creds=t0,tls-hostname=localhost"
    both = "driver=quorum,node-name=q0,vote-threshold=2,children.0=l0,children.1=r0"
    words = [
        program,
        *_credentials(authority, "client"),
        *node("l0", near),
        "--blockdev",
        f"{remote},export=s0",
        "--blockdev",
        both,
    ]
    words += ["--nbd-server", f"addr.type=unix,addr.path={folder}/q.sock"]
    words += ["--export", "type=nbd,id=e0,node-name=q0,name=d0,writable=on"]
    running.start(*words, library=library)
    _wait_for(folder / "q.sock")
    return running


def _credentials(authority: Authority | None, end: str) -> list[str]:
    if authority is None:
        return []
    folder = authority.folder / f"qemu-{end}"
    if not folder.exists():
        folder.mkdir()
        authority.signed(end, "ca")
        for name, file in (("ca", "ca-cert.pem"), (end, f"{end}-cert.pem")):
            shutil.copy(authority.folder / f"{name}.pem", folder / file)
        shutil.copy(authority.folder / f"{end}.key", folder / f"{end}-key.pem")
    return ["--object", f"tls-creds-x509,id=t0,endpoint={end},dir={folder},verify-peer=on"]


def plain(folder: Path, program: Path, devices: Devices | None = None) -> Running:
    """The same front end without replication: mode async, without a peer."""
    running = Running(folder)
    if devices is not None:
        running = Running(folder, devices.size, devices.group)
    image = devices.primary if devices else _image(folder, "image")
    files: list[str | Path] = ["--image", image, "--state", folder / "state"]
    words: list[str | Path] = ["create", *files, "--role", "primary", "--volume", VOLUME]
    subprocess.run([program, *words], check=True)
    socket = f"unix:{folder}/q.sock"
    words = [program, "run", *files, "--control", folder / "ctl", "--export", "d0", "--nbd", socket]
    running.start(*words)
    _wait_for(folder / "q.sock")
    return running


def fio(running: Running, depth: int, *more: str) -> Result:
    words = ["fio", "--name=j", "--ioengine=nbd", f"--uri={running.uri}", "--rw=randwrite"]
    words += [
        "--bs=8k",
        f"--iodepth={depth}",
        f"--size={running.size}",
        "--norandommap",
        "--time_based",
    ]
    words += ["--refill_buffers", f"--runtime={RUN_S}", "--output-format=json", *more]
    before = running.processor_s()
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    spent = running.processor_s() - before
    write = json.loads(said[said.index("{") :])["jobs"][0]["write"]
    per_write = spent * 1e6 / max(1, write["total_ios"])
    return Result(write["iops"], write["lat_ns"]["mean"] / 1000, per_write)


@contextlib.contextmanager
def _served(make: Callable[[Path], Running], memory: Path, name: str) -> Iterator[Running]:
    folder = memory / name
    folder.mkdir()
    running = make(folder)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


Makers = dict[str, Callable[[Path], Running]]


def medians(makers: Makers, memory: Path, depth: int, *more: str) -> dict[str, Result]:
    found: dict[str, list[Result]] = {name: [] for name in makers}
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(_served(make, memory, name)) for name, make in makers.items()
        }
        for name in makers:
            fio(running[name], 16, *more)
        for _ in range(ROUNDS):
            for name in makers:
                found[name].append(fio(running[name], depth, *more))
    return {
        name: Result(*(median(list(column)) for column in zip(*results, strict=True)))
        for name, results in found.items()
    }


def measure() -> list[Row]:
    need("fio", "fio")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(dir="/var/tmp") as disk,
    ):
        return _rows(Path(memory), Path(disk))


def _rows(memory: Path, disk: Path) -> list[Row]:
    makers: Makers = {
        "mirrord": lambda folder: mirrord(folder, disk),
        "quorum": lambda folder: quorum(folder, nbdkit=False),
        "quorum-nbdkit": lambda folder: quorum(folder, nbdkit=True),
        "none": lambda folder: plain(folder, build()),
    }
    rows = []
    for depth, target, kit in ((1, 1.5, 1.1), (16, 2.5, 1.5)):
        found = medians(makers, memory, depth)
        ours = found["mirrord"]
        for peer, least in (("quorum", target), ("quorum-nbdkit", kit)):
            ratio = ours.iops / found[peer].iops
            note = f"{ours.iops:.0f} to {found[peer].iops:.0f} IOPS"
            rows.append(Row(f"qd{depth} against {peer}", ratio, "x", ">=", least, note=note))
        ratio = ours.processor_us / found["quorum"].processor_us
        note = f"{ours.processor_us:.1f} to {found['quorum'].processor_us:.1f} us a write"
        rows.append(Row(f"qd{depth} processor", ratio, "x", "<=", 0.4, note=note))
        ratio = ours.processor_us / found["none"].processor_us
        note = f"{found['none'].processor_us:.1f} us unreplicated"
        rows.append(Row(f"qd{depth} processor to none", ratio, "x", "<=", 2.2, note=note))
    for depth, target in ((1, 1.5), (16, 3.0)):
        chosen = {name: makers[name] for name in ("mirrord", "quorum")}
        found = medians(chosen, disk, depth, "--fsync=1")
        ratio = found["mirrord"].iops / found["quorum"].iops
        note = f"{found['mirrord'].iops:.0f} to {found['quorum'].iops:.0f} IOPS"
        rows.append(Row(f"qd{depth} with flushes", ratio, "x", ">=", target, note=note))
    return [*rows, *_sparse(memory, disk), *_encrypted(memory, disk), *_delayed(memory, disk)]


def _against_quorum(name: str, makers: Makers, memory: Path) -> list[Row]:
    rows = []
    for depth, target in ((1, 1.5), (16, 2.5)):
        found = medians(makers, memory, depth)
        ours, theirs = found["mirrord"], found["quorum"]
        note = (
            f"{ours.iops:.0f} to {theirs.iops:.0f} IOPS, {ours.processor_us:.1f} to "
            f"{theirs.processor_us:.1f} us of processor time a write"
        )
        ratio = ours.iops / theirs.iops
        rows.append(Row(f"qd{depth} {name}", ratio, "x", ">=", target, note=note))
    return rows


def _sparse(memory: Path, disk: Path) -> list[Row]:
    makers: Makers = {
        "mirrord": lambda folder: mirrord(folder, disk, size=SPARSE),
        "quorum": lambda folder: quorum(folder, nbdkit=False, size=SPARSE),
    }
    return _against_quorum("against quorum, 1 TiB, cold extents", makers, memory)


def _encrypted(memory: Path, disk: Path) -> list[Row]:
    authority = Authority(disk / "pki")
    for name in ("ca", "primary", "secondary"):
        authority.own(name)
    makers: Makers = {
        "mirrord": lambda folder: mirrord(folder, disk, authority=authority),
        "quorum": lambda folder: quorum(folder, nbdkit=False, authority=authority),
    }
    return _against_quorum("against quorum, both with TLS", makers, memory)


def _delayed(memory: Path, disk: Path) -> list[Row]:
    makers: Makers = {
        "mirrord": lambda folder: mirrord(folder, disk, DELAY_US),
        "quorum-nbdkit": lambda folder: quorum(folder, nbdkit=True, delay=DELAY_US),
    }
    found = medians(makers, memory, 88)
    ours, theirs = found["mirrord"], found["quorum-nbdkit"]
    bound = 88 / (DELAY_US / 1e6)
    note = f"{ours.iops:.0f} to {theirs.iops:.0f} IOPS"
    rows = [
        Row("5 ms qd88 against quorum", ours.iops / theirs.iops, "x", ">=", 5, note=note),
        Row("5 ms qd88 to depth/RTT", ours.iops / bound, "x", ">=", 0.85),
    ]
    single = medians({"mirrord": makers["mirrord"]}, memory, 1)["mirrord"]
    trip_us = _round_trip_us(DELAY_US)
    note = f"{single.latency_us:.0f} us; {trip_us:.0f} us by two sockets alone"
    above_us = single.latency_us - trip_us
    return [*rows, Row("5 ms qd1 above the link", above_us, "us", "<=", 150, note=note)]


def _round_trip_us(delay_us: int) -> float:
    """8 KiB there and 64 bytes back through the proxy, which delays by more than it is asked to."""
    server = socket.create_server(("127.0.0.1", 0))
    port = free_port()
    ends = (f"127.0.0.1:{port}", f"127.0.0.1:{server.getsockname()[1]}", str(delay_us))
    proxy = subprocess.Popen([build().with_name("delay-proxy"), *ends])

    def echo() -> None:
        peer, _ = server.accept()
        while peer.recv(8192, socket.MSG_WAITALL):
            peer.sendall(bytes(64))

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        time.sleep(0.3)
        found = []
        with socket.create_connection(("127.0.0.1", port)) as client:
            for _ in range(200):
                began = time.perf_counter()
                client.sendall(bytes(8192))
                client.recv(64, socket.MSG_WAITALL)
                found.append((time.perf_counter() - began) * 1e6)
    finally:
        proxy.terminate()
        proxy.wait()
        thread.join()
        server.close()
    return median(found)
