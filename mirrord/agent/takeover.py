"""One agent for one client: the new connection of a client ends the old one that hangs.

A link that is cut without a word leaves the agent at the other end waiting, with the volume's
lock, until it misses the signs of life. Its client is back sooner.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mirrord.core.errors import Busy, ProtocolError
from mirrord.system import clock, locks
from mirrord.system.paths import Paths

_TOKEN = re.compile(r"[0-9a-f]{32}")
#: For the old agent to keep its checkpoint, and after which it is killed.
_PATIENCE_S = 5.0
_KILLED_S = 5.0


@contextmanager
def only_agent(paths: Paths, token: str, principal: str) -> Iterator[None]:
    """Be the agent of the client that calls itself `token`, after its former one has ended.

    principal: as what it was let in. A former one that was let in as something else is not ended
    (`Busy`): a token that somebody else got hold of is good for nothing.
    """
    if not _TOKEN.fullmatch(token):
        raise ProtocolError("the other end's name for its session makes no sense")
    folder = paths.run / "agents"
    for one in (paths.run, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / token
    purpose = f"agent {hashlib.sha256(principal.encode()).hexdigest()[:16]}"
    began_s, signalled = clock.monotonic_s(), 0
    while True:
        held = locks.exclusive(path, purpose, what="this client's session")
        try:
            held.__enter__()
        except Busy:
            waited_s = clock.monotonic_s() - began_s
            signalled = _press(path, purpose, waited_s, signalled)
            if waited_s > _PATIENCE_S + _KILLED_S:
                raise
            continue
        break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        held.__exit__(None, None, None)


def _press(path: os.PathLike[str], purpose: str, waited_s: float, signalled: int) -> int:
    """Ask the old agent to end, then end it; not one of another peer, nor a process of many."""
    holder = locks.holder_of(os.fspath(path))
    wanted = signal.SIGKILL if waited_s > _PATIENCE_S else signal.SIGTERM
    ours = holder is not None and holder.purpose == purpose and not holder.shared
    if holder and ours and holder.pid > 1 and holder.pid != os.getpid() and signalled != wanted:
        try:
            os.kill(holder.pid, wanted)
        except (ProcessLookupError, PermissionError):
            pass
        signalled = wanted
    clock.sleep_s(0.02)
    return signalled
