"""Runs the loops of live mirrors that may be out of sync by their policy: they apply a policy that
changes the mode, and notice at once when writes wait for a full window (mirrord.live.steering).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event

from mirrord.core.errors import Busy, ConfigError, LinkLost, NotFound, Unreachable
from mirrord.core.live import LiveStatus, Mode
from mirrord.core.model import Definition
from mirrord.core.policies import FIXED
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.status import Reading
from mirrord.daemon.journal import say
from mirrord.daemon.tasks import Background
from mirrord.daemon.workers import WINDOWS, Workers
from mirrord.engine.mirror import one_line
from mirrord.live.deciding import Decider
from mirrord.live.mirror import LiveMirror
from mirrord.live.reading import full_window
from mirrord.live.steering import steer, watch_window
from mirrord.policies.registry import open_policy
from mirrord.system import clock
from mirrord.system.native import Panic

#: A window that was full so short a time ago is, for alarms: clients that are faster than the link
#: fill it again and again.
_FULL_S = 3.0


@dataclass(slots=True)
class _Steered:
    definition: Definition
    zone: str
    #: None for `semi-sync`, where nothing is decided.
    decider: Decider | None
    ending: Event
    #: What is wrong with the policy; its loop writes it, in a thread.
    problem: str = ""
    #: That writes wait, and when that was last seen (monotonic).
    full: Finding | None = None
    full_s: float = 0.0

    def is_full(self) -> bool:
        """Whether writes wait for the window."""
        return self.full is not None and clock.monotonic_s() - self.full_s < _FULL_S


class Steering:
    """The loops, one for each such mirror. Its methods run on the event loop."""

    def __init__(
        self, workers: Workers, background: Background, waits: Callable[[str], None]
    ) -> None:
        """waits: is called when a mirror's window has become full."""
        self._workers, self._background, self._waits = workers, background, waits
        self._steered: dict[str, _Steered] = {}
        self._running: set[str] = set()
        #: Those of them that wait for full windows.
        self._watching: set[str] = set()
        self._ended = False

    def define(self, definition: Definition, zone: str) -> None:
        """Begin the loop of a mirror, or begin it again where its definition has changed."""
        if self._ended:
            return  # a probe was under way when the daemon was told to end
        name = definition.name
        known = self._steered.get(name)
        if known is not None and (known.definition, known.zone) != (definition, zone):
            self.forget(name)
        is_fixed = definition.policy in FIXED
        if not definition.is_live or (is_fixed and definition.policy != Mode.SEMI_SYNC.value):
            return
        if name not in self._steered:
            keys, window = definition.policy_keys, definition.window
            make = partial(open_policy, definition.policy, keys, window=window, zone=zone)
            decider = None if is_fixed else Decider(make)
            self._steered[name] = _Steered(definition, zone, decider, Event())
        if name in self._running:
            return
        if self._steered[name].decider is None:
            if len(self._watching) >= WINDOWS:
                return  # it is only probed: in the pool's queue it would wait for ever
            self._watching.add(name)
        self._running.add(name)
        self._background(self._run(name, self._steered[name]))

    def forget(self, name: str) -> None:
        """End the loop of a mirror."""
        known = self._steered.pop(name, None)
        if known is not None:
            known.ending.set()
            if known.decider is not None:
                known.decider.end()

    def end(self) -> None:
        """End all loops, and begin no more."""
        self._ended = True
        for name in list(self._steered):
            self.forget(name)

    def shown(self, name: str, reading: Reading) -> Reading:
        """What was read of a mirror, with what its loop knows: what is wrong with its policy, and
        whether writes wait.
        """
        steered, found = self._steered.get(name), list(reading.faults)
        if steered is None:
            return reading
        problem = None
        if steered.problem:
            policy = steered.definition.policy
            text = f"the policy '{policy}' failed, what it said last holds: {steered.problem}"
            problem = Finding(AlarmKind.SYNC, Level.ERROR, text)
            found = [fault for fault in found if fault != problem]  # it was shown before
        is_known = any(
            fault.kind is AlarmKind.SYNC and fault.level is Level.ERROR for fault in found
        )
        if steered.full is not None and steered.is_full() and not is_known:
            found.insert(0, steered.full)  # the first of a kind is the alarm
        if problem is not None:
            found.append(problem)
        return reading._replace(faults=tuple(found))

    async def _run(self, name: str, steered: _Steered) -> None:
        events = asyncio.get_running_loop()

        def tell(problem: str) -> None:
            if steered.ending.is_set():
                return
            before, steered.problem = steered.problem, problem
            if problem and not before:
                say("error", f"{name}: the policy failed: {problem}", mirror=name)

        def waits(primary: LiveStatus) -> None:
            was_full = steered.is_full()
            steered.full, steered.full_s = full_window(primary), clock.monotonic_s()
            if not was_full and not steered.ending.is_set():
                events.call_soon_threadsafe(self._waits, name)

        def work(mirror: LiveMirror) -> None:
            policy, decider, ending = steered.definition.policy, steered.decider, steered.ending
            if decider is None:
                watch_window(mirror, ending, waits)
            else:
                steer(mirror, policy, decider, ending, tell, waits)

        crew = self._workers.window if steered.decider is None else self._workers.steer
        try:
            await crew(lambda service: service.look_live(name, work))
        except (Busy, LinkLost, Unreachable, NotFound, ConfigError):
            pass  # the next probe, which shows what is wrong, begins it again if it is needed
        except (Exception, Panic) as error:  # also a bug, or that no thread can be started
            if steered.decider is not None:  # else it was a primary, or its program is an older one
                tell(f"it cannot be applied: {one_line(error)}")
        finally:
            self._running.discard(name)
            self._watching.discard(name)
