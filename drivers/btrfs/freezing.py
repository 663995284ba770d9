"""Freezing a live subvolume: it is made read-only just before a switch.

The kernel then refuses to open files in it for writing. Descriptors that are already open can
still be written to; `Driver.writers` lists the processes that have them. `frozen.json` in the store
records that mirrord made the volume read-only; the process doing so holds a lock on that file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

from mirrord.core.errors import Busy, Refused
from mirrord.drivers.btrfs import layout, subvolume
from mirrord.drivers.btrfs.ioctl import opened
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import files
from mirrord.system.deadman import Deadman

#: Clears the flag through the descriptor: the path may belong to another volume by then.
_THAW = """\
import fcntl, struct, sys
flags = bytearray(8)
fcntl.ioctl(int(sys.argv[1]), 0x80089419, flags)
[now] = struct.unpack("=Q", flags)
fcntl.ioctl(int(sys.argv[1]), 0x4008941A, struct.pack("=Q", now & ~2))
"""


class Freeze:
    """A freeze held by this process. It ends with the process, even if that is killed."""

    def __init__(self, place: Layout, where: str) -> None:
        live = subvolume.info(place.view)
        if live.read_only and layout.read_frozen(place) != live.uuid:
            raise Refused(  # a thaw would make it writable, against the administrator's intent
                "the volume is read-only",
                where=where,
                why="mirrord did not make it read-only",
                hint=f"Make it writable first: btrfs property set -ts {place.view} ro false",
            )
        layout.make_store("BTRFS:FREEZE", place, public=False)
        with contextlib.ExitStack() as stack:
            layout.write_frozen("BTRFS:FREEZE:RECORD", place, live.uuid)
            held = os.open(place.frozen_file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            _claim(held, where)
            with opened(place.view, os.O_DIRECTORY) as volume:
                self._deadman = Deadman(
                    [sys.executable, "-I", "-S", "-c", _THAW, str(volume)], keep=[volume]
                )
            stack.callback(self._deadman.release)
            subvolume.set_read_only("BTRFS:FREEZE:SET", place.view, True)
            files.sync_filesystem("BTRFS:FREEZE:SYNC", place.view)
            self._held = stack.pop_all()

    def release(self) -> None:
        """Release the freeze; the volume is left as it is."""
        self._held.close()


def thaw(place: Layout, where: str) -> None:
    """Make a volume that mirrord froze writable again; `Busy` while another process holds it."""
    if not is_frozen(place):
        return
    with opened(place.frozen_file) as held:
        _claim(held, where)
        subvolume.set_read_only("BTRFS:THAW:SET", place.view, False)
        files.remove_file("BTRFS:THAW:RECORD", place.frozen_file)


def is_frozen(place: Layout) -> bool:
    """Whether the live volume is read-only because mirrord froze it."""
    if not place.live or not place.frozen_file.exists():
        return False
    live = subvolume.info(place.view)
    return live.read_only and layout.read_frozen(place) == live.uuid


def _claim(held: int, where: str) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(
            "the volume is frozen by another mirrord process",
            where=where,
            why="it is about to switch the volume",
            hint="Wait until that process has ended, then run the same command again.",
        ) from None
