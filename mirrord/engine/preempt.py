"""`break` and `abort` go first: they end the verb that is at work on their mirror, in whatever
process that is, and no other begins before they have ended.

Every verb passes a gate on its way to the mirror's lock, and holds it only until it has that lock.
Who goes first keeps the gate: then only the verb at work has to end, which asks for that at each
piece it transfers, in each pause and wait, and while a program of the owner's runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirrord.core.errors import Busy
from mirrord.core.states import Activity, Verb
from mirrord.system import clock, locks

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror

_POLL_S = 0.05
#: A process that does nothing else gets a signal when it has not answered by then.
_SIGNAL_S = 2.0
#: What cannot be interrupted (a disk that hangs, a walk through a huge volume) may take so long.
_PATIENCE_S = 600.0


@contextmanager
def first(mirror: Mirror, verb: Verb) -> Iterator[bool]:
    """Go first on this mirror while the block runs; whether a verb was ended for it.

    `Busy` when another process goes first already, or when what is at work does not end.
    """
    with locks.exclusive(mirror.run.gate, verb.value, what=f"mirror '{mirror.name}'"):
        stopped = _stop(mirror, verb)
        mirror.run.goes_first = True
        try:
            yield stopped
        finally:
            mirror.run.goes_first = False


@contextmanager
def passing(mirror: Mirror) -> Iterator[None]:
    """Take the mirror's lock in this block; `Busy` while somebody goes first."""
    if mirror.run.goes_first:
        yield
        return
    with locks.passing(mirror.run.gate, what=f"mirror '{mirror.name}'"):
        yield


def _stop(mirror: Mirror, verb: Verb) -> bool:
    """End the verb at work; whether there was one."""
    started_s, signalled, stopped = clock.monotonic_s(), False, False
    while (holder := locks.holder_of(mirror.run.lock)) is not None:
        if not stopped:
            mirror.watcher.activity(Activity.ABORTING, str(holder))
        stopped = True
        if mirror.run.read().get("activity") != Activity.ABORTING.value:
            # Asked again and again: what was asked just before it began was void for it.
            mirror.run.request_abort(f"'mirrord {verb.value}'")
        waited_s = clock.monotonic_s() - started_s
        if waited_s > _PATIENCE_S:
            raise Busy(
                f"the {holder.purpose} of mirror '{mirror.name}' did not end",
                why=f"{holder} was asked {waited_s:.0f} s ago and has not answered",
                hint="It waits for a disk or for another host: see 'dmesg', and 'mirrord status "
                f"{mirror.name}'. Run the same command again once that answers.",
            )
        mortal = holder.pid > 1 and not holder.shared and holder.pid != os.getpid()
        if waited_s > _SIGNAL_S and not signalled and mortal:
            signalled = True
            try:
                os.kill(holder.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                pass
        clock.sleep_s(_POLL_S)
    return stopped
