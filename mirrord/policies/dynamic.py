"""The policy `dynamic`: synchronous whenever it can be, with a bounded lag otherwise.

These are the two algorithms of *Dynamic synchronous/asynchronous replication* (Natanzon, Bachmat),
sections 3.1 and 3.2. M grows write by write (`Directive.answer_within_us`); this decides the mode,
and when M gets smaller. Beyond the paper: latency includes local storage, sync is left only if
clients are then answered in time, and entered only if the replica's answers are fast enough now;
each failed return doubles the time until the next one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.live import Mode
from mirrord.policies.policy import Count, Directive, Observation

#: M gets smaller by this share of it, and at least this many bytes, at each decision.
_STEP, _STEP_MIN = 16, 64 << 10
#: The longest time for which failed returns keep a mirror from synchronous mode.
_HOLD_DOWN_MAX_S = 86400.0


class _Sample(NamedTuple):
    now_s: float
    answered: Count
    local: Count
    received: Count


class Memory(NamedTuple):
    """samples: counts of the window, the oldest at its beginning. left_s, returned_s: when sync was
    last left and entered again; None: never. hold_down_s: after the next time. entering: sync was
    asked for, and is not in force yet.
    """

    samples: tuple[_Sample, ...] = ()
    left_s: float = 0.0
    returned_s: float | None = None
    hold_down_s: float = 0.0
    entering: bool = False


class Dynamic:
    """The policy. It begins in synchronous mode."""

    def __init__(self, keys: DynamicKeys) -> None:
        self._keys = keys
        self._max_lat_us = keys.max_lat_s * 1e6

    def begin(self) -> Memory:
        """See `Policy.begin`."""
        return Memory(hold_down_s=self._keys.hold_down_s)

    def decide(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        """See `Policy.decide`."""
        memory = self._sampled(observation, memory)
        if observation.mode is Mode.SEMI_SYNC:
            return self._semi_sync(observation, memory)
        if observation.mode is Mode.ASYNC:
            return self._tracking(observation, memory)
        if memory.entering:
            memory = self._entered(observation, memory)
        if not self._must_leave(observation, memory):
            return Directive(Mode.SYNC), memory
        hold_s = self._keys.hold_down_s
        now_s, returned_s = observation.now_s, memory.returned_s
        if returned_s is not None and now_s - returned_s < memory.hold_down_s:
            hold_s = max(hold_s, min(2 * memory.hold_down_s, _HOLD_DOWN_MAX_S))
        samples = memory.samples[-1:]
        memory = memory._replace(samples=samples, left_s=now_s, hold_down_s=hold_s)
        if not observation.connected and self._keys.max_rpo_bytes is None:
            return Directive(Mode.ASYNC), memory
        return self._lagging(), memory

    def _sampled(self, observation: Observation, memory: Memory) -> Memory:
        now_s = observation.now_s
        counts = observation.answered, observation.local, observation.received
        samples = (*memory.samples, _Sample(now_s, *counts))
        first = 0
        while first + 1 < len(samples) and samples[first + 1].now_s <= now_s - self._keys.window_s:
            first += 1
        return memory._replace(samples=samples[first:])

    def _entered(self, observation: Observation, memory: Memory) -> Memory:
        """Writes wait while the ends commit. That happens once, and says nothing of how long they
        wait afterwards: the window begins when sync is in force. It counts when it takes too long.
        """
        since_s = observation.now_s - (memory.returned_s or 0.0)
        is_over = observation.in_sync or since_s >= self._keys.window_s
        return memory._replace(samples=memory.samples[-1:], entering=not is_over)

    def _must_leave(self, observation: Observation, memory: Memory) -> bool:
        """Whether clients wait for too long, and would not outside of synchronous mode."""
        before = memory.samples[0]
        if observation.now_s - before.now_s < self._keys.window_s:
            return False
        writes, total_us = _since(before.answered, observation.answered)
        if observation.oldest_us:
            writes, total_us = writes + 1, total_us + observation.oldest_us
        if not writes or total_us <= self._max_lat_us * writes:
            return False
        locally, local_us = _since(before.local, observation.local)
        return local_us <= self._max_lat_us * locally

    def _semi_sync(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        keys, limit = self._keys, observation.lag_limit_bytes
        if keys.max_rpo_bytes is None:
            # Without its log at the replica there is no M: writes wait.
            is_behind = not observation.connected or observation.dirty_bytes > 0
            if observation.buffered_bytes >= keys.buffer_bytes or (
                is_behind and self._must_leave(observation, memory)
            ):
                return Directive(Mode.ASYNC), memory
        return_s = memory.left_s + memory.hold_down_s
        returning = observation.now_s >= return_s
        calm = keys.returning if returning else keys.lower
        lower = None
        if limit and self._is_calm(observation, memory, calm):
            limit = lower = max(0, limit - max(_STEP_MIN, limit // _STEP))
        if (
            returning
            and limit < keys.sync_bytes
            and not observation.dirty_bytes
            and observation.connected
            and self._is_fast(memory)
        ):
            now_s = observation.now_s
            samples = memory.samples[-1:]
            memory = memory._replace(samples=samples, returned_s=now_s, entering=True)
            return Directive(Mode.SYNC), memory
        wake_at_s = observation.now_s if limit else return_s
        merge = limit > keys.merge_bytes
        return self._lagging(lower)._replace(wake_at_s=wake_at_s, merge=merge), memory

    def _is_calm(self, observation: Observation, memory: Memory, share: float) -> bool:
        """Whether M may get smaller: no client waits for this share of what it accepts. Where M is
        far from the return to sync, none does on average since the last decision: a few wait for
        long there, as merged writes are acknowledged together.
        """
        longest_us = share * self._max_lat_us
        if observation.lag_limit_bytes <= self._keys.merge_bytes:
            return observation.slowest_us < longest_us
        before = memory.samples[-2:][0]
        writes, total_us = _since(before.answered, observation.answered)
        _locally, local_us = _since(before.local, observation.local)
        return observation.oldest_us < longest_us and total_us - local_us <= longest_us * writes

    def _is_fast(self, memory: Memory) -> bool:
        """Whether clients would be answered fast enough if they waited for the replica: at each
        decision of the window, as a mean over it hides a load that is near the link's rate.
        """
        longest_us = self._keys.returning * self._max_lat_us
        received = [sample.received for sample in memory.samples]
        found = [_since(before, now) for before, now in pairwise(received)]
        return all(total_us <= longest_us * writes for writes, total_us in found)

    def _tracking(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        is_copied = observation.dirty_bytes <= self._keys.sync_bytes
        if not is_copied or observation.buffered_bytes or not observation.connected:
            return Directive(Mode.ASYNC), memory
        return self._lagging(self._keys.sync_bytes), memory

    def _lagging(self, limit: int | None = None) -> Directive:
        return Directive(
            Mode.SEMI_SYNC,
            lag_bytes=limit,
            answer_within_us=self._max_lat_us,
            max_lag_bytes=self._keys.max_rpo_bytes,
        )


def _since(before: Count, now: Count) -> tuple[int, float]:
    if now.writes < before.writes:  # the process was restarted
        before = Count()
    return now.writes - before.writes, now.total_us - before.total_us
