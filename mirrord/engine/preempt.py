"""`break` and `abort` have priority: they end the verb that is running on their mirror, in any
process, and no other verb begins before they have ended.

Every verb passes a gate before it takes the mirror's lock, and holds the gate only until it has
that lock. A verb with priority keeps the gate: then only the running verb has to end, which checks
for a request at each piece it transfers, in each pause and wait, and while a hook program runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from mirrord.core.errors import Busy
from mirrord.core.states import Activity, Verb
from mirrord.system import clock, locks

if TYPE_CHECKING:
    from mirrord.core.results import Watcher
    from mirrord.engine.progress import RunFiles

_POLL_S = 0.05
#: A process that runs only this verb gets a signal when it has not reacted by then.
_SIGNAL_S = 2.0
#: How long something that cannot be interrupted may take (a disk that hangs, a huge volume).
_PATIENCE_S = 600.0


class Preempted(Protocol):
    """A mirror as far as this module is concerned."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def run(self) -> RunFiles:
        """The files of the run."""

    @property
    def watcher(self) -> Watcher:
        """What receives its progress."""


@contextmanager
def first(mirror: Preempted, verb: Verb) -> Iterator[bool]:
    """Have priority on this mirror while the block runs; yields whether a verb was ended for it.

    `Busy` when another process already has priority, or when the running verb does not end.
    """
    with locks.exclusive(mirror.run.gate, verb.value, what=f"mirror '{mirror.name}'") as whole:
        stopped = _stop(mirror, verb)
        mirror.run.goes_first, mirror.run.has_folder = True, whole
        try:
            yield stopped
        finally:
            mirror.run.goes_first = mirror.run.has_folder = False


@contextmanager
def held(
    mirror: Preempted, verb: Verb, *, activity: Activity = Activity.IDLE
) -> Iterator[ExitStack]:
    """Hold the mirror on this host for one verb; `Busy` names the holder, or who has priority."""
    run, what = mirror.run, f"mirror '{mirror.name}'"
    with ExitStack() as stack:
        with nullcontext() if run.goes_first else locks.passing(run.gate, what=what):
            if not run.has_folder:
                stack.enter_context(locks.exclusive(run.lock, verb.value, what=what))
        run.begin(activity)
        stack.callback(run.end)
        yield stack


def _stop(mirror: Preempted, verb: Verb) -> bool:
    """End the running verb; returns whether there was one."""
    started_s, signalled, stopped = clock.monotonic_s(), False, False
    while (holder := locks.holder_of(mirror.run.lock)) is not None:
        if not stopped:
            mirror.watcher.activity(Activity.ABORTING, str(holder))
        stopped = True
        if mirror.run.read().activity is not Activity.ABORTING:
            # Repeat the request: one made just before the verb began was discarded by it.
            mirror.run.request_abort(f"'mirrord {verb.value}'")
        waited_s = clock.monotonic_s() - started_s
        if waited_s > _PATIENCE_S:
            raise Busy(
                f"the {holder.purpose} of mirror '{mirror.name}' did not end",
                why=f"{holder} was asked to end {waited_s:.0f} s ago and has not",
                hint="It may be waiting for a disk or another host: check 'dmesg' and 'mirrord "
                f"status {mirror.name}', then run the same command again.",
            )
        can_signal = holder.pid > 1 and not holder.shared and holder.pid != os.getpid()
        if waited_s > _SIGNAL_S and not signalled and can_signal:
            signalled = True
            with suppress(ProcessLookupError, PermissionError):
                os.kill(holder.pid, signal.SIGTERM)
                os.kill(holder.pid, signal.SIGCONT)  # it may be suspended (Ctrl-Z)
        clock.sleep_s(_POLL_S)
    return stopped
