"""A line that is cut without a word: noticed, mended by itself, and nobody has to wait for it."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mirrord.core.errors import Aborted, MirrordError
from mirrord.engine import transfer
from mirrord.link import lane
from tests.support.remote import MIB, SOON_S, Remote, content
from tests.support.service import PATIENCE_S, until


class Updating(threading.Thread):
    """A verb of the site's service, in a thread."""

    def __init__(self, site: Any, verb: str = "initialize") -> None:
        super().__init__()
        self.error: MirrordError | None = None
        self.took_s = 0.0
        self._site, self._verb = site, verb
        self.start()

    def run(self) -> None:
        from tests.support.verbs import Service

        service = Service(self._site.paths, shared=self._site.service.shared)
        began_s = time.monotonic()
        try:
            getattr(service, self._verb)("home")
        except MirrordError as error:
            self.error = error
        finally:
            self.took_s = time.monotonic() - began_s
            service.close()

    def ended(self, within_s: float = PATIENCE_S) -> MirrordError | None:
        self.join(within_s)
        assert not self.is_alive()
        return self.error


def stalled(site: Remote) -> tuple[Path, Path, Updating]:
    """A first transfer that stands still in the middle."""
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    updating = Updating(site)
    site.await_passed(20 * MIB)
    site.proxy.stall()
    return source, copy, updating


def test_a_stall_is_noticed_and_the_transfer_goes_on(
    site: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy, updating = stalled(site)
    with monkeypatch.context() as impatient:  # (before and afterwards a busy host is no silence)
        impatient.setattr(lane, "SILENCE_S", 1.5)
        until(lambda: site.proxy.connections >= 2, what="for another try")
    site.proxy.go_on()
    assert updating.ended() is None
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < 49 * MIB + 24 * MIB


def test_who_is_slow_is_not_lost(site: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece takes longer than silence may, and a round trip is long."""
    monkeypatch.setattr(lane, "SILENCE_S", 8.0)
    monkeypatch.setattr(lane, "BEAT_S", 1.5)
    source, copy = site.volume(data_bytes=300_000), site.folder / "copy"
    site.create(f"block://dr{source}", f"block:{copy}")
    site.proxy.limit(25_000)
    site.proxy.delay(0.01)
    site.service.initialize("home")
    assert site.proxy.connections == 1
    assert content(copy) == content(source)


def test_pauses_grow_while_a_host_is_away(site: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PAUSE_MAX_S", 1000.0)
    monkeypatch.setattr(transfer, "_PATIENCE_S", 1000.0)
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.proxy.cut_at(20 * MIB)
    site.proxy.refuse()
    updating = Updating(site)

    def pauses_s() -> list[float]:
        return [b - a for a, b in pairwise(site.proxy.refused_s)]

    def grown() -> bool:
        found = pauses_s()
        return len(found) > 2 and max(found[-2:]) > max(6.0, 4 * found[0])

    until(grown)
    assert 3 <= len(pauses_s()) < 20
    aborted = site.service.abort("home", hard=False)  # and nobody has to sit out the next pause
    assert aborted.status == "done"
    assert isinstance(updating.ended(SOON_S), Aborted)


def test_abort_in_a_stall_is_answered_soon(site: Remote) -> None:
    source, copy, updating = stalled(site)
    began_s = time.monotonic()
    aborted = site.service.abort("home", hard=False)
    assert aborted.status == "done" and "aborted" in aborted.text
    assert isinstance(updating.ended(), Aborted)
    assert time.monotonic() - began_s < SOON_S
    site.proxy.go_on()
    site.service.initialize("home")
    assert content(copy) == content(source)
