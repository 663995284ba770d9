"""Cuts of the connection at 10, 50 and 90 % of a transfer: the data sent again, the time lost.

Compared with btrbk over ssh, cut at the same shares of its data. A part of `benchmarks.remote`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, run, timed
from benchmarks.remote_stage import Stage, stage
from mirrord.core.results import Silent
from mirrord.drivers.registry import block_volumes

SIZE = 1 << 30
SHARES = (10, 50, 90)


class Cut(NamedTuple):
    """resent: bytes. lost_s: until the transfer had again reached the place of the cut."""

    resent: int
    lost_s: float


class Cutting(Silent):
    """Watches a transfer, and cuts the connection after given numbers of bytes."""

    def __init__(self, places: list[int], cut: Callable[[], None]) -> None:
        self._places, self._cut = places, cut
        self._at = 0
        #: Where and when the last cut was, until the transfer has reached that place again.
        self._lost: tuple[int, float] | None = None
        self._resent, self._back = 0, False
        self.cuts: list[Cut] = []

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """It begins, or is resumed after so many bytes."""
        if self._lost is not None:
            # Bytes handed over after the cut are included.
            self._lost = self._at, self._lost[1]
            self._resent, self._back = self._at - done_bytes, True
        self._at = done_bytes

    def moved(self, stream_bytes: int) -> None:
        """So many bytes were transferred."""
        self._at += stream_bytes
        if self._back and self._lost is not None and self._at > self._lost[0]:
            self.cuts.append(Cut(self._resent, time.perf_counter() - self._lost[1]))
            self._lost, self._back = None, False
        if self._places and self._at >= self._places[0]:
            self._places.pop(0)
            self._lost = self._at, time.perf_counter()
            self._cut()


def measure() -> list[Row]:
    """A transfer of each kind, cut three times; and runs of btrbk, cut once each."""
    with stage(9) as at:
        peers = _btrbk(at)
    return [row for kind in ("btrfs", "block") for row in _ours(kind, peers)]


def _ours(kind: str, peers: list[tuple[int, float]]) -> list[Row]:
    with stage(6) as at:
        places = [SIZE * share // 100 for share in SHARES]
        watcher = Cutting(places, lambda: at.cut(_agent(at)))
        api = at.service(watcher)
        source, destination = _volume(at, kind)
        api.create("cut", source, destination)
        whole = timed(lambda: api.initialize("cut"))
        api.close()
    assert len(watcher.cuts) == len(SHARES)
    rows = []
    for share, cut, (resent, lost_s) in zip(SHARES, watcher.cuts, peers, strict=True):
        rows += [
            Row(
                f"{kind} volume, cut at {share} %: sent again",
                cut.resent / (1 << 20),
                "MiB",
                "<=",
                16,
                "btrbk",
                resent / (1 << 20),
            ),
            Row(
                "  time lost",
                cut.lost_s,
                "s",
                "<=",
                2,
                "btrbk",
                lost_s,
                f"whole transfer of 1 GiB with its cuts: {whole:.1f} s" if share == 90 else "",
            ),
        ]
    return rows


def _agent(at: Stage) -> int:
    [pid] = [link.peer.pid for link in at.shared.links._links.values()]
    return pid


def _volume(at: Stage, kind: str) -> tuple[str, str]:
    """A volume of that kind with random data; its endpoint and that of the destination."""
    path = at.one / "home"
    if kind == "btrfs":
        run("btrfs", "subvolume", "create", path)
        _noise(path / "file")
    else:
        with block_volumes().Volume.create(path, 2 * SIZE) as volume:
            for offset in range(0, SIZE, 4 << 20):
                volume.write(offset, os.urandom(4 << 20))
    os.sync()
    return f"{kind}:{path}", f"{kind}://dr{at.two / 'copy'}"


def _noise(file: Path) -> None:
    with file.open("wb") as stream:
        for _ in range(0, SIZE, 4 << 20):
            stream.write(os.urandom(4 << 20))


def _btrbk(at: Stage) -> list[tuple[int, float]]:
    """(bytes sent again, seconds lost) of a run that is cut when each share of it has arrived."""
    # Each has its own source: btrbk would send increments of a source that is already there.
    for name in ("whole", *(f"cut{share}" for share in SHARES)):
        run("btrfs", "subvolume", "create", at.one / name)
        _noise(at.one / name / "file")
    os.sync()
    whole = timed(lambda: at.run(at.btrbk("to-whole", ["whole"])))
    found = []
    for share in SHARES:
        name = f"cut{share}"
        words = at.btrbk(f"to-{name}", [name])
        os.sync()
        began = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            cut = pool.submit(_cut_later, at, f"to-{name}", SIZE * share // 100)
            failed = subprocess.run(words, env=at.variables(), capture_output=True).returncode
            sent = cut.result()
        assert failed, "btrbk was done before it was cut"
        at.run(words)
        found.append((sent, time.perf_counter() - began - whole))
    return found


def _cut_later(at: Stage, name: str, place: int) -> int:
    """Cut when so many bytes have arrived; returns how many had."""
    until = time.perf_counter() + 120
    while (here := _received(at, name)) < place:
        assert time.perf_counter() < until
        time.sleep(0.005)
    at.cut()
    return here


def _received(at: Stage, name: str) -> int:
    """The received bytes of a transfer; after a cut btrbk deletes them, and starts again."""
    return sum(file.stat().st_size for file in (at.two / name).glob("*/file"))
