"""One agent per client: a new connection of a client ends its old agent, which may hang.

When a link fails silently, the agent at the other end keeps waiting, with the volume's lock held,
until heartbeats are missing. Its client may be back sooner.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from mirrord.core.errors import Busy, ProtocolError
from mirrord.system import clock, locks
from mirrord.system.paths import Paths

_TOKEN = re.compile(r"[0-9a-f]{32}")
#: Time for the old agent to save its checkpoint before it is killed, and to end after that.
_PATIENCE_S = 5.0
_KILLED_S = 5.0


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
    path = folder / token
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
