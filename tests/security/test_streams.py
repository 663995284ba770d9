"""Streams that were made to do harm, sent by a peer that may receive."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from mirrord.drivers.btrfs.driver import BtrfsDriver
from tests.security import streams
from tests.security.sentences import breaks
from tests.security.world import MIRROR, Host, deliver, listing, stream_of

#: From a subvolume in backup/home/.mirrord/current/staging/t1/s1/s1 to the folder above `backup`.
UP = "../" * 8


def _evil(root: Path, name: str) -> bytes:
    private = str(root / "private")
    return {
        "link": streams.symlink("way", private)
        + streams.make_file("way/new")
        + streams.write("way/new", b"x"),
        "link to write": streams.symlink("way", f"{private}/secret")
        + streams.write("way", b"changed"),
        "link to chmod": streams.symlink("way", f"{private}/secret") + streams.chmod("way", 0o4777),
        "up": streams.make_file(f"{UP}private/new"),
        "up to write": streams.write(f"{UP}private/secret", b"changed"),
        "up to chmod": streams.chmod(f"{UP}private/secret", 0o777),
        "link inside": streams.symlink("way", "file") + streams.write("way", b"changed"),
    }[name]


@breaks("F8")
@pytest.mark.parametrize(
    "name",
    ["link", "link to write", "link to chmod", "up", "up to write", "up to chmod", "link inside"],
)
def test_a_stream_cannot_leave_its_folder(host: Host, root: Path, name: str) -> None:
    source = BtrfsDriver(str(root / "home"), stream_version=1)
    snapshot = source.take_snapshot("s1")
    data = streams.with_commands(stream_of(source, snapshot), _evil(root, name))
    private = listing(root / "private")
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare(MIRROR)
        with pytest.raises(MirrordError):
            deliver(there, data, snapshot, "t1")
        assert there.snapshots() == [] and there.facts().shown is None
    assert listing(root / "private") == private


@breaks("F8", "N2")
def test_a_stream_cannot_write_to_a_device(host: Host, root: Path) -> None:
    source = BtrfsDriver(str(root / "home"), stream_version=1)
    snapshot = source.take_snapshot("s1")
    true, null = stream_of(source, snapshot), os.makedev(1, 3)
    made = streams.make_node("null", 0o020666, null)
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare(MIRROR)
        for name in ("null", "/dev/null"):
            link = b"" if name == "null" else streams.symlink("way", name)
            data = streams.with_commands(
                true, made + link + streams.write("way" if link else name, b"x")
            )
            with pytest.raises(MirrordError):
                deliver(there, data, snapshot, "t1")
        # The node itself is a file as any other: it is there, as the document says.
        setuid = streams.make_file("tool") + streams.chmod("tool", 0o4755)
        deliver(there, streams.with_commands(true, made + setuid), snapshot, "t2")
        there.commit("t2", show=True)
    view = root / "backup/home/current"
    assert (view / "null").stat().st_rdev == null
    assert stat.S_IMODE((view / "tool").stat().st_mode) == 0o4755


@breaks("I2", "I3")
def test_a_stream_of_something_else_is_refused(host: Host, root: Path) -> None:
    source = BtrfsDriver(str(root / "home"), stream_version=1)
    one = source.take_snapshot("s1")
    (root / "home/file").write_text("second")
    two = source.take_snapshot("s2")
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare(MIRROR)
        for data in (stream_of(source, two), stream_of(source, one)[:-10], b"no stream at all" * 9):
            with pytest.raises(MirrordError):
                deliver(there, data, one, "t1")
            with pytest.raises(MirrordError):
                there.commit("t1", show=True)
        # But what is in it is the sender's word: no checksum proves that the source had it.
        lie = streams.with_commands(stream_of(source, one), streams.write("file", b"a lie"))
        deliver(there, lie, one, "t2")
        there.commit("t2", show=True)
    assert (root / "backup/home/current/file").read_bytes() == b"a lie"
