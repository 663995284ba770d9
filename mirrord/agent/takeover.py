"""One agent per client: a new connection of a client ends its old agent, which may hang.

When a link fails silently, the agent at the other end keeps waiting, with the volume's lock held,
until heartbeats are missing. Its client may be back sooner.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mirrord.core.errors import Busy, ProtocolError
from mirrord.system import clock, locks
from mirrord.system.paths import Paths

_TOKEN = re.compile(r"[0-9a-f]{32}")
#: Time for the old agent to save its checkpoint before it is killed, and to end after that.
_PATIENCE_S = 5.0
_KILLED_S = 5.0
#: From this age on the file of an agent that was killed is removed: its client has not come back.
_FORGOTTEN_S = 3600.0


@contextmanager
def only_agent(paths: Paths, token: str, principal: str) -> Iterator[None]:
    """Be the only agent of the client with that `token`, after its previous agent has ended.

    principal: the identity and rules with which the client was accepted. A previous agent with
    another principal is not ended (`Busy`): a stolen token is of no use.
    """
    if not _TOKEN.fullmatch(token):
        raise ProtocolError("malformed session token from the other end")
    folder = paths.run / "agents"
    for one in (paths.run, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    _forget_killed(folder, token)
    path = folder / token
    if not _can_exist(path):
        yield
        return
    purpose = f"agent {hashlib.sha256(principal.encode()).hexdigest()[:16]}"
    began_s, signalled = clock.monotonic_s(), 0
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locks.exclusive(path, purpose, what="this client's session"))
                break
            except Busy:
                waited_s = clock.monotonic_s() - began_s
                holder = locks.holder_of(path)
                if holder is not None and holder.pid and holder.purpose != purpose:
                    raise
                signalled = _end_holder(holder, waited_s, signalled)
                if waited_s > _PATIENCE_S + _KILLED_S:
                    raise
        stack.callback(path.unlink, missing_ok=True)
        yield


def _can_exist(path: Path) -> bool:
    """Whether the file is there now. Without space for it the session is not registered: to lock
    the folder instead would shut out all other clients. If this agent is left behind, it ends once
    heartbeats are missing.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def _forget_killed(folder: Path, token: str) -> None:
    """Remove the files of agents that were killed, except that of this client."""
    before_s = clock.now_ns() / 1e9 - _FORGOTTEN_S
    for path in folder.iterdir():
        if path.name == token or not _TOKEN.fullmatch(path.name):
            continue
        with suppress(OSError):  # another agent removes it, too
            if path.stat().st_mtime < before_s and locks.holder_of(path) is None:
                path.unlink()


def _end_holder(holder: locks.Holder | None, waited_s: float, signalled: int) -> int:
    """Terminate the old agent, then kill it; never a process that serves other clients."""
    wanted = signal.SIGKILL if waited_s > _PATIENCE_S else signal.SIGTERM
    alone = holder is not None and not holder.shared and holder.pid != os.getpid()
    if holder and alone and holder.pid > 1 and signalled != wanted:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(holder.pid, wanted)
        signalled = wanted
    clock.sleep_s(0.02)
    return signalled
