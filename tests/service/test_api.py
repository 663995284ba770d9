"""The service's API: who may ask, what is asked wrongly, and what an answer carries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any, cast

import pytest

from mirrord.control.commands.reload import reload
from mirrord.control.commands.snapshots import delete_diverged
from mirrord.control.commands.update import update
from mirrord.control.methods import methods
from mirrord.control.server import _NEWS_MAX, _answer, _Telling
from mirrord.core.errors import NotFound, PermissionMissing, ProtocolError, UsageError
from mirrord.core.states import Activity
from mirrord.daemon.serve import CONNECTIONS_MAX
from mirrord.wire import values
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.verbs import Client
from tests.support.world import NAME


def test_sockets_decide_who_may_act_and_who_may_look(served: Served) -> None:
    mode = stat.S_IMODE(served.paths.act_socket.stat().st_mode)
    assert mode == 0o600
    served.settings('[daemon]\nreaders = "everyone"\n')
    served.again()
    assert stat.S_IMODE(served.paths.read_socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(served.paths.act_socket.stat().st_mode) == 0o600
    looking = Client(served.paths.read_socket, served.paths.read_socket)
    assert looking.status() == []
    for call in (update(NAME), delete_diverged(NAME, "x"), reload()):
        with pytest.raises(PermissionMissing):
            looking.run(call)


def test_who_may_not_use_the_socket_is_told_so(served: Served) -> None:
    for folder in (served.home, *list(served.home.parents)[:3]):
        folder.chmod(0o711)
    served.paths.run.chmod(0o711)
    child = os.fork()
    if child == 0:  # as nobody, with what is loaded already: that user need not reach this code
        said = 9
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            Client(served.paths.act_socket, served.paths.read_socket).quiesce(NAME)
        except PermissionMissing as error:
            said = 0 if "permission denied for this request" in error.what else 8
        finally:
            os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _raw(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(90)
        made.connect(str(path))
        made.sendall(request)
        answer = b""
        while piece := made.recv(65536):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("nonsense", b"{}", "usage"),
        ("update", b"not json", "usage"),
        ("update", b"[1, 2]", "usage"),
        ("update", b'{"name": "home", "more": 3}', "usage"),
        ("update", b'{"name": 3}', "usage"),
        ("update", b"{}", "usage"),
        ("update", b'{"name": "no-such"}', "not-found"),
        ("update", b'{"name": "../../etc/passwd"}', "usage"),
        ("update", b"[" * 100_000, "usage"),
        ("create", b'{"name": "x", "snapshots": 5}', "usage"),
        ("history", b'{"name": "home", "limit": 1000000000}', "usage"),
        ("history", b'{"name": "home", "limit": -1}', "usage"),
        ("status", b'{"name": null, "more": null}', "usage"),
        ("__init__", b"{}", "usage"),
        ("catalogue", b"{}", "usage"),
    ],
)
def test_a_wrong_request_is_answered_with_an_error(
    served: Served, method: str, body: bytes, code: str
) -> None:
    head = (
        f"POST /v2/{method} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    answer = _raw(served.paths.act_socket, head.encode() + body)
    found = [json.loads(part) for part in answer.splitlines() if part.startswith(b'{"error"')]
    assert found and found[0]["error"]["error"] == code, answer


@pytest.mark.parametrize("method", ["quiesce", "break_off"])
def test_what_a_client_gave_up_on_before_it_began_is_not_done(served: Served, method: str) -> None:
    served.initialized()
    process = served.daemon.process
    assert process is not None
    head = f"POST /v2/{method} HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n"
    process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as made:
                made.connect(str(served.paths.act_socket))
                made.sendall(head.encode() + b'{"name": "home"}')
    finally:
        process.send_signal(signal.SIGCONT)
    for _ in range(5):  # (those before it are answered by then)
        assert (served.row()["quiesced"], served.row()["state"]) == (False, "mirrored")
        time.sleep(0.1)
    assert "break" not in served.daemon.text()


def test_a_request_that_is_too_large_or_no_http_is_survived(served: Served) -> None:
    head = b"POST /v2/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += b"Content-Length: 9000000\r\n\r\n"
    with contextlib.suppress(ConnectionError):  # it may hang up while we still send
        assert b"too large" in _raw(served.paths.act_socket, head + b"x" * 9_000_000)
    _raw(served.paths.act_socket, b"\x00\x01garbage\r\n\r\n")
    assert served.service.status() == []
    head = head.replace(b"9000000", b"100000")
    with contextlib.suppress(ConnectionError):  # who may only look has less to say
        assert b"too large" in _raw(served.paths.read_socket, head + b" " * 100_000)


def test_who_asks_nothing_makes_room_for_others(served: Served) -> None:
    half = b"POST /v2/status HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        for number in range(2 * CONNECTIONS_MAX):
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.connect(str(served.paths.read_socket))
            with contextlib.suppress(ConnectionError):
                made.sendall((b"", b"GET ", half)[number % 3])

        def is_answered() -> bool:
            with contextlib.suppress(ConnectionError):
                return b"mirrord" in _raw(served.paths.read_socket, ping)
            return False

        ping = b"GET /v2/ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert not is_answered()
        until(is_answered)


def test_who_may_only_look_cannot_use_up_the_files_that_transfers_need(served: Served) -> None:
    served.initialized()
    assert served.daemon.process is not None
    with contextlib.ExitStack() as stack:
        for _ in range(2 * CONNECTIONS_MAX):
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.connect(str(served.paths.read_socket))
        files = Path(f"/proc/{served.daemon.process.pid}/fd")
        served.lab.change(served.lab.source(), 3)
        assert served.service.update(NAME).status == "done"
        until(lambda: len(list(files.iterdir())) >= CONNECTIONS_MAX)
        assert len(list(files.iterdir())) < CONNECTIONS_MAX + 100
    until(lambda: len(list(files.iterdir())) < 100)
    assert _raw(served.paths.read_socket, b"GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\n")


def test_a_daemon_that_may_open_few_files_works_on_while_clients_crowd_in(served: Served) -> None:
    served.initialized()
    assert served.daemon.process is not None
    resource.prlimit(served.daemon.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    said = served.daemon.said.stat().st_size
    with contextlib.ExitStack() as stack:
        for number in range(200):
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.settimeout(0.5)
            with contextlib.suppress(OSError):  # as many as may wait
                made.connect(str(served.paths.read_socket))
            if number == 100:
                time.sleep(2)
        served.lab.change(served.lab.source(), 3)
        assert served.service.update(NAME).status == "done"
    assert served.daemon.said.stat().st_size < said + 10_000
    assert served.service.status()


@pytest.mark.parametrize("name", methods())
def test_every_command_describes_its_request_and_its_result(name: str) -> None:
    command = methods()[name]
    assert all(each.shown.help for each in command.parameters)
    values._reader(command.result)  # its result can be sent
    with pytest.raises(UsageError, match="invalid arguments"):
        command.parsed({"no_such": 1})


def test_a_client_of_another_version_is_refused(served: Served) -> None:
    head = b"POST /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    answer = _raw(served.paths.act_socket, head + b"{}")
    [line] = [json.loads(part) for part in answer.splitlines() if part.startswith(b'{"error"')]
    assert "v2" in line["error"]["why"] and "restart the daemon" in line["error"]["hint"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_daemon_of_another_version_is_told_of(tmp_path: Path, reads: bool) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found")
        await writer.drain()
        writer.close()

    async def check() -> None:
        path = tmp_path / "control.sock"
        async with await asyncio.start_unix_server(old, path):
            with pytest.raises(ProtocolError) as caught:
                await asyncio.to_thread(Client(path, path).status)
        assert "different versions" in caught.value.what and caught.value.hint

    asyncio.run(check())


def test_errors_travel_whole(served: Served) -> None:
    served.initialized()
    with pytest.raises(UsageError) as caught:
        served.service.create("x y", "block:/a", "block:/b")
    assert "is not a valid name for a mirror" in caught.value.what and caught.value.why
    with pytest.raises(NotFound) as missing:
        served.service.update("hone")
    assert "'home'" in missing.value.hint
    with pytest.raises(UsageError):  # a reader must not keep the service at work for ever
        served.service.schedule_next(NAME, count=10**9)


def test_news_do_not_pile_up_for_who_does_not_listen_or_is_gone() -> None:
    async def check() -> None:
        begun, end = asyncio.Event(), asyncio.Event()
        watchers: list[_Telling] = []

        class Backend:
            async def call(self, _call: object, watcher: _Telling) -> int:
                watchers.append(watcher)
                begun.set()
                await end.wait()
                return 1

        answer = _answer(cast(Any, Backend()), update(NAME))
        first = asyncio.ensure_future(anext(answer))
        await begun.wait()
        [telling] = watchers
        telling.activity(Activity.TRANSFERRING, "")
        await first
        for _ in range(2 * _NEWS_MAX):  # a client that is stopped
            telling._told_s = 0.0
            telling.moved(1)
            await asyncio.sleep(0)
        assert telling.news.qsize() <= _NEWS_MAX + 1
        await cast(Any, answer).aclose()
        held = telling.news.qsize()
        for _ in range(50):
            telling.activity(Activity.COMMITTING, "")
            await asyncio.sleep(0)
        assert telling.news.qsize() == held
        end.set()

    asyncio.run(check())
