"""What is recorded of a mirror's past: transfers, failures, alarms, events."""

from enum import StrEnum
from typing import NamedTuple

from mirrord.core.states import Verb


class Level(StrEnum):
    """How serious a fault or an alarm is."""

    WARNING = "warning"
    ERROR = "error"


class AlarmKind(StrEnum):
    """What an alarm can be about. docs/alarms.md describes each, in this order."""

    LAG = "lag"
    FAILURE = "failure"
    VERB = "verb"
    STALL = "stall"
    BASE = "base"
    SYNC = "sync"
    DESTINATION = "destination"
    SOURCE = "source"
    INTERRUPTED = "interrupted"
    PRUNE = "prune"
    VERIFY = "verify"
    TARGET = "target"
    PAUSE = "pause"
    CLOCK = "clock"
    STATE = "state"


class Finding(NamedTuple):
    """Something that is wrong: a fault of an end, or an alarm."""

    kind: AlarmKind
    level: Level
    text: str


class TransferRecord(NamedTuple):
    """One transfer; see the table `transfer`. recorded: the position in the order in which
    transfers, attempts and events were recorded.
    """

    id: str
    verb: str
    base: str | None
    full_reason: str
    guid: str
    name: str
    result: str
    started_ns: int
    duration_ms: int
    stream_bytes: int
    resumed_bytes: int
    added_bytes: int
    lag_ms: int
    checksum: str
    error: str
    throttled_ms: int
    phases: str
    spread_ms: int | None
    pause: str
    recorded: int = 0


class EventRecord(NamedTuple):
    """One event; see the table `event`. level: info, warning or error."""

    at_ns: int
    level: str
    text: str
    recorded: int = 0


class AttemptRecord(NamedTuple):
    """A failed attempt; see the table `attempt`."""

    at_ns: int
    verb: str
    cause: str
    number: int
    code: str
    error: str
    recorded: int = 0


class FailureRecord(NamedTuple):
    """A failed command that has not succeeded since; see the table `failure`."""

    kind: str
    verb: str
    at_ns: int
    code: str
    error: str

    def text(self, name: str) -> str:
        """For people. name: the mirror's."""
        text = f"the last {self.verb} failed: {self.error}"
        # The next scheduled run clears the one of an update.
        if self.kind == Verb.UPDATE.value:
            return text
        return f"{text} ('mirrord abort {name}' clears this message)"


class AlarmRecord(NamedTuple):
    """An alarm; see the table `alarm`. mirror_id: None for an alarm of the host. mirror: the name
    of the mirror, "" where it is not known; the table does not have it.
    """

    id: int
    mirror_id: str | None
    kind: AlarmKind
    level: Level
    text: str
    raised_ns: int
    cleared_ns: int | None
    mirror: str = ""
