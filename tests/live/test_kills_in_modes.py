"""Both ends are killed at random moments in each mode, and at last for good: the replica alone has
what the mode promises. A writer stamps its blocks; outside of sync the link is slow, so that the
replica is really behind.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.live.lab import BLOCK, Pair, Writer, wait_until
from tests.live.test_dynamic import SlowProxy

_BLOCKS = 512
_WINDOW = 64 * BLOCK


class Kind(NamedTuple):
    """A mode, and what may be lost of what was acknowledged: bytes, or writes that are younger by
    so many seconds than the last one. None: there is no such limit.
    """

    mode: str
    bytes: int | None = None
    seconds: float | None = None
    #: With it M adapts itself within the window, and the mode changes, as a policy would have it.
    answer_within_us: int = 0

    @property
    def is_semi(self) -> bool:
        return self.mode == "semi-sync"

    @property
    def window(self) -> str:
        return f"{self.seconds:g}s" if self.seconds else str(self.bytes)


KINDS = {
    "sync": Kind("sync"),
    "strict-sync": Kind("strict-sync", bytes=0),
    "semi-sync, bytes": Kind("semi-sync", bytes=_WINDOW),
    "semi-sync, seconds": Kind("semi-sync", seconds=1),
    "dynamic": Kind("semi-sync", bytes=_WINDOW, answer_within_us=50_000),
    "async": Kind("async"),
}


class Lab:
    """A pair with a slow link between them, in a mode."""

    def __init__(self, pair: Pair, kind: Kind, chance: random.Random) -> None:
        self.pair, self.kind, self.chance = pair, kind, chance
        self.proxy = SlowProxy(pair.secondary.link_port)
        pair.primary.peer = f"127.0.0.1:{self.proxy.port}"
        if kind.is_semi:
            pair.primary.options += ["--semi-window", kind.window]
        pair.hold_long()
        pair.start()
        self.set_mode(kind.mode)

    def set_mode(self, mode: str) -> None:
        if mode == "semi-sync":
            assert self.pair.primary.ask(f"window {self.kind.window}") == {"ok": True}
            self.proxy.late_s = 0.02
        if within := self.kind.answer_within_us:
            assert self.pair.primary.ask(f"answer-within {within}") == {"ok": True}
        assert self.pair.primary.ask(f"mode {mode}") == {"ok": True}

    def accident(self) -> None:
        """Kills one end or both, and starts them again."""
        pair, chance = self.pair, self.chance
        ends = chance.choice([[pair.primary], [pair.secondary], [pair.primary, pair.secondary]])
        for end in ends:
            end.kill()
        time.sleep(chance.random() * 0.4)
        for end in chance.sample(ends, len(ends)):
            end.start()
        if within := self.kind.answer_within_us:
            assert pair.primary.ask(f"answer-within {within}") == {"ok": True}
            if pair.primary.is_state("in-sync") or pair.primary.is_state("semi-sync"):
                mode = chance.choice(["sync", "semi-sync"])
                assert pair.primary.ask(f"mode {mode}") == {"ok": True}

    def end(self) -> tuple[str, bytes]:
        """What the primary was doing, and the image of the replica when both ends were killed and
        it was started alone.
        """
        pair = self.pair
        state = str((pair.primary.status() or {})["state"])
        self.proxy.cut()
        for end in self.chance.sample([pair.primary, pair.secondary], 2):
            end.kill()
        pair.secondary.start()
        assert pair.secondary.ask("break") == {"ok": True}
        wait_until(lambda: pair.secondary.is_state("out-of-sync"), "its service")
        return state, pair.secondary.bytes()


def _check(kind: Kind, state: str, writer: Writer, image: bytes) -> None:
    writer.check_prefix(image)
    lost = writer.lost(image)
    if kind.bytes is not None:
        assert len(lost) * BLOCK <= kind.bytes, (kind, state, lost)
    if kind.seconds is not None and lost:
        assert writer.age_s(lost[0]) <= kind.seconds, (kind, state, lost)
    if kind.mode == "sync" and state in ("in-sync", "holding"):
        assert not lost, (state, lost)


def _survive(pair: Pair, kind: Kind, seed: int, accidents: int) -> None:
    chance = random.Random(seed)
    lab = Lab(pair, kind, chance)
    writer = Writer(pair.primary, _BLOCKS)
    writer.start()
    try:
        wait_until(lambda: writer.answered > 50, "the first writes")
        for _ in range(accidents):
            time.sleep(chance.random() * 0.8)
            lab.accident()
        # Of those that are outside of sync most are back in their mode.
        before = writer.answered
        if chance.random() < 0.8:
            wait_until(lambda: writer.answered > before + 100, "writes")
        time.sleep(chance.random() * 0.3)
        state, image = lab.end()
        writer.is_over.set()
        writer.join(40)
        assert not writer.is_alive()
        # Requests fail only where the replica is needed.
        assert kind.mode == "strict-sync" or writer.errors == []
        _check(kind, state, writer, image)
    finally:
        writer.is_over.set()
        lab.proxy.close()


@pytest.fixture
def pair(program: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(program, tmp_path, _BLOCKS * BLOCK)
    try:
        yield pair
    finally:
        pair.stop()


@pytest.mark.parametrize("name", KINDS)
def test_kills_lose_what_the_mode_allows(pair: Pair, name: str) -> None:
    _survive(pair, KINDS[name], len(name), 2)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", KINDS)
def test_many_kills_lose_what_the_mode_allows(pair: Pair, name: str, seed: int) -> None:
    _survive(pair, KINDS[name], seed, 15)
