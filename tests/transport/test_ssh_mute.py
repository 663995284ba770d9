"""SSH servers that accept a login and answer nothing more: connecting ends in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
import pytest

from mirrord.core.errors import Unreachable, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.transport.known_hosts import fingerprint
from mirrord.transport.ssh import open_ssh
from tests.support.service import PATIENCE_S
from tests.support.sshd import USER, Sshd


class Mute(paramiko.ServerInterface):  # type: ignore[misc]
    """Lets everybody in. From the request `where` on it answers nothing until `ended` is set; it
    refuses programs with where "".
    """

    def __init__(self, where: str, ended: threading.Event) -> None:
        self._where, self._ended = where, ended

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: object) -> Any:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> Any:
        if self._where == "session":
            self._ended.wait()
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: object, command: bytes) -> bool:
        if self._where == "exec":
            self._ended.wait()
        return False


@contextmanager
def mute(where: str, key: str, login: str) -> Iterator[RemoteHost]:
    host_key, ended = paramiko.ECDSAKey.generate(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            transport = paramiko.Transport(connection)
            transport.add_server_key(host_key)
            transport.start_server(server=Mute(where, ended))
            ended.wait()
            transport.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield RemoteHost(
                "dr",
                "127.0.0.1",
                port=listening.getsockname()[1],
                user=login,
                key=key,
                fingerprint=fingerprint(host_key.asbytes()),
                connect_s=3.0,
            )
        finally:
            ended.set()
            thread.join(PATIENCE_S)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["session", "exec"])
def test_a_request_that_is_not_answered(sshd: Sshd, where: str) -> None:
    with mute(where, str(sshd.key), USER) as host:
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match="does not respond within 3 s: the login") as caught:
            open_ssh(host)
        assert time.monotonic() - began_s < 20
        assert "connect =" in caught.value.hint


def test_a_request_that_is_refused(sshd: Sshd) -> None:
    with mute("", str(sshd.key), USER) as host, pytest.raises(Untrusted, match="may not run"):
        open_ssh(host)
