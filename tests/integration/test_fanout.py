"""One source, several destinations: one snapshot, one reading, and nobody waits for a laggard."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrord.control.shared import Shared
from mirrord.core.errors import Aborted, TransferFailed
from mirrord.drivers.streams import SendStream
from mirrord.engine import fanout
from mirrord.engine.fanout import Fanout
from mirrord.engine.transfer import Route
from mirrord.system.waiting import Waiting
from tests.contract.lab import Lab
from tests.support.verbs import Service
from tests.support.world import World

NAMES = ("one", "two", "three")
pytestmark = pytest.mark.in_process


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str]]:
    """Every reading of a source that more than one mirror could have shared."""
    found: list[tuple[str, str | None, str]] = []
    inner = Route.send

    def send(route: Route, base: str | None, guid: str, checkpoint: Any) -> SendStream:
        source: Any = route.sender
        opened = source.send

        def counted(*words: Any, **more: Any) -> SendStream:
            found.append((str(source), base, guid))
            stream: SendStream = opened(*words, **more)
            return stream

        monkeypatch.setattr(source, "send", counted, raising=False)
        return inner(route, base, guid, checkpoint)

    monkeypatch.setattr(Route, "send", send)
    return found


def together(world: World, method: str) -> list[Any]:
    """The verb on all three at the same time, each in a service of its own, as a daemon does."""
    results: dict[str, Any] = {}
    gate, shared = threading.Barrier(len(NAMES)), Shared()

    def work(name: str) -> None:
        service = Service(world.paths, shared=shared)
        gate.wait()
        try:
            results[name] = getattr(service, method)(name)
        finally:
            service.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[name] for name in NAMES]


@pytest.fixture
def fan(world: World, lab: Lab, tmp_path: Path) -> World:
    source = str(lab.source())
    beside = Path(lab.destination().location).parent
    kind = lab.destination().kind
    for name in NAMES:
        world.service.create(name, source, f"{kind}:{beside}/copy-{name}")
    return world


def shown(world: World, name: str) -> str:
    [row] = world.service.status(name)
    assert row.healthy, row
    return row.reading.shown


def test_mirrors_that_run_together_read_the_source_once(
    fan: World, lab: Lab, readings: list[Any]
) -> None:
    together(fan, "initialize")
    bases = {shown(fan, name) for name in NAMES}
    for seed in range(25):
        lab.change(lab.source(), seed)
        readings.clear()
        results = together(fan, "update")
        assert [result.status for result in results] == ["done"] * 3
        names = {shown(fan, name) for name in NAMES}
        # They meet when all three had begun before the first of them took its snapshot.
        if len(names) == len(bases) == 1:
            assert len(readings) == 1, readings
            break
        bases = names
    else:
        pytest.fail(f"the mirrors never met: {names}")
    # What they have together goes with the last of them only.
    for seed in range(30, 36):
        lab.change(lab.source(), seed)
        together(fan, "update")
    for name in NAMES:
        fan.service.update(name)
        assert fan.service.explain(name).data["findings"]
        shown(fan, name)
    assert len(lab.source().snapshots()) <= 2 * len(NAMES) + 1
    for name in NAMES:
        fan.service.break_off(name)
        fan.service.delete(name, yes=True, keep_snapshots=False)
    assert lab.source().snapshots() == [], "a shared snapshot was left behind"


class _Slow(SendStream):
    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def read(self) -> bytes:
        if not self.left:
            return b""
        self.left -= 1
        return bytes([self.left % 251]) * (1 << 20)

    def close(self) -> None:
        pass


class _Source:
    def __init__(self) -> None:
        self.opened = 0

    def __str__(self) -> str:
        return "block:/shared"

    def send(self, _base: Any, _guid: str, *, checkpoint: Any = None) -> SendStream:
        self.opened += 1
        return _Slow(40)


def test_who_falls_behind_reads_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "_PATIENCE_S", 0.3)
    source: Any = _Source()
    together = Fanout()
    with together.at_work(source), together.at_work(source):
        quick = together.send(source, None, "g")
        slow = together.send(source, None, "g")
        first = bytes(slow.read())
        began, whole = time.monotonic(), b""
        while chunk := quick.read():
            whole += bytes(chunk)
        assert time.monotonic() - began < 60 and len(whole) == 40 << 20
        while chunk := slow.read():
            first += bytes(chunk)
        assert first == whole and source.opened == 2
        quick.close()
        slow.close()
    assert not (together._busy or together._taken or together._readings)


def test_a_failure_of_the_source_reaches_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(_Slow):
        def read(self) -> bytes:
            if self.left < 38:
                raise TransferFailed("the disk is gone", where="block:/shared")
            return super().read()

    class Source(_Source):
        def send(self, _base: Any, _guid: str, *, checkpoint: Any = None) -> SendStream:
            return Broken(40)

    source: Any = Source()
    together = Fanout()
    with together.at_work(source), together.at_work(source):
        for reader in [together.send(source, None, "g") for _ in range(2)]:
            with pytest.raises(TransferFailed, match="the disk is gone"), reader:
                while reader.read():
                    pass


def test_aborting_the_first_reader_of_a_shared_stream_does_not_affect_the_others() -> None:
    class Source(_Source):
        def send(self, _base: Any, _guid: str, *, checkpoint: Any = None) -> SendStream:
            self.opened += 1
            if self.opened == 1:
                raise Aborted("the transfer was aborted")
            return _Slow(4)

    source: Any = Source()
    together = Fanout()
    with together.at_work(source), together.at_work(source):
        for reader in [together.send(source, None, "g") for _ in range(2)]:
            with reader:
                whole = b"".join(bytes(chunk) for chunk in iter(reader.read, b""))
            assert len(whole) == 4 << 20


class Stalled(SendStream):
    """A source that is silent until it may end."""

    def __init__(self, silent: threading.Event) -> None:
        super().__init__()
        self._silent = silent

    def read(self) -> bytes:
        self._silent.wait()
        return b""

    def close(self) -> None:
        pass


def test_a_mirror_that_waits_for_a_shared_reading_is_aborted_at_once() -> None:
    """A `break` must not wait until a source that hangs is taken for lost."""
    silent, ended = threading.Event(), threading.Event()
    source: Any = SimpleNamespace(send=lambda _base, _guid: Stalled(silent))
    made = Fanout()

    def aborted() -> None:
        raise Aborted("by 'mirrord break'")

    def read(stream: SendStream) -> None:
        with pytest.raises(Aborted):
            stream.read()
        ended.set()

    with made.at_work(source), made.at_work(source):
        try:
            stream = made.send(source, None, "g")
            stream.waiting = Waiting(aborted)
            threading.Thread(target=read, args=(stream,), daemon=True).start()
            assert ended.wait(5)
            stream.close()
        finally:
            silent.set()
