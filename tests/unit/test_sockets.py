"""Unix sockets: a program that is busy is not taken for one that has ended."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from mirrord.control import client
from mirrord.control.client import Client, answers
from mirrord.control.commands.status import status
from mirrord.core.errors import Unreachable
from mirrord.system import sockets
from mirrord.transport.local import open_unix


def full(path: Path) -> tuple[socket.socket, socket.socket]:
    """A socket whose queue is full, and the client in it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets.bind(listening, path)
    listening.listen(0)
    return listening, sockets.connected(path, timeout_s=5)


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    listening, first = full(tmp_path / "s")
    taken: list[socket.socket] = []
    timer = threading.Timer(0.3, lambda: taken.append(listening.accept()[0]))
    timer.start()
    with listening, first, sockets.connected(tmp_path / "s", timeout_s=30):
        timer.join()
    [one] = taken
    one.close()


def test_a_program_that_accepts_nothing_is_there(tmp_path: Path) -> None:
    listening, first = full(tmp_path / "s")
    with listening, first:
        with pytest.raises(TimeoutError):
            sockets.connected(tmp_path / "s", timeout_s=0.2)
        with pytest.raises(Unreachable, match="does not respond") as raised:
            open_unix(tmp_path / "s", timeout_s=0.2)
        assert raised.value.why == "it accepts no connection"
        assert answers(tmp_path / "s")
    assert not answers(tmp_path / "s")


def test_a_daemon_that_is_suspended_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_CONNECT_S", 0.2)
    monkeypatch.setattr(client, "_SILENT_S", 0.2)
    listening, first = full(tmp_path / "s")
    asked = Client(tmp_path / "s", tmp_path / "s")
    with listening:
        with first, pytest.raises(Unreachable, match="does not answer") as raised:
            asked.run(status(None))
        assert raised.value.why == "it accepts no connection"
        listening.accept()[0].close()
        with pytest.raises(Unreachable, match="does not answer") as raised:
            asked.run(status(None))
    assert raised.value.why.startswith("no answer within ")
    assert "systemctl restart mirrord" in raised.value.hint
