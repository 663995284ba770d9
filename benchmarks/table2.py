"""Table 2 of the paper, measured: an update by mirrord and by rsync, on two data sets.

The data sets have the proportions of the paper's (FAST'02, section 5.1), a fortieth and a hundredth
of their size: the number of existing and new files, their sizes, the share of new data, and the
share of existing data changed within files that logical mirroring transfers completely.
"""

from __future__ import annotations

import math
import os
import random
import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, filesystem, folder, median, need, run, service, timed
from mirrord.core.endpoint import parse_endpoint
from mirrord.drivers.registry import open_driver
from tests.support.verbs import Service

#: Factor by which the data sets are enlarged.
SCALE = float(os.environ.get("MIRRORD_BENCH_SCALE", "1"))
_FOLDER_FILES = 200
_SPREAD = 1.5
ROUNDS = 3
_ALTERED_BYTES = 2 << 20


class DataSet(NamedTuple):
    """files, file_bytes: initially, and their mean size. new, new_bytes: files added. altered:
    large files in which changed_share of the blocks is rewritten. Of the paper: the ratios of data
    and of time of logical mirroring.
    """

    name: str
    files: int
    file_bytes: int
    new: int
    new_bytes: int
    altered: int
    changed_share: float
    paper_data: float
    paper_time: float


USERS4 = DataSet("Users4", 25_000, 63_000, 1_345, 37_000, 24, 0.05, 4.0 / 2.1, 493 / 140)
USERS5 = DataSet("Users5", 53_000, 25_500, 11_270, 13_300, 49, 0.03, 25.2 / 15.3, 7200 / 797)


class Found(NamedTuple):
    """seconds: until everything has arrived and is durable. bytes: transferred. scan_s: to find
    what has changed.
    """

    seconds: float
    bytes: float
    scan_s: float


def measure() -> list[Row]:
    """Both data sets."""
    return [row for each in (USERS4, USERS5) for row in _rows(each)]


def _rows(each: DataSet) -> list[Row]:
    ours, whole, delta = _measured(each)
    title = f"{each.name}, {each.files * SCALE:,.0f} files"
    sent = f"{ours.bytes / 1e6:.1f} MB in {ours.seconds:.2f} s"
    return [
        Row(
            f"{title}: rsync transfers, times mirrord's data",
            whole.bytes / ours.bytes,
            "x",
            ">=",
            1.5,
            note=f"{each.paper_data:.2f} in the paper; "
            f"{sent}; rsync -W {whole.bytes / 1e6:.1f} MB in {whole.seconds:.2f} s",
        ),
        Row(
            "  and takes, times mirrord's time",
            whole.seconds / ours.seconds,
            "x",
            ">=",
            1.0,
            note=f"{each.paper_time:.1f} in the paper",
        ),
        Row(
            "  rsync with its delta algorithm: data",
            delta.bytes / ours.bytes,
            "x",
            ">=",
            0.0,
            note=f"{delta.bytes / 1e6:.1f} MB in {delta.seconds:.2f} s",
        ),
        Row("  its time", delta.seconds / ours.seconds, "x", ">=", 1.0),
        Row(
            "  finding what changed: mirrord",
            ours.scan_s * 1e3,
            "ms",
            "<=",
            whole.scan_s * 1e3,
            "rsync -n",
            whole.scan_s * 1e3,
        ),
    ]


def _measured(each: DataSet) -> tuple[Found, Found, Found]:
    """mirrord, rsync of whole files, rsync with its delta algorithm: medians of some rounds, in
    which they take turns at being first.
    """
    rsync = need("rsync", "rsync")
    size_gib = 4 + math.ceil(each.files * SCALE * each.file_bytes * 3 / (1 << 30))
    with (
        folder() as inside,
        filesystem(inside, "one", size_gib) as one,
        filesystem(inside, "two", size_gib) as two,
        filesystem(inside, "three", 2 * size_gib) as three,
    ):
        home, made = one / "home", random.Random(each.name)
        run("btrfs", "subvolume", "create", home)
        _fill(home, each, made)
        api = service(inside)
        api.create("home", f"btrfs:{home}", f"btrfs:{two / 'mirror'}")
        api.initialize("home")
        copies = [three / "whole", three / "delta"]
        run("btrfs", "subvolume", "create", copies[0])
        run(rsync, "-aHAX", f"{home}/", copies[0])
        run("btrfs", "subvolume", "snapshot", copies[0], copies[1])
        words = [rsync, "-aHAX", "--delete", f"{home}/"]
        systems = [
            lambda: _mirrord(api, home),
            lambda: _rsync([*words, "--whole-file", str(copies[0])], three),
            lambda: _rsync([*words, "--no-whole-file", str(copies[1])], three),
        ]
        found: list[list[Found]] = [[], [], []]
        for number in range(ROUNDS):
            _work(home, each, made, number)
            for index in range(3):
                turn = (index + number) % 3
                _forget(one, two, three)
                found[turn].append(systems[turn]())
        for copy in (*copies, two / "mirror" / "current"):
            _same(home, copy, rsync)
        api.close()
    return _median(found[0]), _median(found[1]), _median(found[2])


