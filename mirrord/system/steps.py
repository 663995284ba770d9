"""Labelled steps: every effect that changes stored state announces itself here first.

A test installs an observer, records all labels of an operation, and then fails or kills the
process at each of them in turn: that is the crash matrix (tests/crash). In production there is
no observer, and a step costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

_observer: Callable[[str], None] | None = None


def reached(label: str) -> None:
    """About to do `label`. The observer may raise, or end the process, in place of the effect."""
    if _observer is not None:
        _observer(label)


def observe(observer: Callable[[str], None] | None) -> None:
    """Let `observer` see (and break) each step from now on; None: nobody."""
    global _observer
    _observer = observer
