"""Asks a policy what a mirror should do, so that one that fails does no harm.

Policies may be of other packages. Each has a thread of its own: one that hangs is left alone, and
asked again once it has answered. What cannot be done is not done. The directive before holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from mirrord.core.live import Mode
from mirrord.policies.policy import AnyPolicy, Directive, Observation

#: How long a decision may take.
_PATIENCE_S = 1.0


class Answer(NamedTuple):
    """directive: None when there is no valid one; problem: why."""

    directive: Directive | None
    problem: str = ""


class Decider:
    """Makes a policy and asks it, with what it remembers. make: may fail and hang, too."""

    def __init__(self, make: Callable[[], AnyPolicy], *, patience_s: float = _PATIENCE_S) -> None:
        self._make, self._patience_s = make, patience_s
        self._questions: SimpleQueue[Observation | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._is_asked = False
        # A daemon thread: one that hangs does not keep the process from ending.
        self._thread = Thread(target=self._work, name="policy", daemon=True)
        self._thread.start()

    def decide(self, observation: Observation) -> Answer:
        """What the policy says; never raises, and returns in time."""
        silent = Answer(None, f"it has not answered for {self._patience_s:g} s")
        if self._is_asked:
            try:
                self._answers.get_nowait()  # of another moment: it is too late
            except Empty:
                return silent
        self._questions.put(observation)
        self._is_asked = True
        try:
            answer = self._answers.get(timeout=self._patience_s)
        except Empty:
            return silent
        self._is_asked = False
        return answer

    def end(self) -> None:
        """Ask no more."""
        self._questions.put(None)

    def _work(self) -> None:
        policy: AnyPolicy | None = None
        memory: Any = None
        while (observation := self._questions.get()) is not None:
            try:
                if policy is None:
                    made = self._make()
                    memory, policy = made.begin(), made
                directive, memory = _checked(policy.decide(observation, memory))
                answer = Answer(directive)
            except BaseException as error:
                answer = Answer(None, f"{type(error).__name__}: {error}".splitlines()[0])
            self._answers.put(answer)


def _checked(answer: Any) -> tuple[Directive, Any]:
    """The answer, if it is one that can be applied."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise TypeError(f"decide returned {type(answer).__name__}, not a directive and a memory")
    found = answer[0]
    if not isinstance(found, Directive) or not isinstance(found.mode, Mode):
        raise TypeError("decide returned no Directive with a Mode")
    for name in ("lag_bytes", "answer_within_us", "max_lag_bytes"):
        value = getattr(found, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value >= 0):
            raise ValueError(f"decide returned {name} = {value!r}")
    return found, answer[1]
