"""The policy `scheduled`: another one by the time of the week."""

from __future__ import annotations

from typing import Any, NamedTuple

from mirrord.policies.policy import AnyPolicy, Directive, Observation
from mirrord.schedules.spans import Span, covers, next_edge


class Memory(NamedTuple):
    """inside: whether the special hours are in force; since_ns, until_ns: in which wall time that
    holds; memory: of the policy that decides.
    """

    inside: bool
    since_ns: int
    until_ns: float
    memory: Any


class Scheduled:
    """`inside` in the hours of these spans, otherwise `outside`: for example "never leave sync in
    working hours". Each begins again with its hours.
    """

    def __init__(
        self, spans: tuple[Span, ...], inside: AnyPolicy, outside: AnyPolicy, zone: str = "UTC"
    ) -> None:
        self._spans, self._zone = spans, zone
        self._inside, self._outside = inside, outside

    def begin(self) -> Memory:
        """See `Policy.begin`."""
        return Memory(False, 0, 0, self._outside.begin())

    def decide(self, observation: Observation, memory: Memory) -> tuple[Directive, Memory]:
        """See `Policy.decide`."""
        wall_ns = observation.wall_ns
        if not memory.since_ns <= wall_ns < memory.until_ns:  # (a clock may be set back)
            memory = self._next(wall_ns, memory)
        policy = self._inside if memory.inside else self._outside
        directive, remembered = policy.decide(observation, memory.memory)
        change_s = observation.now_s + (memory.until_ns - wall_ns) / 1e9
        wake_s = change_s if directive.wake_at_s is None else min(directive.wake_at_s, change_s)
        return directive._replace(wake_at_s=wake_s), memory._replace(memory=remembered)

    def _next(self, wall_ns: int, memory: Memory) -> Memory:
        inside = any(covers(span, wall_ns, self._zone) for span in self._spans)
        edge_ns = next_edge(self._spans, wall_ns, self._zone)
        until_ns = float("inf") if edge_ns is None else edge_ns
        if inside is memory.inside:
            return memory._replace(since_ns=wall_ns, until_ns=until_ns)
        policy = self._inside if inside else self._outside
        return Memory(inside, wall_ns, until_ns, policy.begin())
