"""The results of the reports other than `status` (docs/cli-json.md, Reports)."""

from collections.abc import Mapping
from typing import NamedTuple

from mirrord.core.model import BlockStates, FileChange, SnapshotKind
from mirrord.core.pause import PauseReport
from mirrord.core.records import AlarmRecord, AttemptRecord, EventRecord, TransferRecord


class History(NamedTuple):
    """What happened to a mirror last, each newest first."""

    name: str
    transfers: tuple[TransferRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    events: tuple[EventRecord, ...]


class PauseTest(NamedTuple):
    """The pauses of a test, in order."""

    name: str
    pauses: tuple[PauseReport, ...]


class SnapshotCopy(NamedTuple):
    """A snapshot at one end. path: "" for block volumes. intact: not changed since."""

    path: str
    intact: bool


class SnapshotEntry(NamedTuple):
    """A snapshot of a mirror. mine: taken or transferred by this mirror. shown: the destination
    shows it. base: the newest that both ends have. source, destination: None where it is not.
    """

    name: str
    guid: str
    kind: SnapshotKind
    taken_ns: int
    mine: bool
    shown: bool
    base: bool
    source: SnapshotCopy | None
    destination: SnapshotCopy | None


class SnapshotTable(NamedTuple):
    """The snapshots of both ends, oldest first. unreachable: from end to the reason."""

    name: str
    snapshots: tuple[SnapshotEntry, ...]
    unreachable: Mapping[str, str]


class DeltaReport(NamedTuple):
    """What an update would send. base: name of the base, None: the whole volume. states: None when
    they were not counted. exact: `send_bytes` is no estimate. rate_bytes_s: of the last transfers,
    None without any. changes: None when they were not requested, or the volume has no files.
    """

    name: str
    base: str | None
    block_size: int
    states: BlockStates | None
    added_bytes: int
    send_bytes: int
    exact: bool
    rate_bytes_s: float | None
    changes: tuple[FileChange, ...] | None

    @property
    def estimated_s(self) -> float | None:
        """How long it will take at that rate."""
        return self.send_bytes / self.rate_bytes_s if self.rate_bytes_s else None


class NextRun(NamedTuple):
    """When a mirror runs, and why then."""

    at_ns: int
    why: str


class NextRuns(NamedTuple):
    """The next runs of a mirror. schedule: its rules. note: why nothing runs then, or ""."""

    name: str
    schedule: tuple[str, ...]
    zone: str
    times: tuple[NextRun, ...]
    note: str


class NamedSchedule(NamedTuple):
    """A schedule that has a name. origin: the path of its file, or `mirrord`."""

    name: str
    description: str
    run: tuple[str, ...]
    zone: str
    jitter: str
    windows: tuple[str, ...]
    blackouts: tuple[str, ...]
    origin: str


class AlarmTable(NamedTuple):
    """Alarms, newest first. daemon_runs: it is the daemon that tells; without one they are those
    that were active when it stopped.
    """

    alarms: tuple[AlarmRecord, ...]
    daemon_runs: bool
