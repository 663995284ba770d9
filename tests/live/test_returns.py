"""The return of the policy `dynamic` to sync: what it costs once is not what sync costs."""

from __future__ import annotations

import pytest

from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.live import Mode
from mirrord.policies.dynamic import Dynamic, Memory
from mirrord.policies.policy import Count, Observation

_KEYS = DynamicKeys(0.1, window_s=2.0, hold_down_s=5.0)


class _Mirror:
    """What the policy sees of a mirror with 20 writes in each period."""

    def __init__(self) -> None:
        self.policy, self.now_s = Dynamic(_KEYS), 100.0
        self.memory: Memory = self.policy.begin()._replace(left_s=80.0)
        self.answered = Count()
        self.mode = Mode.SEMI_SYNC

    def period(self, wait_us: float, *, in_sync: bool) -> Mode:
        """Writes were answered after so long; what the policy says then."""
        self.now_s += 0.25
        self.answered = Count(self.answered.writes + 20, self.answered.total_us + 20 * wait_us)
        local = Count(self.answered.writes, self.answered.writes * 100.0)
        seen = Observation(
            self.now_s,
            self.mode,
            connected=True,
            in_sync=in_sync,
            lag_s=0.0,
            answered=self.answered,
            local=local,
            received=self.answered,
        )
        directive, self.memory = self.policy.decide(seen, self.memory)
        self.mode = directive.mode
        return self.mode


def test_what_writes_wait_for_the_commit_does_not_undo_the_return() -> None:
    mirror = _Mirror()
    assert mirror.period(1000, in_sync=False) is Mode.SYNC
    # Both ends commit; what was written meanwhile is answered then.
    assert mirror.period(1000, in_sync=False) is Mode.SYNC
    assert mirror.period(900_000, in_sync=True) is Mode.SYNC
    modes = [mirror.period(1000, in_sync=True) for _ in range(20)]
    assert set(modes) == {Mode.SYNC}


@pytest.mark.parametrize("in_sync", [True, False])
def test_sync_is_left_when_writes_wait_after_the_return_or_it_never_comes(in_sync: bool) -> None:
    mirror = _Mirror()
    assert mirror.period(1000, in_sync=False) is Mode.SYNC
    modes = [mirror.period(200_000, in_sync=in_sync) for _ in range(20)]
    left = modes.index(Mode.SEMI_SYNC)
    # After the window; or after one for the commit, and the window.
    assert left == (8 if in_sync else 15)
    assert mirror.memory.hold_down_s == 10.0
