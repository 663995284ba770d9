"""What verbs report: while they run (`Watcher`), and when they are done (`Result`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from mirrord.core.model import BlockStates
from mirrord.core.states import Activity

#: What `--json` prints of a result.
Document = dict[str, Any]


class UpdateNumbers(NamedTuple):
    """What an update did. confirmed_ns: the moment at which both ends were equal. prune_refused:
    why pruning was refused, or "". snapshot: its name, "" when nothing had changed: then nothing
    was transferred. phases: seconds by phase. pause_s: how long the application was paused, None
    when it was not. not_resumed: which applications may still be paused, and why; or "".
    """

    confirmed_ns: int
    prune_refused: str = ""
    snapshot: str = ""
    transfers: int = 0
    stream_bytes: int = 0
    added_bytes: int = 0
    resumed_bytes: int = 0
    duration_s: float = 0.0
    throttled_s: float = 0.0
    phases: Mapping[str, float] = MappingProxyType({})
    block_states: BlockStates | None = None
    pause_s: float | None = None
    not_resumed: str = ""

    def document(self) -> Document:
        """As `--json` prints it; without what there is only after a transfer, if there was none."""
        if not self.snapshot:
            keys = ("confirmed_ns", "prune_refused", "duration_s")
            return {key: getattr(self, key) for key in keys}
        states = self.block_states
        return self._asdict() | {
            "phases": dict(self.phases),
            "block_states": states._asdict() if states else None,
        }


#: The statuses of verbs that only said what they would do.
_NOTHING_DONE = frozenset({"confirmation-required", "planned", "refused"})


def has_acted(status: str) -> bool:
    """Whether a verb that ended with this status did its work, or found it done."""
    return status not in _NOTHING_DONE


class Result(NamedTuple):
    """What a verb did. status: a stable word (docs/cli-json.md); text: for people; update: of a
    verb that ends with an update.
    """

    status: str
    text: str
    data: Mapping[str, Any] = MappingProxyType({})
    update: UpdateNumbers | None = None


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


class VerbProgress(NamedTuple):
    """How far a running verb is. snapshot, estimate_bytes, done_bytes: of its last transfer, "" and
    None before that. rate_bytes_s: None until bytes have moved.
    """

    activity: Activity = Activity.IDLE
    snapshot: str = ""
    estimate_bytes: int | None = None
    done_bytes: int | None = None
    rate_bytes_s: int | None = None

    @property
    def left_s(self) -> float | None:
        """The remaining time of the running transfer at its rate so far; None when not known."""
        if self.activity is not Activity.TRANSFERRING or not self.rate_bytes_s:
            return None
        if self.estimate_bytes is None or self.done_bytes is None:
            return None
        return max(0, self.estimate_bytes - self.done_bytes) / self.rate_bytes_s
