"""What verbs tell: while they work (`Watcher`), and when they are done (`Result`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from mirrord.core.states import Activity


class Result(NamedTuple):
    """What a verb did. status: a stable word (docs/cli-json.md); text: for people."""

    status: str
    text: str
    data: Mapping[str, Any] = MappingProxyType({})


class Watcher(Protocol):
    """Is told what a verb does. All methods return at once."""

    def activity(self, activity: Activity, note: str) -> None:
        """The mirror does something else now; note: what, for people."""

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """A transfer of a snapshot begins, or goes on after `done_bytes`."""

    def moved(self, stream_bytes: int) -> None:
        """So many more bytes of the stream were received."""


class Silent:
    """A watcher that tells nobody."""

    def activity(self, activity: Activity, note: str) -> None:
        """Nothing."""

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """Nothing."""

    def moved(self, stream_bytes: int) -> None:
        """Nothing."""
