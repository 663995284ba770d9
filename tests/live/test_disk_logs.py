"""What both ends write to their disks is recorded, and replayed to each moment at which one of them
has synced or a FLUSH was answered: the power fails then, at one end or both, and real processes
start from what the disks hold.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.live.lab import BLOCK, STAMP, Client, End, Pair, Proxy, stamp, wait_until
from tests.live.recorder import FILES, SECTOR, SHIM, Log, Medium, Record
from tests.support import preload

SIZE = 4 << 20
_QUICK = ["--hold", "0.7", "--timeout", "0.4", "--heartbeat", "0.1", "--retry", "0.1"]
#: io_uring makes no calls that a library could record.
_QUICK += ["--io", "threads"]
_BOOT = f"{1:032x}"
#: Which ends lose power; the other one's process is killed. `for good`: the primary stays away.
ACCIDENTS = {"both": (0, 1), "primary": (0,), "secondary": (1,), "for good": (0, 1)}


class Known:
    """What a client knew at one moment: by block, the numbers of writes."""

    def __init__(self) -> None:
        self.issued: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.flushed: dict[int, int] = {}
        self.is_in_sync = self.was_in_sync = False
        #: What was flushed when a write was issued.
        self.before: dict[int, dict[int, int]] = {}
        self._wanted: dict[int, dict[int, int]] = {}

    def take(self, record: Record) -> None:
        number, block = record.offset, record.length
        if record.kind == "issu":
            self.issued[block] = number
            self.before[number] = self.flushed
        elif record.kind == "ackn":
            self.acknowledged[block] = number
        elif record.kind == "want":
            self._wanted[number] = dict(self.acknowledged)
        elif record.kind == "flus":
            self.flushed = self._wanted.pop(number)
        else:
            self.is_in_sync = record.kind == "both"
            self.was_in_sync = True

    def copy(self) -> Known:
        made = Known()
        made.issued, made.acknowledged = dict(self.issued), dict(self.acknowledged)
        made.flushed, made.before = self.flushed, self.before
        made.is_in_sync, made.was_in_sync = self.is_in_sync, self.was_in_sync
        return made

    def check(self, image: bytes, least: dict[int, int]) -> None:
        """Each sector has a write to it that was issued, and none older than `least`."""
        for block in range(SIZE // BLOCK):
            for sector in range(block * BLOCK, (block + 1) * BLOCK, SECTOR):
                name, number = STAMP.unpack_from(image, sector)
                assert (name if number else block) == block, (block, name, number)
                whole = stamp(block, number)[:SECTOR] if number else bytes(SECTOR)
                assert image[sector : sector + SECTOR] == whole, (block, number)
                assert least.get(block, 0) <= number <= self.issued.get(block, 0), (
                    block,
                    number,
                    least.get(block),
                    self.issued.get(block),
                )

    def newest(self, image: bytes) -> int:
        sectors = range(0, SIZE, SECTOR)
        return max(int(STAMP.unpack_from(image, sector)[1]) for sector in sectors)


class Moment(NamedTuple):
    """Both ends' files as some accident leaves them at one moment, and what was known."""

    position: int
    accident: str
    files: list[dict[str, bytes]]
    known: Known

    @property
    def name(self) -> str:
        return f"{self.position}-{self.accident}"


def _paths(end: End) -> dict[str, Path]:
    return dict(zip(FILES, (end.image, end.state / "tracking", end.state / "side"), strict=True))


