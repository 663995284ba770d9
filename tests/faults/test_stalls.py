"""A line that is cut without a word: noticed, mended by itself, and nobody has to wait for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mirrord.core.errors import Aborted, MirrordError
from mirrord.link import lane
from tests.support.remote import MIB, Remote, content


class Updating(threading.Thread):
    """A verb of the site's service, in a thread."""

    def __init__(self, site: Remote, verb: str = "initialize") -> None:
        super().__init__()
        self.error: MirrordError | None = None
        self.took_s = 0.0
        self._site, self._verb = site, verb
        self.start()

    def run(self) -> None:
        from mirrord.control.api import Service

        service = Service(self._site.paths)
        began_s = time.monotonic()
        try:
            getattr(service, self._verb)("home")
        except MirrordError as error:
            self.error = error
        finally:
            self.took_s = time.monotonic() - began_s
            service.close()

    def ended(self, within_s: float) -> MirrordError | None:
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
    monkeypatch.setattr(lane, "SILENCE_S", 1.5)
    monkeypatch.setattr(lane, "BEAT_S", 0.4)
    source, copy, updating = stalled(site)
    until = time.monotonic() + 10
    while site.proxy.connections < 2:
        assert time.monotonic() < until, "nobody tried again"
        time.sleep(0.01)
    assert site.status()["activity"] == "transferring"
    site.proxy.go_on()
    assert updating.ended(30) is None
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] < 49 * MIB + 24 * MIB


def test_abort_in_a_stall_is_answered_soon(site: Remote) -> None:
    source, copy, updating = stalled(site)
    began_s = time.monotonic()
    aborted = site.service.abort("home", hard=False)
    assert time.monotonic() - began_s < 3.5
    assert aborted.status == "done" and "ended" in aborted.text
    assert isinstance(updating.ended(2), Aborted)
    site.proxy.go_on()
    site.service.initialize("home")
    assert content(copy) == content(source)
