"""Over a network of its own: a host that is there, and one that falls silent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirrord.core.errors import Unreachable
from mirrord.transport.ssh import open_ssh
from tests.support.netns import namespace
from tests.support.ports import free_port
from tests.support.sshd import Sshd
from tests.transport.echo import round_trip


@pytest.mark.platform
def test_a_host_that_falls_silent(tmp_path: Path) -> None:
    with namespace() as there:
        made = Sshd(tmp_path / "sshd", within=there.within, address=there.there)
        made.port = free_port()
        made.start()
        try:
            stream = open_ssh(made.host())
            round_trip(stream, 4 << 20)
            there.cut()
            begun = time.monotonic()
            with pytest.raises(Unreachable, match="does not respond within 1 s"):
                open_ssh(made.host(connect_s=1.0))
            assert time.monotonic() - begun < 8  # the kernel alone tries for minutes
            # Nobody waits for what is lost: neither who writes nor who closes.
            stream.write(b"into the void")
            begun = time.monotonic()
            stream.close()
            assert time.monotonic() - begun < 8
            assert stream.read(1) == b""
        finally:
            made.stop()