class NotingClient:
    """Writes stamped blocks, some at the same time, and flushes; all of it is noted."""

    def __init__(self, end: End, log: Log, seed: int) -> None:
        self.client, self.log = Client(end), log
        self.chance = random.Random(seed)
        self.number = 0

    def work(self, requests: int) -> None:
        """So many, several at the same time: a FLUSH may arrive while another one is executed."""
        pending: dict[int, int | None] = {}
        while requests or pending:
            if requests and len(pending) < 5:
                requests -= 1
                self._send(pending)
                continue
            number, code = self.client.answer()
            assert code == 0
            block = pending.pop(number)
            self.log.note("flus" if block is None else "ackn", number, block or 0)

    def _send(self, pending: dict[int, int | None]) -> None:
        self.number += 1
        block = self._block()
        if self.chance.random() < 0.25:
            pending[self.number] = None
            self.log.note("want", self.number)
            self.client.send(3, self.number, 0, 0)
        elif block not in pending.values():
            pending[self.number] = block
            self.log.note("issu", self.number, block)
            self.client.send(1, self.number, block * BLOCK, stamp(block, self.number))

    def _block(self) -> int:
        """Some are written again and again, in each part of the image."""
        return self.chance.randrange(4) * (SIZE // BLOCK // 4) + self.chance.randrange(12)


class Recording:
    """A run of two ends: first copy, in sync, a cut, out of sync, a resync, in sync."""

    def __init__(self, program: Path, folder: Path, seed: int, requests: int = 60) -> None:
        self.program, self.folder, self.requests = program, folder, requests
        library = preload.build(SHIM, folder / "record.so")
        self.log = Log(folder / "log")
        pair = Pair(program, folder, SIZE)
        self.base: list[dict[str, bytes]] = []
        for number, end in enumerate((pair.primary, pair.secondary)):
            paths = _paths(end)
            self.base.append({name: path.read_bytes() for name, path in paths.items()})
            end.options, end.boot = _QUICK, _BOOT
            end.environment = {
                "LD_PRELOAD": str(library),
                "RECORD_LOG": str(self.log.path),
                "RECORD_END": str(number),
                "RECORD_FILES": ":".join(map(str, paths.values())),
            }
        proxy = Proxy(pair.secondary.link_port)
        pair.primary.peer = f"127.0.0.1:{proxy.port}"
        try:
            self._run(pair, proxy, seed)
        finally:
            pair.stop()
            proxy.close()
            self.log.close()

    def _run(self, pair: Pair, proxy: Proxy, seed: int) -> None:
        pair.start()
        self.log.note("both")
        client = NotingClient(pair.primary, self.log, seed)
        client.work(self.requests)
        self.log.note("part")
        proxy.cut()
        wait_until(lambda: pair.primary.is_state("out-of-sync"), "leaving sync")
        client.work(self.requests // 2)
        assert pair.primary.ask(f"copy-rate {1 << 20}") == {"ok": True}
        proxy.heal()
        wait_until(lambda: not pair.primary.is_state("out-of-sync"), "the resync")
        while not pair.primary.is_state("in-sync"):
            client.work(4)
        self.log.note("both")
        client.work(self.requests // 2)
        client.client.socket.close()

    def moments(self, accidents: Callable[[int, bool], list[str]]) -> Iterator[Moment]:
        """When a sync has ended and when a FLUSH was answered. accidents: which to try at a moment,
        by its number and whether the ends were in sync.
        """
        disks = [{name: Medium(content) for name, content in end.items()} for end in self.base]
        known, number = Known(), 0
        for record in self.log.records():
            if record.end == 9:
                known.take(record)
            is_moment = record.kind == "flus" or (
                record.end != 9 and disks[record.end][record.file].take(record)
            )
            if is_moment:
                for accident in accidents(number, known.is_in_sync):
                    yield _moment(record.position, accident, disks, known)
                number += 1


def _moment(position: int, accident: str, disks: list[dict[str, Medium]], known: Known) -> Moment:
    chance = random.Random(f"{position} {accident}")
    loss = chance.choice(["none", "all", "some", "some"])
    files = [
        {
            name: medium.after_power_cut(chance, loss)
            if number in ACCIDENTS[accident]
            else medium.after_kill(chance)
            for name, medium in disk.items()
        }
        for number, disk in enumerate(disks)
    ]
    return Moment(position, accident, files, known.copy())


def _restarted(program: Path, folder: Path, moment: Moment) -> tuple[End, End]:
    """Both ends with those files."""
    ends = (End(program, folder / "p", "primary"), End(program, folder / "s", "secondary"))
    for number, end in enumerate(ends):
        end.state.mkdir()
        for name, path in _paths(end).items():
            path.write_bytes(moment.files[number][name])
        end.options, end.boot = _QUICK, _BOOT
        if number in ACCIDENTS[moment.accident]:
            end.boot = f"{number + 2:032x}"
        # Ports that are free now may not be when it starts: many others start, too.
        end.link = f"unix:{end.folder}/link"
    ends[0].peer = ends[1].link
    return ends


def _survive(program: Path, folder: Path, moment: Moment) -> None:
    """Start from the files, let the ends exchange, and look at both images."""
    folder.mkdir()
    known = moment.known
    primary, secondary = _restarted(program, folder, moment)
    try:
        secondary.start()
        if moment.accident == "for good":
            answer = secondary.ask("break")
            if answer != {"ok": True}:
                assert not known.was_in_sync, answer
                return
            least = known.flushed if known.is_in_sync else None
        else:
            primary.start()
            wait_until(lambda: primary.is_state("in-sync"), "sync")
            least = known.flushed
            if moment.accident == "secondary" or (
                moment.accident == "primary" and known.is_in_sync
            ):
                least = known.acknowledged
    finally:
        primary.kill()
        secondary.kill()
    image = secondary.bytes()
    if least is None:
        least = known.before.get(known.newest(image), {})
    known.check(image, least)
    if moment.accident != "for good":
        assert primary.bytes() == image
    shutil.rmtree(folder)


def _survive_all(recording: Recording, moments: Iterator[Moment]) -> int:
    """Some at the same time, as they mostly wait; how many there were."""
    waiting = threading.BoundedSemaphore(6)

    def one(moment: Moment) -> None:
        try:
            _survive(recording.program, recording.folder / moment.name, moment)
        except Exception as error:
            raise AssertionError(f"{moment.name}: {error}") from error
        finally:
            waiting.release()

    with ThreadPoolExecutor(3) as pool:
        done = []
        for moment in moments:
            waiting.acquire()
            done.append(pool.submit(one, moment))
        for each in done:
            each.result()
    return len(done)


def test_power_fails_at_each_sync(program: Path, tmp_path: Path) -> None:
    recording = Recording(program, tmp_path, 1)

    def accidents(number: int, is_in_sync: bool) -> list[str]:
        some = [list(ACCIDENTS)[number % 4]]
        return some if is_in_sync else list({*some, "for good"})

    assert _survive_all(recording, recording.moments(accidents)) > 60


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2, 5))
def test_every_accident_at_each_sync(program: Path, tmp_path: Path, seed: int) -> None:
    recording = Recording(program, tmp_path, seed, 400)
    assert _survive_all(recording, recording.moments(lambda *_: list(ACCIDENTS))) > 800
