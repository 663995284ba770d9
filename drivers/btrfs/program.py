"""What receivers of a stream have in common that feed it to a program by a pipe."""

from __future__ import annotations

import abc
import contextlib
import os
from typing import IO, TYPE_CHECKING

from mirrord.core.model import ReceiveRequest, Staging
from mirrord.drivers.btrfs import layout, staging
from mirrord.drivers.btrfs.alone import locked
from mirrord.drivers.btrfs.ioctl import guarded
from mirrord.drivers.btrfs.layout import Layout, Record
from mirrord.drivers.btrfs.store import SnapshotEntry
from mirrord.drivers.btrfs.stream import make_pipe
from mirrord.drivers.streams import Receiver
from mirrord.system import command, steps
from mirrord.system.processes import is_stopped

if TYPE_CHECKING:
    from subprocess import Popen  # noqa: TID251 - the type only

_ERROR_BYTES_MAX = 4096


class ProgramReceiver(Receiver):
    """Takes one stream into `staging/<transfer>/<name>/<name>`."""

    #: Of the transfer's checkpoint, if it has one.
    _own = -1

    def __init__(
        self, place: Layout, request: ReceiveRequest, base_here: SnapshotEntry | None, where: str
    ) -> None:
        super().__init__()
        self._place = place
        self._request = request
        self._base = base_here
        self._where = where
        self._child: Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._writing = self._receive_lock = -1
        self._complete = False
        #: Of the stream.
        self._received_bytes = 0
        self._folder = place.staging / layout.component(request.transfer_id, where)
        self._wrapper = self._folder / staging.wrapper_name(place, request.snapshot, where)
        try:
            self._receive_lock = locked(place.staging, where)
            staging.remove_staging(self._folder)
            self._begin()
        except BaseException as error:
            self._end_child(timeout_s=0)
            if isinstance(error, OSError):  # most likely no space: leave nothing half-made
                with contextlib.suppress(OSError):
                    staging.remove_staging(self._folder)
            raise

    @abc.abstractmethod
    def _begin(self) -> None:
        """Make the staging, and start the program."""

    def _make_staging(self) -> None:
        steps.reached("BTRFS:RECEIVE:STAGE")
        self._folder.mkdir(mode=0o700)
        self._wrapper.mkdir(mode=0o755)
        self._wrapper.chmod(0o755)  # users traverse it on the way to the view, whatever the umask
        request = self._request
        record = Record(request.transfer_id, request.base, request.snapshot)
        # Outside the folder that the program can write to: what it writes there is not trusted.
        layout.write_record("BTRFS:RECEIVE:RECORD", self._folder, record, durable=False)

    def _open_pipe(self) -> tuple[int, int]:
        """What the program reads, and a file in memory, without a name, for its errors: it prints
        only a line or two.
        """
        self._errors = os.fdopen(os.memfd_create("errors", os.MFD_CLOEXEC), "w+b")
        reading, self._writing = make_pipe()
        os.set_blocking(self._writing, False)
        return reading, self._errors.fileno()

    def __str__(self) -> str:
        return self._where

    def _ended(self) -> tuple[str, int]:
        """What a program printed that did not take all, and its status."""
        status = self._child.wait() if self._child else 0
        if self._errors is None:
            return "", status
        self._errors.seek(0)
        return self._errors.read(_ERROR_BYTES_MAX).decode(errors="replace"), status

    @guarded
    def finish(self) -> Staging:
        """See `Receiver.finish`."""
        if not self._complete:
            self._finish()
        request = self._request
        return Staging(
            request.transfer_id,
            request.base,
            request.snapshot,
            complete=True,
            received_bytes=self._received_bytes,
        )

    @abc.abstractmethod
    def _finish(self) -> None:
        """Wait for the program, and verify what it made."""

    def _wait_for_end(self) -> int:
        """The program's status after the end of the stream."""
        os.close(self._writing)
        self._writing = -1
        child = self._child
        assert child is not None
        self.waiting.until(lambda left_s: command.ended(child, timeout_s=left_s) is not None)
        return child.wait()

    def _end_child(self, *, timeout_s: float) -> None:
        """timeout_s: how long it may still take; then it is killed."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        child, self._child = self._child, None
        if child is not None:
            if timeout_s and not is_stopped(child.pid):
                command.ended(child, timeout_s=timeout_s)
            if child.poll() is None:
                child.kill()
            child.wait()
        for descriptor in (self._receive_lock, self._own):
            if descriptor >= 0:
                os.close(descriptor)
        self._receive_lock = self._own = -1
        if self._errors is not None:
            self._errors.close()
            self._errors = None
