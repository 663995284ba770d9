"""A peer that wants more than the folders and verbs that its key has."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError, Refused, Untrusted
from mirrord.core.model import ReceiveRequest
from mirrord.drivers import pins
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.wire.methods import METHODS
from tests.contract.test_relationship import FIRST
from tests.security.sentences import breaks
from tests.security.world import MIRROR, Backup, Host, Peer, deliver, listing, stream_of
from tests.support import btrfs
from tests.support.calls import CALLS


def test_every_method_is_tried() -> None:
    assert CALLS.keys() == METHODS.keys()


def untrusted(peer: Peer, handle: int) -> None:
    """No method does anything there."""
    for method, words in CALLS.items():
        with pytest.raises(Untrusted):
            peer.call(method, handle, *words)


@breaks("F1", "F2", "F3", "K1")
def test_no_path_leads_out(host: Host, root: Path) -> None:
    backup = root / "backup"
    (backup / "out").symlink_to(root / "private")
    (backup / "up").symlink_to("..")
    (backup / ".mirrord").mkdir()
    (backup / "store").symlink_to(backup / ".mirrord")
    before = listing(root)
    outside = [
        root, root / "private", root / "home", root / "backupx", "/", "/etc", "", "relative", ".",
        backup / "../private", f"{backup}/x/../../private", backup / "out", backup / "out/new",
        backup / "up/private", backup / ".mirrord", backup / ".mirrord/x/snapshots",
        backup / "store", backup / "store/x", f"{backup}/x\0y", f"{root}/backup\0",
        "/proc/self/cwd",
    ]  # fmt: skip
    for verb in ("receive", "send"):
        with host.peer("--allow", f"{verb}={backup}") as peer:
            for path in outside:
                for kind in ("btrfs", "block"):
                    with pytest.raises(Untrusted):
                        peer.open(str(path), kind)
    assert listing(root) == before


@breaks("F2")
def test_a_folder_that_becomes_a_link_is_out(host: Host, root: Path) -> None:
    inside = root / "backup/inside"
    inside.mkdir()
    with host.peer("--allow", f"receive={root / 'backup'}", "--allow", f"send={root}/backup") as p:
        handles = [p.open(inside / "copy"), p.open(inside / "copy", "block"), p.open(inside)]
        inside.rmdir()
        inside.symlink_to(root / "private")
        before = listing(root)
        for handle in handles:
            untrusted(p, handle)
    assert listing(root) == before


@breaks("F3", "F4")
def test_what_a_peer_sent_is_no_way_to_anywhere(host: Host, root: Path) -> None:
    """A folder of one snapshot is a link in the next: whoever uses it as a place gets out."""
    source = BtrfsDriver(str(root / "home"))
    (root / "home/way").mkdir()
    one = source.take_snapshot("s1")
    (root / "home/way").rmdir()
    (root / "home/way").symlink_to(root / "private")
    two = source.take_snapshot("s2")
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare(MIRROR)
        deliver(there, stream_of(source, one), one, "t1")
        there.commit("t1", show=True)
        view = root / "backup/home/current"
        for path in (view / "way", view / "way/new"):
            with pytest.raises(Untrusted):
                peer.open(path)
        there.promote()
        with pytest.raises(Untrusted):  # a live volume now: its next link is as near
            peer.open(view / "way/new")
        there.rollback(one.guid, mirror_id=MIRROR, keep_as="lost")
        deliver(there, stream_of(source, two, one), two, "t2", one)
        there.commit("t2", show=True)
        with pytest.raises(Untrusted):
            peer.open(view / "way/new")
        # Its own view is not out of bounds: it is the volume.
        assert peer.volume(view).facts().shown == two.guid
    assert sorted(os.listdir(root / "private")) == ["secret"]


@breaks("F3", "F4")
@pytest.mark.parametrize("how", ["view", "live", "copy", "forgotten"])
def test_what_a_peer_sent_is_no_volume(host: Host, root: Path, how: str) -> None:
    """A tree can hold what looks like a block volume, whose records are links to other folders."""
    source, backup = BtrfsDriver(str(root / "home")), root / "backup"
    for folder in (root / "home/x", root / "home/below/x"):
        BlockDriver(str(folder)).prepare(MIRROR)
        (folder / "relationships").symlink_to(root / "private")
    for path in (root / "home/x").iterdir():
        path.rename(root / "home" / path.name)
    one = source.take_snapshot("s1")
    both = ["--allow", f"send={backup}"] if how == "live" else []
    with host.peer("--allow", f"receive={backup}", *both) as peer:
        there = peer.volume(backup / "home")
        there.prepare(MIRROR)
        deliver(there, stream_of(source, one), one, "t1")
        there.commit("t1", show=True)
        place = backup / "home/current"
        if how in ("live", "forgotten"):
            there.promote()
        if how == "copy":
            place = backup / "copy"
            there.begin_test(str(place))
        if how == "forgotten":
            there.delete_snapshot(one.guid)
            there.forget()
            assert not (backup / "home/.mirrord").exists()
        for path in (place, place / "below/x"):
            with pytest.raises(Untrusted):
                peer.open(path, "block")
        with pytest.raises(Untrusted):
            peer.open(place / "file", "image")
    assert os.listdir(root / "private") == ["secret"]


@breaks("F5")
@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", "..", ".", "", "x\0y", "x\ny", "\x1b[2Jx", "n" * 300]
)
def test_no_name_is_a_path(host: Host, root: Path, name: str) -> None:
    source = BtrfsDriver(str(root / "home"))
    snapshot = source.take_snapshot("s1")
    with host.peer() as peer:  # with all rights that there are
        there, home = peer.volume(root / "backup/home"), peer.volume(root / "home")
        there.prepare(MIRROR)
        before = listing(root)
        named = snapshot._replace(name=name)
        for attempt in (
            lambda: there.receive(ReceiveRequest(name, MIRROR, None, snapshot)).close(),
            lambda: there.receive(ReceiveRequest("t1", name, None, snapshot)).close(),
            lambda: there.receive(ReceiveRequest("t1", MIRROR, None, named)).close(),
            lambda: there.commit(name, show=True),
            lambda: there.discard(name),
            lambda: there.prepare(name),
            lambda: home.take_snapshot(name),
            lambda: home.rollback(snapshot.guid, mirror_id=MIRROR, keep_as=name),
            lambda: home.rollback(snapshot.guid, mirror_id=name, keep_as="lost"),
        ):
            with pytest.raises(Refused):
                attempt()
        # A pattern is compared with names, never opened.
        assert home.own_snapshots((name, f"../../{name}/*")) == []
    assert listing(root) == before


@breaks("F6")
def test_a_refusal_does_not_tell_what_is_outside(host: Host, root: Path) -> None:
    (root / "private/link").symlink_to("secret")
    said = []
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        for name in ("link", "secret", "nothing", "nothing/at/all"):
            with pytest.raises(Untrusted) as caught:
                peer.open(root / "private" / name)
            said.append(str(caught.value.as_dict()).replace(f"private/{name}", "THAT"))
    assert len(set(said)) == 1


@breaks("F7")
def test_another_mirrors_destination(host: Host, root: Path) -> None:
    source = BtrfsDriver(str(root / "home"))
    snapshot = source.take_snapshot("s1")
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there = peer.volume(root / "backup/home")
        there.prepare("another")
        request = ReceiveRequest("t1", MIRROR, None, snapshot)
        with pytest.raises(Refused):
            there.prepare(MIRROR)
        with pytest.raises(Refused):
            there.receive(request).close()
        # That stops mistakes, not a peer that may receive there: it can read the other's id.
        assert there.facts().mirror_id == "another"
        there.receive(request._replace(mirror_id="another")).close()


@breaks("V1")
def test_who_may_send_changes_nothing_and_deletes_no_backup(host: Host, root: Path) -> None:
    backup = root / "backup/home"
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        Backup(root, peer.volume(backup))
    writing: tuple[str, ...] = ("prepare", "receive", "commit", "discard", "promote", "rollback")
    writing += ("forget", "writers", "freeze", "thaw", "mark", "reinstate")
    with host.peer("--allow", f"send={root}") as peer:
        there = peer.volume(backup)
        for method in writing:
            with pytest.raises(Untrusted):
                peer.call(method, peer.open(backup), *CALLS[method])
        for snapshot in there.snapshots():
            with pytest.raises(Untrusted):
                there.delete_snapshot(snapshot.guid)
        BtrfsDriver(str(backup)).promote()  # by its owner: now it is a live volume
        taken = there.take_snapshot("mine")
        for snapshot in there.snapshots()[:-1]:
            with pytest.raises(Untrusted):
                there.delete_snapshot(snapshot.guid)
        there.delete_snapshot(taken.guid)
        assert [s.name for s in there.snapshots()] == ["s1", "s2"]


@breaks("V2", "V3")
def test_who_may_receive_reads_no_content_but_names(host: Host, root: Path) -> None:
    home = root / "backup/home"  # a live volume in the peer's folder
    btrfs.make_subvolume(home)
    (home / "a name").write_text("nobody's business")
    own = root / "backup/own"
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", "-r", home, own], check=True)
    one = BtrfsDriver(str(home)).take_snapshot("s1")
    (home / "another name").write_text("nobody's business")
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        there, handle = peer.volume(home), peer.open(home)
        for method in ("send", "delta", "changes", "own_snapshots", "take_snapshot"):
            with pytest.raises(Untrusted):
                peer.call(method, handle, *CALLS[method])
        changes = there.divergence(one.guid).changes
        assert changes and [change.path for change in changes] == ["another name"]


@breaks("V4")
def test_who_may_send_also_reads_the_owners_snapshots_elsewhere(host: Host, root: Path) -> None:
    data = root / "data"
    data.mkdir()
    btrfs.make_subvolume(data / "v")
    (data / "v/old").write_text("since deleted")
    kept = root / "private/kept"
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", "-r", data / "v", kept], check=True)
    with host.peer("--allow", f"send={data}") as peer:
        there = peer.volume(data / "v")
        [found] = there.own_snapshots(("*",))
        assert found.path == str(kept)
        with there.send(None, found.guid) as stream:
            assert b"since deleted" in b"".join(iter(stream.read, b""))
        with pytest.raises(MirrordError):
            peer.volume(kept).facts()


def test_a_folder_that_is_allowed_may_itself_be_a_snapshot(host: Host, root: Path) -> None:
    """It was restored from one. A snapshot below it may be what a peer has sent."""
    shelf = root / "shelf"
    for place in (shelf, shelf / "below"):
        subprocess.run(["btrfs", "subvolume", "snapshot", root / "home", place], check=True)
    with host.peer("--allow", f"receive={shelf}") as peer:
        for kind in ("btrfs", "block"):
            peer.open(shelf / "x", kind)
            with pytest.raises(Untrusted, match="or a copy"):
                peer.open(shelf / "below/x", kind)


@breaks("V4")
def test_a_device_in_a_snapshot_is_not_opened(host: Host, root: Path) -> None:
    os.mknod(root / "home/node", 0o600 | stat.S_IFCHR, os.makedev(240, 0))  # there is no driver
    one = BtrfsDriver(str(root / "home")).take_snapshot("s1")
    with (
        host.peer("--allow", f"send={root}") as peer,
        pytest.raises(Refused, match="only files"),
    ):
        peer.call("verify_read", peer.open(root / "home"), one.guid, b"node", 0, 9)


@breaks("V5")
def test_a_peer_pins_for_its_own_mirrors_only(host: Host, root: Path) -> None:
    """What is a mirror's destination is pinned for that mirror by who may receive, and for those
    that go on from there by who may send.
    """
    folder, mine, theirs = root / "backup", "0a1b2c3d", "4e5f6a7b"
    with host.peer("--allow", f"receive={folder}") as peer:
        there = peer.volume(folder / "home")
        backup = Backup(root, there)
        there.pin(MIRROR, [backup.one.guid])
        for name in (mine, theirs):
            with pytest.raises(Untrusted, match="pin snapshots"):
                there.pin(name, [backup.one.guid])
        here = BtrfsDriver(str(folder / "home"))
        here.pin(theirs, [backup.one.guid])
        for guids in ([], [backup.two.guid]):
            with pytest.raises(Untrusted):
                there.pin(theirs, guids)
        there.pin(MIRROR, [])
        with pytest.raises(Refused, match=theirs):
            there.delete_snapshot(backup.one.guid)
        here.promote()  # a mirror that is broken off gives up what it has pinned
        there.pin(MIRROR, [backup.two.guid])
        there.pin(MIRROR, [])
        here.rollback(backup.two.guid, mirror_id=MIRROR, keep_as="kept")
    with host.peer("--allow", f"send={folder}") as peer:
        there = peer.volume(folder / "home")
        there.pin(mine, [backup.two.guid])
        with pytest.raises(Untrusted):
            there.pin(MIRROR, [])
        for name in ("../mine", "a/b", "", "x" * 300):
            with pytest.raises(Refused):
                there.pin(name, [backup.two.guid])
        with pytest.raises(Refused, match="16"):
            there.pin(mine, [f"{number}" for number in range(17)])
        assert there.pins() == {backup.one.guid: (theirs,), backup.two.guid: (mine,)}
        there.pin(mine, [])
    with host.peer("--allow", f"receive={folder}", "--append-only") as peer:
        peer.volume(folder / "home").pin(MIRROR, [backup.two.guid])
    assert here.pins() == {backup.one.guid: (theirs,), backup.two.guid: (MIRROR,)}


@breaks("V6")
def test_a_peer_records_epochs_of_its_own_mirrors_only(host: Host, root: Path) -> None:
    folder, mine, theirs = root / "backup", "0a1b2c3d", "4e5f6a7b"
    first = FIRST._replace(mirror_id=MIRROR)
    high = first._replace(epoch=1 << 40)
    with host.peer("--allow", f"receive={folder}", "--append-only") as peer:
        there = peer.volume(folder / "home")
        Backup(root, there)
        for name in (mine, theirs):
            with pytest.raises(Untrusted, match="record an epoch"):
                there.relate(high._replace(mirror_id=name), 0)
        there.relate(first, 0)
        with pytest.raises(Untrusted, match="append"):
            there.relate(high, 1)
        with pytest.raises(Untrusted, match="remove a relationship record"):
            there.unrelate(MIRROR)
    here = BtrfsDriver(str(folder / "home"))
    here.relate(first._replace(mirror_id=theirs), 0)
    with host.peer("--allow", f"receive={folder}") as peer:
        there = peer.volume(folder / "home")
        with pytest.raises(Untrusted):
            there.unrelate(theirs)
        second = first._replace(epoch=2)
        there.relate(second, 1)
    with host.peer("--allow", f"send={folder}") as peer:
        there = peer.volume(folder / "home")
        with pytest.raises(Untrusted, match="record an epoch"):
            there.relate(high, 2)
        with pytest.raises(Untrusted):
            there.unrelate(MIRROR)
        there.relate(first._replace(mirror_id=mine), 0)
        there.unrelate(mine)
        for name in ("../mine", "a/b", "", "x" * 300):
            with pytest.raises(Refused):
                there.relate(first._replace(mirror_id=name), 0)
    assert here.relationships() == {MIRROR: second, theirs: first._replace(mirror_id=theirs)}


@breaks("V5")
def test_the_number_of_mirrors_that_pin_snapshots_is_limited(host: Host, root: Path) -> None:
    with host.peer("--allow", f"send={root}") as peer:
        there = peer.volume(root / "home")
        guid = there.take_snapshot("s1").guid
        for number in range(pins.MIRRORS_MAX):
            there.pin(f"{number:08x}", [guid])
        with pytest.raises(Refused, match="too many mirrors"):
            there.pin("ffffffff", [guid])
        there.pin("00000000", [])
        there.pin("ffffffff", [guid])
