"""Deltas, ranges and complaints on real OpenZFS, in the virtual machine."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import CheckpointUseless
from mirrord.core.model import Endpoint
from mirrord.drivers.zfs.commands import failures
from mirrord.drivers.zfs.stream.records import ZfsScanner
from mirrord.link.driver import RemoteDriver
from tests.contract.flows import MIRROR, stage
from tests.zfs.streams import RECORD
from tests.zfsvm.agents import guest_agents
from tests.zfsvm.guest import Guest

KIB, MIB = 1 << 10, 1 << 20
#: Of the features in a BEGIN record: encrypted blocks as they are on disk.
_RAW = 1 << 24


@pytest.fixture
def name(zfs_guest: Guest) -> Iterator[str]:
    with zfs_guest.datasets() as made:
        yield made


def shell(guest: Guest, words: str) -> str:
    return guest.run("sh", "-ec", words)


def random_to(guest: Guest, path: str, size: int, offset: int = 0) -> None:
    words = f"head -c {size} /dev/urandom | dd of={path} bs=64K iflag=fullblock conv=notrunc,fsync"
    shell(guest, f"{words} oflag=seek_bytes seek={offset} status=none")


def stream(guest: Guest, words: str) -> bytes:
    return base64.b64decode(shell(guest, f"zfs send {words} | base64 -w0"))


def scanned(data: bytes, piece: int = 5000) -> ZfsScanner:
    scanner, passed = ZfsScanner(collect=True), b""
    for start in range(0, len(data), piece):
        passed += b"".join(bytes(part) for part in scanner.feed(data[start : start + piece]))
    assert scanner.ended and passed + scanner.end_record == data
    assert len(scanner.end_record) == RECORD
    return scanner


def guid(guest: Guest, snapshot: str) -> int:
    return int(guest.run("zfs", "get", "-Hp", "-o", "value", "guid", snapshot))


def test_real_streams_of_every_kind_are_understood(zfs_guest: Guest, name: str) -> None:
    home = f"here/{name}/home"
    shell(
        zfs_guest,
        f"zfs create -o recordsize=1M -o compression=lz4 -o dnodesize=auto {home}; cd /{home};"
        "seq 1 3000 > text; echo tiny > tiny; head -c 200000 /dev/urandom > random;"
        "head -c 100000 /dev/zero | tr '\\0' x > packed; truncate -s 3M sparse;"
        f"zfs snapshot {home}@one; rm text; echo more >> tiny; zfs snapshot {home}@two",
    )
    for words in ("", "-L -c -e", "-p -L", "-w"):
        if words == "-p -L":
            with pytest.raises(ValueError, match="package"):
                scanned(stream(zfs_guest, f"{words} {home}@one"))
            continue
        found = scanned(stream(zfs_guest, f"{words} {home}@one"))
        assert found.begin is not None and found.begin.toname == f"{home}@one"
        assert (found.begin.toguid, found.begin.fromguid) == (guid(zfs_guest, f"{home}@one"), 0)
        assert not found.begin.volume and not found.begin.features & _RAW
    shell(
        zfs_guest,
        "head -c 32 /dev/urandom > /tmp/raw.key; zfs create -o encryption=on -o keyformat=raw "
        "-o keylocation=file:///tmp/raw.key "
        f"{home}/secret; seq 1 3000 > /{home}/secret/text; zfs snapshot {home}/secret@one",
    )
    raw = scanned(stream(zfs_guest, f"-w {home}/secret@one"))
    assert raw.begin is not None and raw.begin.features & _RAW
    step = scanned(stream(zfs_guest, f"-L -c -e -i @one {home}@two"), piece=1)
    assert step.begin is not None and step.begin.fromguid == guid(zfs_guest, f"{home}@one")


def test_a_stream_is_moved_on_as_it_is(zfs_guest: Guest, name: str) -> None:
    home = f"here/{name}/home"
    zfs_guest.run("zfs", "create", home)
    random_to(zfs_guest, f"/{home}/file", 3 * MIB)
    zfs_guest.run("zfs", "snapshot", f"{home}@1")
    number = str(guid(zfs_guest, f"{home}@1"))
    whole = shell(zfs_guest, f"zfs send -L -c -e {home}@1 | sha256sum").split()[0]
    digest, unseen = zfs_guest.user("sent", f"{home}@1", number)
    assert digest == whole and unseen > 2 * MIB
    with pytest.raises(Exception, match="another snapshot now has the name"):
        zfs_guest.user("sent", f"{home}@1", "1")


def test_the_ranges_of_a_volume_are_exact(zfs_guest: Guest, name: str) -> None:
    volume = f"here/{name}/volume"
    device = f"/dev/zvol/{volume}"
    zfs_guest.run("zfs", "create", "-V", "8M", "-b", "16K", volume)
    shell(zfs_guest, f"for n in $(seq 100); do [ -e {device} ] && break; sleep 0.1; done")
    random_to(zfs_guest, device, 1 * MIB)
    zfs_guest.run("zfs", "snapshot", f"{volume}@one")
    random_to(zfs_guest, device, 3 * 16 * KIB, 5 * 16 * KIB)
    random_to(zfs_guest, device, 512, 300 * 16 * KIB)
    shell(zfs_guest, f"blkdiscard -o {20 * 16 * KIB} -l {4 * 16 * KIB} {device}; sync")
    zfs_guest.run("zfs", "snapshot", f"{volume}@two")
    found = scanned(stream(zfs_guest, f"-L -c -e -i @one {volume}@two"))
    [content] = [one for one in found.objects() if one.number == 1]
    assert _blocks(content.added) == {5, 6, 7, 300}
    gone = _blocks(content.freed)
    assert gone >= set(range(20, 24))
    changed = set(range(5, 8)) | {300} | set(range(20, 24))
    assert gone.isdisjoint(set(range(64)) - changed)


def _blocks(runs: list[tuple[int, int]]) -> set[int]:
    """The blocks of 16 KiB in these runs of a volume of 8 MiB."""
    size = 16 * KIB
    return {n for start, end in runs for n in range(start // size, min(-(-end // size), 512))}


def test_a_delta_means_what_it_means_on_btrfs(zfs_guest: Guest, name: str) -> None:
    """Overwritten: added and deleted; new: added; removed: deleted; the rest: unchanged."""
    home = f"here/{name}/home"
    zfs_guest.run("zfs", "create", "-o", "recordsize=16K", "-o", "compression=off", home)
    for each, size in (("stays", 3 * MIB), ("goes", 2 * MIB), ("over", 4 * MIB), ("mode", MIB)):
        random_to(zfs_guest, f"/{home}/{each}", size)
    with guest_agents(zfs_guest) as others:
        driver = RemoteDriver.of(Endpoint("zfs", home, "there"), others)
        base = driver.take_snapshot("one")
        random_to(zfs_guest, f"/{home}/over", MIB)
        random_to(zfs_guest, f"/{home}/new", 5 * MIB)
        shell(zfs_guest, f"cd /{home}; rm goes; chmod 600 mode; mv stays there; echo > 'a b\u00e9'")
        newer = driver.take_snapshot("two")
        found = driver.delta(base.guid, newer.guid, states=True, files=True)
        quick = driver.delta(base.guid, newer.guid)
        with driver.send(base.guid, newer.guid) as sending:
            sent = 0
            while chunk := sending.read():
                sent += len(chunk)
    assert found.states is not None
    size = found.block_size
    near = MIB // 4  # metadata
    assert abs(found.states.added * size - 6 * MIB) < near
    assert abs(found.states.deleted * size - 3 * MIB) < near
    assert abs(found.states.unchanged * size - 7 * MIB) < near
    pool = zfs_guest.run("zfs", "get", "-Hp", "-o", "value", "used,available", "here").split()
    union = (found.states.added + found.states.deleted + found.states.unchanged) * size
    assert abs(found.states.unused * size + union - sum(map(int, pool))) < 16 * MIB
    assert found.added_bytes == quick.added_bytes == found.states.added * size
    assert quick.states is None and abs(quick.send_bytes - sent) < near
    assert (found.send_bytes, found.exact) == (sent, True)
    changes = {each.path: (each.change, each.data_bytes) for each in found.changes or ()}
    assert changes["new"] == ("added", 5 * MIB)
    assert changes["over"] == ("modified", MIB)
    assert changes["goes"] == ("deleted", 0)
    assert changes["there"][0] == "renamed"
    assert changes["mode"] == ("metadata", 0)
    assert changes["a b\u00e9"][0] == "added"
    assert "stays" not in changes


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("zfs get -Hp guid here/nothing", "'here/nothing' does not exist"),
        ("zfs destroy {home}@held", "is held by 'somebody'"),
        ("zfs recv -s -u {home} < /bin/true", "the stream is damaged"),
        ("zfs send -t 1-2-3-4", "resume token"),
        ("zfs snapshot {home}@held", "already exists"),
        ("zfs create here/nothing/x", "the parent of 'here/nothing/x' does not exist"),
        ("zfs send {home}@held | zfs recv -s -u {there}/none/x", "the parent of|does not exist"),
        ("zfs send {home}@held | zfs recv -s -u {there}/small/x", "quota of"),
    ],
)
def test_what_this_openzfs_says_is_known(
    zfs_guest: Guest, name: str, words: str, what: str
) -> None:
    home, there = f"here/{name}/home", f"there/{name}"
    shell(
        zfs_guest,
        f"zfs create {home}; head -c 3000000 /dev/urandom > /{home}/x; zfs snapshot {home}@held;"
        f"zfs hold somebody {home}@held; zfs create -o quota=1M {there}/small",
    )
    line = words.format(home=home, there=there)
    said = zfs_guest.fails("bash", "-o", "pipefail", "-c", f"export LC_ALL=C; {line}")
    last = line.split("| ")[-1].split(" <")[0].split()
    error = failures.translate("zfs:X", last, said, ask=lambda asked: zfs_guest.run(*asked))
    assert re.search(what, error.what), error
    zfs_guest.run("zfs", "release", "somebody", f"{home}@held")


def test_the_messages_come_from_this_series(zfs_guest: Guest) -> None:
    assert Path(__file__).with_name("messages.json").exists()
    assert zfs_guest.run("zfs", "version").startswith("zfs-2.")


def test_an_encrypted_dataset_is_mirrored_without_its_key(zfs_guest: Guest, name: str) -> None:
    home, backup = f"here/{name}/home", f"there/{name}/backup"
    shell(
        zfs_guest,
        "head -c 32 /dev/urandom > /tmp/mirror.key; zfs create -o encryption=on -o keyformat=raw "
        f"-o keylocation=file:///tmp/mirror.key {home}; seq 1 9000 > /{home}/text; sync",
    )
    wanted = zfs_guest.user("digest", f"/{home}")
    with guest_agents(zfs_guest) as others:
        source, destination = (
            RemoteDriver.of(Endpoint("zfs", each, "there"), others) for each in (home, backup)
        )
        base = source.take_snapshot("one")
        zfs_guest.run("zfs", "unmount", home)
        zfs_guest.run("zfs", "unload-key", home)
        destination.prepare(MIRROR)
        stage(source, destination, None, base, "t1")
        destination.commit("t1", show=True)
        newer = source.take_snapshot("two")
        stage(source, destination, base, newer, "t2")
        destination.commit("t2", show=True)
        facts = destination.facts()
        assert facts.shown == newer.guid and facts.view == ""
    status = zfs_guest.run("zfs", "get", "-Hp", "-o", "value", "keystatus", home, backup)
    assert status.split() == ["unavailable", "unavailable"]
    shell(zfs_guest, f"zfs load-key -L file:///tmp/mirror.key {backup}; zfs mount {backup}")
    assert zfs_guest.user("digest", f"/{backup}") == wanted


def test_a_token_of_something_else_is_refused_with_the_reason(zfs_guest: Guest, name: str) -> None:
    """What 'zfs send -t' would send whatever was asked for."""
    home, place = f"here/{name}/home", f"there/{name}/half"

    def token_of(words: str) -> str:
        shell(
            zfs_guest,
            f"zfs destroy {place} 2>/dev/null || true;"
            f"zfs send {words} | head -c 400000 | zfs recv -s {place} || true",
        )
        words = f"zfs get -Hpo value receive_resume_token {place}"
        return shell(zfs_guest, words).strip()

    shell(
        zfs_guest,
        f"zfs create {home}; head -c 1000000 /dev/urandom > /{home}/x;"
        f"zfs create here/{name}/other; cp /{home}/x /here/{name}/other/;"
        f"zfs snapshot here/{name}/other@one",
    )
    with guest_agents(zfs_guest) as others:
        driver = RemoteDriver.of(Endpoint("zfs", home, "there"), others)
        one = driver.take_snapshot("one")
        shell(zfs_guest, f"head -c 1000000 /dev/urandom > /{home}/y")
        two = driver.take_snapshot("two")
        good, other = token_of(f"-Lce {home}@one"), token_of(f"here/{name}/other@one")
        for base, token, why in (
            (None, other, "it is for"),
            (one.guid, good, "it is for"),
            (None, "2" + good[1:], "version"),
            (None, good[:-8], "it is|its|it claims"),
            (None, "", "token"),
        ):
            with pytest.raises(CheckpointUseless, match=why):
                driver.send(
                    base, (one if token == other else two).guid, checkpoint={"token": token}
                )
        with driver.send(None, one.guid, checkpoint={"token": good}) as stream:
            rest = 0
            while chunk := stream.read():
                rest += len(chunk)
        assert 300_000 < rest < 900_000, "it goes on where that ended"
        # Recreated under its name, with a snapshot of the same name: another one.
        shell(
            zfs_guest,
            f"for s in one two; do zfs release mirrord {home}@$s || true; done;"
            f"zfs destroy -r {home}; zfs create {home}",
        )
        recreated = driver.take_snapshot("one")
        with pytest.raises(CheckpointUseless, match="it is for"):
            driver.send(None, recreated.guid, checkpoint={"token": good})
