"""What verbs report: while they run (`Watcher`), and when they are done (`Result`)."""

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
    """Receives the progress of a verb. No method blocks."""

    def activity(self, activity: Activity, note: str) -> None:
        """The mirror's activity has changed; note: details for people."""

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """A transfer of a snapshot starts, or is resumed after `done_bytes`."""

    def moved(self, stream_bytes: int) -> None:
        """`stream_bytes` more bytes of the stream were received."""


class Silent:
    """A watcher that ignores everything."""

    def activity(self, activity: Activity, note: str) -> None:
        """Do nothing."""

    def transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """Do nothing."""

    def moved(self, stream_bytes: int) -> None:
        """Do nothing."""
