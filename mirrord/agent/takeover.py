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
            holder = locks.holder_of(path)
            if holder is not None and holder.pid and holder.purpose != purpose:
                raise
            signalled = _press(holder, waited_s, signalled)
            if waited_s > _PATIENCE_S + _KILLED_S:
                raise
            continue
        break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        held.__exit__(None, None, None)


def _press(holder: locks.Holder | None, waited_s: float, signalled: int) -> int:
    """Ask the old agent to end, then end it; not a process that serves others, too."""
    wanted = signal.SIGKILL if waited_s > _PATIENCE_S else signal.SIGTERM
    alone = holder is not None and not holder.shared and holder.pid != os.getpid()
    if holder and alone and holder.pid > 1 and signalled != wanted:
        try:
            os.kill(holder.pid, wanted)
        except (ProcessLookupError, PermissionError):
            pass
        signalled = wanted
    clock.sleep_s(0.02)
    return signalled
