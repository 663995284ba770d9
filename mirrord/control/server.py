"""The server of the socket API: a Starlette application per socket.

POST /v2/METHOD   {ARGUMENT: VALUE, …}  ->  lines of JSON; docs/api.md
GET  /v2/ping     ->  the version
GET  /metrics     ->  for Prometheus
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mirrord import __version__
from mirrord.control.client import VERSION
from mirrord.control.command import Call, Right
from mirrord.control.methods import methods
from mirrord.core.errors import MirrordError, PermissionMissing, UsageError, pack_error
from mirrord.core.results import Result, Watcher
from mirrord.core.states import Activity
from mirrord.system.native import Panic
from mirrord.wire import values

#: Of a request; of one of a client that may only look.
_BODY_BYTES_MAX = 8 << 20
_QUESTION_BYTES_MAX = 64 << 10
#: For a request to arrive.
REQUEST_S = 10.0
_TELL_EVERY_S = 0.1
_NEWS_MAX = 100
_ALIVE_EVERY_S = 10.0
#: For the end of a connection to be seen, if it came with the request.
_GONE_S = 0.001


class Backend(Protocol):
    """What runs the commands."""

    async def call(self, call: Call[Any], watcher: Watcher) -> Any:
        """Run a command; raises `MirrordError`."""

    def metrics(self) -> tuple[bytes, str]:
        """The metrics in Prometheus format, and their content type."""


class _Telling:
    """A watcher that forwards progress to the client; called from a worker's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        #: The client disconnected: progress is discarded.
        self.gone = False
        self._moved, self._told_s = 0, 0.0

    def _put(self, told: dict[str, Any]) -> None:
        if not self.gone:
            self._loop.call_soon_threadsafe(self.news.put_nowait, told)

    def activity(self, activity: Activity, note: str) -> None:
        """Forward it."""
        self._flush()
        self._put({"activity": activity.value, "note": note})

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """Forward it."""
        self._flush()
        self._put({"transfer": [name, estimate_bytes, done_bytes]})

    def moved(self, stream_bytes: int) -> None:
        """Forward it at most ten times a second."""
        self._moved += stream_bytes
        if self._loop.time() - self._told_s > _TELL_EVERY_S and self.news.qsize() < _NEWS_MAX:
            self._flush()

    def _flush(self) -> None:
        self._told_s = self._loop.time()
        if self._moved:
            self._put({"moved": self._moved})
            self._moved = 0


def application(backend: Backend, *, access: str) -> Starlette:
    """The application of one socket; access: "act", "read" or "metrics"."""

    async def ping(_request: Request) -> Response:
        return JSONResponse({"mirrord": __version__, "protocol": VERSION})

    async def metrics(_request: Request) -> Response:
        content, kind = backend.metrics()
        return Response(content, media_type=kind)

    async def call(request: Request) -> Response:
        try:
            asked = await _asked(request, access)
        except MirrordError as error:
            return _refused(error)
        # While the daemon was stopped, or busy, the client may have given up.
        await asyncio.sleep(_GONE_S)
        if await request.is_disconnected():
            return Response(status_code=499)
        return StreamingResponse(_answer(backend, asked), media_type="application/x-ndjson")

    routes = [Route("/metrics", metrics, methods=["GET"])]
    if access != "metrics":
        routes += [
            Route(f"/{VERSION}/ping", ping, methods=["GET"]),
            Route("/{version}/{method}", call, methods=["POST"]),
        ]
    return Starlette(routes=routes)


def _refused(error: MirrordError) -> Response:
    line = json.dumps({"error": pack_error(error)}) + "\n"
    status = 403 if isinstance(error, PermissionMissing) else 400
    return Response(line, status_code=status, media_type="application/x-ndjson")


async def _asked(request: Request, access: str) -> Call[Any]:
    version, name = (str(request.path_params[key]) for key in ("version", "method"))
    command = methods().get(name)
    if version != VERSION or command is None:
        raise UsageError(
            f"the daemon has no method '{name}'",
            why=f"it speaks {VERSION} of the protocol, the client {version}"
            if version != VERSION
            else "",
            hint="Client and daemon are of different versions: restart the daemon.",
        )
    if access == "read" and command.right is not Right.READ:
        raise PermissionMissing(
            f"'{name}' changes state, and this socket is read-only",
            hint="Run it as root (or with sudo).",
        )
    body, most = bytearray(), _BODY_BYTES_MAX if access == "act" else _QUESTION_BYTES_MAX
    try:
        async with asyncio.timeout(REQUEST_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise UsageError("the request is too large")
    except TimeoutError:
        raise UsageError("the request is not complete") from None
    try:
        arguments = json.loads(bytes(body) or b"{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise UsageError("the request does not have the form of docs/api.md")
    return command.parsed(arguments)


async def _answer(backend: Backend, asked: Call[Any]) -> AsyncIterator[bytes]:
    """The lines of an answer: progress, then the result or the error."""
    telling = _Telling(asyncio.get_running_loop())
    # Not cancelled when the client disconnects: a verb that has begun is finished.
    work = asyncio.ensure_future(backend.call(asked, telling))
    news = asyncio.ensure_future(telling.news.get())
    try:
        while not work.done():
            done, _ = await asyncio.wait(
                {work, news}, timeout=_ALIVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            if news in done:
                yield _line(news.result())
                news = asyncio.ensure_future(telling.news.get())
            elif not done:
                yield _line({"alive": True})
        while not telling.news.empty():
            yield _line(telling.news.get_nowait())
        yield _line(_end_of(work))
    finally:
        telling.gone = True
        news.cancel()
        work.add_done_callback(_seen)


def _seen(work: asyncio.Future[Any]) -> None:
    """The client may be gone; its error is in the journal already."""
    if not work.cancelled():
        work.exception()


def _end_of(work: asyncio.Future[Any]) -> dict[str, Any]:
    try:
        result = values.as_json(work.result())
        if isinstance(work.result(), Result):
            del result["update"]  # its numbers are in the data, too
        return {"result": result}
    except MirrordError as error:
        return {"error": pack_error(error)}
    except asyncio.CancelledError:
        return {"error": pack_error(MirrordError("the daemon is stopping"))}
    except (Exception, Panic) as error:
        bug = MirrordError(
            f"unexpected: {type(error).__name__}: {error}",
            hint="This is a bug in mirrord: please report it with the daemon's log.",
        )
        return {"error": pack_error(bug)}


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"
