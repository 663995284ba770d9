"""What the disk holds at the moments of a commit: the destination's image is copied while it is
mounted, as a power cut would leave it, and the copy is mounted and read.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from tests.btrfs.pair import MIRROR, Pair, request, run, update
from tests.support import btrfs

#: Labels that come after an effect which must have been durable by then.
MOMENTS = (
    "BTRFS:FINISH:RECORD:WRITE",
    "BTRFS:COMMIT:MOVE",
    "BTRFS:COMMIT:SHOW:LINK",
    "BTRFS:COMMIT:CLEAN",
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_power_cut_loses_nothing_that_was_done(pair: Pair, tmp_path: Path, moment: str) -> None:
    (pair.home / "generation").write_text("0")
    with btrfs.filesystem(size_mib=512, options="commit=300") as mount:
        place = mount / "backup"
        BtrfsDriver(str(place)).prepare(MIRROR)
        base = update(pair.source, BtrfsDriver(str(place)), None, "s0")
        for number in (1, 2):  # the second moves and shows in folders that are in the log already
            copy = tmp_path / f"cut{number}"

            def cut(label: str, copy: Path = copy) -> None:
                if label == moment:
                    image = mount.parent / "image"
                    subprocess.run(["cp", "--sparse=always", image, copy], check=True)

            (pair.home / "generation").write_text(str(number))
            steps.observe(cut)
            try:
                base = update(pair.source, BtrfsDriver(str(place)), base, f"s{number}")
            finally:
                steps.observe(None)
    for number in (1, 2):  # a copy has the identity of the original: only one may be mounted
        _look(pair, tmp_path / f"cut{number}", moment, number)


def test_what_only_the_log_holds_counts_as_a_change(tmp_path: Path) -> None:
    """What was written with O_SYNC since the last commit comes back at the mount after a power
    cut; the subvolume's ctransid does not tell it.
    """
    with btrfs.filesystem(size_mib=256, options="noatime,commit=300") as mount:
        home = btrfs.make_subvolume(mount / "home")
        (home / "old").write_text("old")
        run("sync", "-f", mount)
        live = BtrfsDriver(str(home))
        base = live.take_snapshot("s0")
        mark = live.mark()
        run("btrfs", "filesystem", "sync", mount)
        assert not live.changed_since(base.guid) and live.is_marked(mark)
        descriptor = os.open(home / "new", os.O_WRONLY | os.O_CREAT | os.O_SYNC)
        os.write(descriptor, b"acknowledged")
        os.close(descriptor)
        copy = tmp_path / "cut"
        run("cp", "--sparse=always", mount.parent / "image", copy)
    again = tmp_path / "mount"
    again.mkdir()
    run("mount", "-o", "loop,noatime", copy, again)
    try:
        home = again / "home"
        live = BtrfsDriver(str(home))
        assert (home / "new").read_bytes() == b"acknowledged"
        assert live.changed_since(base.guid)
        assert live.divergence(base.guid).total_changes > 0
        newer = live.take_snapshot("s1")
        assert not live.changed_since(newer.guid)  # the snapshot has it, too
        (home / "new").unlink()
        assert live.changed_since(newer.guid)
    finally:
        btrfs.unmount(again)


def _look(pair: Pair, image: Path, moment: str, number: int) -> None:
    mount = image.with_name("mount")
    mount.mkdir()
    run("mount", "-o", "loop", image, mount)
    try:
        driver = BtrfsDriver(str(mount / "backup"))
        shown = "new" if moment == "BTRFS:COMMIT:CLEAN" else "old"
        expected = str(number if shown == "new" else number - 1)
        assert (mount / "backup/current/generation").read_text() == expected
        held = {staging.transfer_id: staging for staging in driver.stagings()}
        kept = [one.name for one in driver.snapshots() if one.intact]
        moved = moment in ("BTRFS:COMMIT:SHOW:LINK", "BTRFS:COMMIT:CLEAN")
        assert (f"s{number}" in kept) is moved
        left = held[f"t-s{number}"]
        assert left.complete is (moment != "BTRFS:FINISH:RECORD:WRITE")
        if left.complete:  # recovery ends it
            driver.commit(left.transfer_id, show=True)
        else:
            driver.discard(left.transfer_id)
            _again(pair, driver, number)
        assert (mount / "backup/current/generation").read_text() == str(number)
        assert not driver.stagings()
    finally:
        btrfs.unmount(mount)
        mount.rmdir()
    run("btrfs", "check", image)


def _again(pair: Pair, driver: BtrfsDriver, number: int) -> None:
    names = {one.name: one for one in pair.source.snapshots()}
    base, newer = names[f"s{number - 1}"], names[f"s{number}"]
    with (
        driver.receive(request("again", base, newer)) as receiver,
        pair.source.send(base.guid, newer.guid) as stream,
    ):
        while chunk := stream.read():
            receiver.write(chunk)
        receiver.finish()
    driver.commit("again", show=True)
