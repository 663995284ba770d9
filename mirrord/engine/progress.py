"""The progress that a running verb reports to other processes, and how they ask it to end."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from mirrord.core.errors import Aborted
from mirrord.core.results import VerbProgress
from mirrord.core.states import Activity
from mirrord.system import clock, files

_WRITE_EVERY_S = 0.1


class RunFiles:
    """The files of one running verb in the run folder: lock, progress, request to abort.

    They do not survive a restart and need not: no decision depends on them.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        # (Strings: a mirror is opened for each look at it.)
        stem = f"{folder}/{name}."
        self.lock = stem + "lock"
        #: Locked by a verb that goes before all others (`preempt.first`).
        self.gate = stem + "gate"
        #: Locked while the mode of a live mirror is set.
        self.mode = stem + "mode"
        #: Locked while a verification runs.
        self.verifying = stem + "verifying"
        self._progress, self._abort = stem + "progress", stem + "abort"
        #: Whether this process holds the gate (`preempt.first`).
        self.goes_first = False
        #: Whether it has locked the run folder instead, which is full.
        self.has_folder = False
        self._state = VerbProgress()
        self._written_s = 0.0
        #: What this process's last transfer moved (complete or not) and since when, and the
        #: estimate.
        self.estimate_bytes = 0
        self.moved_bytes = 0
        self.moved_since_s = clock.monotonic_s()

    def begin(self, activity: Activity) -> None:
        """A verb begins: requests made before it are discarded.

        The state is written first: a process that repeats its request until it sees the state must
        not do so after the removal.
        """
        self._state = VerbProgress(activity)
        self._write()
        _remove(self._abort)

    def end(self) -> None:
        """The verb is over."""
        _remove(self._progress)
        _remove(self._abort)

    def enter(self, activity: Activity) -> None:
        """The activity of the verb has changed."""
        self._tell(self._state._replace(activity=activity))

    def _tell(self, state: VerbProgress) -> None:
        """Report it to other processes: a new activity at once, else at most ten times a second."""
        changed = state.activity is not self._state.activity
        self._state = state
        if changed or clock.monotonic_s() - self._written_s > _WRITE_EVERY_S:
            self._write()

    def begin_transfer(self, name: str, estimate_bytes: int, done_bytes: int) -> None:
        """A transfer starts, or is resumed after `done_bytes`."""
        self.moved_bytes, self.moved_since_s = 0, clock.monotonic_s()
        self.estimate_bytes = estimate_bytes
        self._tell(VerbProgress(Activity.TRANSFERRING, name, estimate_bytes, done_bytes))

    def expect(self, estimate_bytes: int, done_bytes: int) -> None:
        """Update the estimate of a running transfer."""
        self.estimate_bytes = estimate_bytes
        self._tell(self._state._replace(estimate_bytes=estimate_bytes, done_bytes=done_bytes))

    def moved(self, stream_bytes: int, done_bytes: int) -> None:
        """`stream_bytes` more bytes were received; `done_bytes` in total."""
        self.moved_bytes += stream_bytes
        passed_s = clock.monotonic_s() - self.moved_since_s
        rate = round(self.moved_bytes / passed_s) if passed_s > 0 else 0
        self._tell(self._state._replace(done_bytes=done_bytes, rate_bytes_s=rate))

    def read(self) -> VerbProgress:
        """What the running verb reported last."""
        try:
            known = json.loads(Path(self._progress).read_text())
            return VerbProgress(**{**known, "activity": Activity(known["activity"])})
        except (OSError, ValueError, TypeError, KeyError):
            return VerbProgress()  # none runs, or one of another version

    def request_abort(self, by: str = "'mirrord abort'") -> None:
        """Ask the running verb to end. by: the source of the request, for the message."""
        try:
            _replace(self._abort, by)  # the verb may read it at any moment
        except OSError:
            Path(self._abort).touch()  # on a full disk it is empty, which is still a request

    def check_abort(self) -> None:
        """Raise `Aborted` when that was requested."""
        if os.path.exists(self._abort):
            raise Aborted(
                "the transfer was aborted",
                why=f"by {self._asker()}",
                hint="The destination shows what it showed before.",
            )

    def _asker(self) -> str:
        try:
            return Path(self._abort).read_text(encoding="utf-8").strip() or "an unknown process"
        except OSError:
            return "an unknown process"

    def _write(self) -> None:
        self._written_s = clock.monotonic_s()
        known = {"activity": self._state.activity.value}
        known |= {key: one for key, one in self._state._asdict().items() if type(one) in (int, str)}
        with suppress(OSError):  # a full /run must not end a transfer; only `status` reports less
            _replace(self._progress, json.dumps(known))


def _replace(path: str, text: str) -> None:
    beside = f"{path}.new"
    with files.opened(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) as descriptor:
        os.write(descriptor, text.encode())
    os.replace(beside, path)


def _remove(path: str) -> None:
    with suppress(OSError):  # it is missing, or on a file system that became read-only
        os.unlink(path)
