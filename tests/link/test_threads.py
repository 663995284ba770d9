"""A transfer leaves no thread behind, however it ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.core.model import Endpoint, ReceiveRequest, Snapshot, SnapshotKind
from mirrord.link.driver import RemoteDriver
from tests.support.agents import agents
from tests.support.service import until


def sending() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outflow"]


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_transfer_that_breaks_off_leaves_no_thread(tmp_path: Path, ending: str) -> None:
    before = sending()
    snapshot = Snapshot("f" * 32, "one", SnapshotKind.REFERENCE, 1, 1)
    with agents(tmp_path / "home") as others:
        driver = RemoteDriver.of(Endpoint("block", str(tmp_path / "copy"), "there"), others)
        driver.prepare("m")
        request = ReceiveRequest("t", "m", None, snapshot, resumable=True)
        with pytest.raises(MirrordError), driver.receive(request) as receiver:
            for number in range(64):
                if ending == "killed" and number == 8:
                    others.kill()
                receiver.write(os.urandom(1 << 20))
            receiver.finish()
    until(lambda: len(sending()) <= len(before))
