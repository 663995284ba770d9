"""Streams on this host: whole, in order, and over for good when they are closed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirrord.core.errors import Unreachable, Unsupported
from mirrord.transport.local import STDERR_BYTES_MAX, ProcessStream, open_unix, spawn
from tests.support.service import until
from tests.transport.echo import ends_for_both, lives, read_all, round_trip


def open_process(
    arguments: list[str], *, environment: Mapping[str, str] | None = None
) -> ProcessStream:
    ours, process = spawn(arguments, environment=environment, hint="Install it.")
    return ProcessStream(ours, process, "here")


def test_a_process_gives_back_what_it_got() -> None:
    stream = open_process(["cat"])
    assert stream.peer == "here"
    round_trip(stream, 8 << 20)
    stream.close()
    stream.close()


def test_a_socket_gives_back_what_it_got(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "socket"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        listener.listen()

        def echo() -> None:
            taken, _ = listener.accept()
            with taken:
                while part := taken.recv(1 << 16):
                    taken.sendall(part)

        thread = threading.Thread(target=echo)
        thread.start()
        stream = open_unix(path)
        round_trip(stream, 8 << 20)
        stream.close()
        thread.join()


def test_closing_wakes_who_reads_and_who_writes() -> None:
    stream = open_process(["sleep", "60"])
    ends_for_both(stream)


def test_closing_kills_all_that_the_program_started(tmp_path: Path) -> None:
    note = tmp_path / "children"
    stream = open_process(
        ["/bin/sh", "-c", f"sleep 60 & echo $$ $! > {note}; echo up; trap '' TERM HUP; wait"]
    )
    assert stream.read(10) == b"up\n"
    children = [int(word) for word in note.read_text().split()]
    assert all(lives(child) for child in children)
    stream.close()
    until(lambda: not any(lives(child) for child in children), 20)


def test_what_the_program_complains_of_is_kept_and_bounded() -> None:
    stream = open_process(["/bin/sh", "-c", "seq 1 9999 >&2; echo it broke >&2"])
    assert read_all(stream) == b"" and stream.status(wait_s=20) == 0
    said = stream.stderr_tail()
    stream.close()
    assert said.endswith("9999\nit broke") and STDERR_BYTES_MAX - 2 <= len(said) <= STDERR_BYTES_MAX


def test_how_the_program_ended() -> None:
    stream = open_process(["/bin/sh", "-c", "read x; exit 7"])
    assert stream.status() is None
    stream.write(b"go\n")
    assert stream.status(wait_s=20) == 7
    assert stream.status() == 7
    stream.close()
    assert stream.status() == 7


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="nothing listens on the socket"):
        open_unix(tmp_path / "none")
    with pytest.raises(Unsupported, match="'no-such-program' is not installed"):
        open_process(["no-such-program"])