def _median(rounds: list[Found]) -> Found:
    return Found(*(median(list(figures)) for figures in zip(*rounds, strict=True)))


def _mirrord(api: Service, home: Path) -> Found:
    seconds = timed(lambda: api.update("home"))
    sent = int(api.history("home", limit=1).transfers[0].stream_bytes)
    driver = open_driver(parse_endpoint(f"btrfs:{home}"))
    base, incremental = driver.snapshots()[-2:]
    _drop()
    return Found(seconds, sent, timed(lambda: driver.delta(base.guid, incremental.guid)))


def _rsync(command: list[str], copy: Path) -> Found:
    scan_s = timed(lambda: run(*command, "--dry-run"))
    _drop()
    said: list[str] = []

    def work() -> None:
        said.append(run(*command, "--stats"))
        run("sync", "-f", copy)  # an update of mirrord is durable when it returns

    seconds = timed(work)
    counted = re.findall(r"^Total bytes (?:sent|received): ([\d,]+)", said[0], re.MULTILINE)
    return Found(seconds, sum(int(number.replace(",", "")) for number in counted), scan_s)


def _same(home: Path, copy: Path, rsync: str) -> None:
    """Check the copy: no file differs in size, time, owner or mode."""
    listed = run(rsync, "-aHAXn", "--delete", "--itemize-changes", f"{home}/", f"{copy}/")
    assert not listed, listed[:500]


def _forget(*mounts: Path) -> None:
    """Drop the caches: between two updates of a large volume little of it stays in memory."""
    for mount in mounts:
        run("sync", "-f", mount)
        run("btrfs", "subvolume", "sync", mount)
    _drop()


def _drop() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def _size(mean_bytes: int, made: random.Random) -> int:
    """A random size of that mean: few large files and many small ones."""
    drawn = made.lognormvariate(math.log(mean_bytes) - _SPREAD**2 / 2, _SPREAD)
    return max(1, min(int(drawn), 50 * mean_bytes))


def _path(home: Path, index: int) -> Path:
    path = home / f"d{index // _FOLDER_FILES}" / f"f{index}"
    if index % _FOLDER_FILES == 0:
        path.parent.mkdir(exist_ok=True)
    return path


def _fill(home: Path, each: DataSet, made: random.Random) -> None:
    for index in range(int(each.files * SCALE)):
        _path(home, index).write_bytes(os.urandom(_size(each.file_bytes, made)))
    for index in range(int(each.altered * SCALE)):
        (home / f"mailbox{index}").write_bytes(os.urandom(_ALTERED_BYTES))
    os.sync()


def _work(home: Path, each: DataSet, made: random.Random, number: int) -> None:
    """The users' changes since the base: new files, and mailboxes and databases changed in place.
    number: of the round.
    """
    count = int(each.new * SCALE)
    first = -(-int(each.files * SCALE) // _FOLDER_FILES)
    first = (first + number * -(-count // _FOLDER_FILES)) * _FOLDER_FILES
    for index in range(first, first + count):
        _path(home, index).write_bytes(os.urandom(_size(each.new_bytes, made)))
    blocks = _ALTERED_BYTES // 4096
    for index in range(int(each.altered * SCALE)):
        with (home / f"mailbox{index}").open("r+b") as file:
            for block in made.sample(range(blocks), int(blocks * each.changed_share)):
                os.pwrite(file.fileno(), os.urandom(4096), block * 4096)
