"""The receiving side of the driver over volumes in memory."""

from __future__ import annotations

from mirrord.core.model import Staging
from mirrord.drivers.refusals import no_space, stream_damaged
from mirrord.drivers.streams import Receiver
from mirrord.system import steps
from tests.sim.stream import Parser
from tests.sim.volume import Disk, Entry, Staged, Volume, digest_of


class MemoryReceiver(Receiver):
    """Each frame that is whole is durable at once; so `close` has nothing left to keep."""

    def __init__(self, disk: Disk, location: str, volume: Volume, staged: Staged) -> None:
        self._disk = disk
        self._location = location
        self._where = f"memory:{location}"
        self._volume = volume
        self._staged = staged
        self._parser = Parser(self._where, disk.geometry)

    def write(self, chunk: bytes | memoryview) -> None:
        """Stage the changes of the frames that are whole now."""
        if self._location in self._disk.full:
            raise no_space(self._where, "the volume is full")
        for changes in self._parser.feed(chunk):
            self._check_head()
            if changes:
                steps.reached("MEMORY:RECEIVE:WRITE")
                self._staged.changes.update(changes)
                self._staged.following = changes[-1][0] + 1
                self._staged.received_bytes += len(changes) * self._disk.geometry.block_bytes

    def finish(self) -> Staging:
        """Put the content together and compare its digest with the one that was announced."""
        self._parser.check_whole()
        staged, head = self._staged, self._parser.head
        assert head is not None
        base = staged.request.base
        blocks = self._volume.entries[base].blocks.copy() if base is not None else {}
        for block, version in staged.changes.items():
            if version:
                blocks[block] = version
            else:
                blocks.pop(block, None)
        if digest_of(blocks) != head.digest:
            raise stream_damaged(self._where, "the content is not the one that was announced")
        steps.reached("MEMORY:FINISH:RECORD")
        staged.entry = Entry(staged.request.snapshot, blocks, head.digest)
        return staged.staging()

    def close(self) -> None:
        """Nothing is held."""

    def _check_head(self) -> None:
        head, request = self._parser.head, self._staged.request
        if head is not None and (head.base, head.guid) != (request.base, request.snapshot.guid):
            raise stream_damaged(self._where, "it is of another snapshot")
