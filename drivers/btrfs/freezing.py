"""Freezing a live subvolume: it is made read-only just before a switch.

The kernel then refuses to open files in it for writing. Descriptors that are already open can
still be written to; `Driver.writers` lists the processes that have them. `frozen.json` in the store
records that mirrord made the volume read-only; the process doing so holds a lock on that file.

Nested subvolumes that belong to the volume are frozen with it, the outer ones first, and thawed
before it. So they are frozen by mirrord only while the volume is.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys

from mirrord.core.errors import Busy, MirrordError, Refused
from mirrord.drivers.btrfs import layout, subvolume
from mirrord.drivers.btrfs.layout import Layout
from mirrord.system import files, locks
from mirrord.system.deadman import Deadman

#: How long the freeze of another process is awaited: when that was killed, it ends by itself.
_ENDING_S = 5.0
#: Clears the flag through descriptors: the paths may belong to other volumes by then. It empties
#: the record: whoever makes the volume read-only after that is not mirrord.
_THAW = """\
import fcntl, os, struct, sys
record, *volumes = map(int, sys.argv[1:])
for volume in volumes:
    try:
        flags = bytearray(8)
        fcntl.ioctl(volume, 0x80089419, flags)
        [now] = struct.unpack("=Q", flags)
        fcntl.ioctl(volume, 0x4008941A, struct.pack("=Q", now & ~2))
    except OSError:
        pass  # it was deleted
try:
    os.truncate(f"/proc/self/fd/{record}", 0)
except OSError:
    pass  # the file system is read-only
"""


class Freeze:
    """A freeze held by this process. It ends with the process, even if that is killed."""

    def __init__(self, place: Layout, where: str) -> None:
        ended(place, where)
        live = subvolume.info(place.view)
        if live.read_only and not layout.frozen(place):
            raise Refused(  # a thaw would make it writable, against the administrator's intent
                "the volume is read-only",
                where=where,
                why="mirrord did not make it read-only",
                hint="Make it writable first: btrfs property set -ts "
                f"{shlex.quote(str(place.view))} ro false",
            )
        layout.make_store("BTRFS:FREEZE", place, public=False)
        inner = _inner(place)
        paths, uuids = [place.view], [one.uuid for one in inner.values()]
        paths += [place.view / path for path in inner]
        with contextlib.ExitStack() as stack:
            layout.write_frozen("BTRFS:FREEZE:RECORD", place, live.uuid, uuids)
            held = os.open(place.frozen_file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            _claim(held, where)
            with contextlib.ExitStack() as opening:
                volumes = [
                    opening.enter_context(files.opened(path, os.O_DIRECTORY))
                    for path in reversed(paths)
                ]
                words = [sys.executable, "-I", "-S", "-c", _THAW, *map(str, (held, *volumes))]
                # It shares the lock: the freeze lasts until it has thawed.
                self._deadman = Deadman(words, keep=[*volumes, held])
            stack.callback(self._deadman.release)
            try:
                for path in paths:
                    subvolume.set_read_only("BTRFS:FREEZE:SET", path, True)
                now = _inner(place)
                if now.keys() != inner.keys():
                    raise _changing(where)
            except (OSError, MirrordError):
                _thaw(place)
                with contextlib.suppress(OSError):  # the error to report is the first one
                    files.remove_file("BTRFS:FREEZE:FAILED", place.frozen_file)
                raise
            files.sync_filesystem("BTRFS:FREEZE:SYNC", place.view)
            self._held = stack.pop_all()

    def release(self) -> None:
        """Release the freeze; the volume is left as it is."""
        self._held.close()


def ended(place: Layout, where: str, mine: Freeze | None = None) -> None:
    """Wait until no other freeze than `mine` is in progress: what thaws for a process that was just
    killed must not make writable what is frozen, or set aside, from now on. `Busy`.
    """
    if mine is None:
        with contextlib.suppress(FileNotFoundError), files.opened(place.frozen_file) as held:
            _claim(held, where)


def thaw(place: Layout, where: str) -> None:
    """Make a volume that mirrord froze writable again; `Busy` while another process holds it. The
    record of a freeze that ended by itself is removed: its owner may make the volume read-only.
    """
    if not place.live or not place.frozen_file.exists():
        return
    live, recorded = subvolume.info(place.view), layout.read_frozen(place)
    if recorded and recorded[0] != live.uuid:
        return  # of what was set aside
    with files.opened(place.frozen_file) as held:
        _claim(held, where)
        if recorded and live.read_only:
            _thaw(place)
        files.remove_file("BTRFS:THAW:RECORD", place.frozen_file)


def _inner(place: Layout) -> dict[str, subvolume.Info]:
    """The nested subvolumes that belong to the volume, outer ones first."""
    if not place.nested:
        return {}
    from mirrord.drivers.btrfs import nested  # (slow to load, and rarely needed)

    return nested.of(place).members


def _thaw(place: Layout) -> None:
    inner = _inner(place)
    frozen = [path for path, one in inner.items() if one.read_only]
    for path in [*reversed(frozen), ""]:
        subvolume.set_read_only("BTRFS:THAW:SET", place.view / path, False)


def _changing(where: str) -> Busy:
    return Busy(
        "the nested subvolumes change while they are frozen",
        where=where,
        why="one was created, renamed or removed",
        hint="Run the same command again.",
    )


def _claim(held: int, where: str) -> None:
    if not locks.lock_within(held, _ENDING_S):
        raise Busy(
            "the volume is frozen by another mirrord process",
            where=where,
            why="it is about to switch the volume",
            hint="Wait until that process has ended, then run the same command again.",
        )
