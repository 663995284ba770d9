"""Which test tries to break which sentence of docs/security.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

#: Sentence by sentence, the tests that were marked.
MARKED: dict[str, list[str]] = {}


def breaks(*names: str) -> Callable[[F], F]:
    """Marks a test with the sentences that it tries to break."""

    def mark(test: F) -> F:
        for name in names:
            MARKED.setdefault(name, []).append(test.__qualname__)
        return test

    return mark
