"""`mirrord verify` on real btrfs: what is equal is proven, what differs is named."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mirrord.config.hosts import render
from mirrord.control.statustext import details
from mirrord.core.errors import IoFailed, Refused, UsageError
from mirrord.core.results import Result
from mirrord.core.verification import VerifyRequest
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.system import steps
from mirrord.system.paths import Paths
from tests.crash.faults import Crash
from tests.support import btrfs
from tests.support.definitions import set_keep
from tests.support.labs import open_lab
from tests.support.service import until
from tests.support.sshd import Sshd
from tests.support.verbs import Service
from tests.support.world import World

NAME = "home"
ROOT = Path(__file__).parents[2]
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
MIB = 1 << 20


class Pair:
    """A mirror between two file systems of its own; the destination's has no checksums of data."""

    def __init__(self, home: Path, here: Path, there: Path, host: Sshd | None = None) -> None:
        """host: that of the destination; None: this one."""
        self.service = Service(Paths(home / "etc", home / "state", home / "run"))
        self.source = btrfs.make_subvolume(here / "home")
        self.mount = there
        btrfs.fill(self.source)
        place = f"btrfs:{there}/copy"
        if host is not None:
            given = f"MIRRORD_HOME={home}/there", f"PYTHONPATH={ROOT}"
            agent = ["env", *given, sys.executable, "-m", "mirrord", "agent"]
            self.service.paths.hosts.mkdir(parents=True)
            file = self.service.paths.hosts / "there.toml"
            file.write_text(render(host.host(name="there", command=tuple(agent))))
            place = f"btrfs://there{there}/copy"
        self.service.create(NAME, f"btrfs:{self.source}", place)
        self.trees = there / "copy/.mirrord/current/verify"
        self.file = self.service.paths.mirrors / f"{NAME}.toml"

    def write(self, name: str, data: bytes, *, at: int = 0) -> None:
        path = self.source / name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(at)
            file.write(data)

    def verify(self, **options: Any) -> Result:
        return self.service.verify(NAME, **options)

    def keep_one(self) -> None:
        """Keep as few snapshots as possible at both ends."""
        for site in ("primary", "secondary"):
            set_keep(self.file, site, "1")

    def status(self) -> dict[str, Any]:
        return self.service.status(NAME)[0].reading._asdict()

    def damage(self, marker: bytes) -> None:
        """Overwrite a marker in the destination's image, behind the file system's back."""
        subprocess.run(["btrfs", "filesystem", "sync", self.mount], check=True)
        image = self.mount.parent / "image"
        at = image.read_bytes().find(marker)
        assert at >= 0
        with image.open("r+b") as file:
            file.seek(at)
            file.write(bytes(len(marker)))
            os.fsync(file.fileno())
        loop = subprocess.run(
            ["losetup", "--noheadings", "--output", "NAME", "--associated", image],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        subprocess.run(["blockdev", "--flushbufs", loop], check=True)


@pytest.fixture(params=["nodatasum"])
def options(request: pytest.FixtureRequest) -> str:
    """Of the destination's mount."""
    return str(request.param)


@pytest.fixture
def pair(tmp_path: Path, options: str) -> Iterator[Pair]:
    with (
        btrfs.filesystem(size_mib=512) as here,
        btrfs.filesystem(size_mib=512, options=options) as there,
    ):
        made = Pair(tmp_path / "home", here, there)
        yield made
        made.service.close()


def content(seed: int, size: int = 2 * MIB) -> bytes:
    return random.Random(seed).randbytes(size)


def differences(result: Result) -> list[tuple[str, str, str]]:
    return [(one["path"], one["what"], one["end"]) for one in result.data["differences"]]


def test_a_replica_is_proven_equal_and_that_is_recorded(pair: Pair) -> None:
    pair.write("large", content(1))
    pair.service.initialize(NAME)
    btrfs.change(pair.source, 5)
    pair.service.update(NAME)
    done = pair.verify()
    assert done.status == "verified" and done.data["equal"]
    assert done.data["read_bytes"]["source"] == done.data["read_bytes"]["destination"] > 2 * MIB
    status = pair.status()
    assert status["verified"].name == done.data["snapshot"] == status["shown"]
    assert status["verified"].differences == 0 and not status["faults"]
    assert [path.suffix for path in pair.trees.iterdir()] == [".tree"]
    assert pair.verify().data["root"] == done.data["root"]


def test_flipped_bytes_are_found_with_file_and_range(pair: Pair) -> None:
    data = bytearray(content(2))
    marker = b"a marker that occurs only once, here"
    data[MIB + 5 : MIB + 5 + len(marker)] = marker
    pair.write("dir.file", bytes(data))
    pair.service.initialize(NAME)
    assert pair.verify().data["equal"]
    pair.damage(marker)
    done = pair.verify()
    assert done.status == "different" and differences(done) == [("dir.file", "content", "")]
    assert done.data["differences"][0]["ranges"] == [[MIB, 128 << 10]]
    assert f"bytes {MIB}-{MIB + (128 << 10) - 1}" in done.text
    [fault] = pair.status()["faults"]
    assert fault.kind == "verify" and ": 1 difference in" in fault.text


@pytest.mark.parametrize("options", ["datasum"], indirect=True)
def test_what_cannot_be_read_is_named(pair: Pair) -> None:
    marker = b"a marker that occurs only once, there"
    pair.write("file", content(3) + marker)
    pair.service.initialize(NAME)
    pair.damage(marker)
    done = pair.verify()
    assert differences(done) == [("file", "unreadable", "destination")]
    assert done.data["differences"][0]["ranges"] == [[2 * MIB, len(marker)]]


def test_a_file_system_that_became_read_only_is_named(pair: Pair) -> None:
    pair.service.initialize(NAME)
    subprocess.run(["mount", "-o", "remount,ro", pair.mount], check=True)
    with pytest.raises(IoFailed, match="the file system is read-only") as raised:
        pair.verify()
    assert raised.value.where == str(pair.trees) and "Mount it writable" in raised.value.hint
    subprocess.run(["mount", "-o", "remount,rw", pair.mount], check=True)
    assert pair.verify().data["equal"]


@pytest.mark.parametrize("wrong", ["0", "101", "x", "-1 %", "nan", "1e400"])
def test_a_sample_is_a_percentage(pair: Pair, wrong: str) -> None:
    with pytest.raises(UsageError, match="not a sample size"):
        pair.verify(sample=wrong)
    with pytest.raises(UsageError, match="cannot be combined"):
        pair.verify(full=True, changed=True)


def test_changed_reads_only_what_an_update_wrote(pair: Pair) -> None:
    pair.write("large", content(1, 8 * MIB))
    pair.write("other", content(2))
    pair.service.initialize(NAME)
    first = pair.verify(changed=True)
    assert first.data["equal"] and first.data["mode"] == "full" and "everything" in first.text
    pair.write("large", b"changed", at=3 * MIB + 7)
    pair.write("new", content(3, 300_000))
    (pair.source / "other").rename(pair.source / "renamed")
    (pair.source / "large").chmod(0o640)
    pair.service.update(NAME)
    done = pair.verify(changed=True)
    assert done.data["equal"] and done.data["mode"] == "changed"
    for read in done.data["read_bytes"].values():
        assert 300_000 + (128 << 10) <= read <= 300_000 + (384 << 10)
    assert pair.verify().data["root"] == done.data["root"]


def test_changed_is_right_after_any_history(pair: Pair) -> None:
    """What is taken over from the older tree is what a full verification computes."""
    pair.service.initialize(NAME)
    assert pair.verify().data["equal"]
    for seed in range(4):
        btrfs.change(pair.source, seed)
        cut = pair.source / "cut"
        pair.write("cut", content(seed, 700_000 + 50_000 * seed))
        os.truncate(cut, 400_000 - 90_000 * seed)
        os.truncate(cut, 650_000)
        pair.service.update(NAME)
        done = pair.verify(changed=True)
        assert done.data["equal"] and done.data["mode"] == "changed"
        assert pair.verify().data["root"] == done.data["root"]


def test_updates_go_on_meanwhile_and_the_snapshot_stays(pair: Pair) -> None:
    pair.write("large", content(1, 8 * MIB))
    pair.service.initialize(NAME)
    text = pair.file.read_text()
    pair.file.write_text(text.replace("[site", 'verify_rate = "2MiB/s"\n[site', 1))
    pair.keep_one()
    other = Service(pair.service.paths)
    with ThreadPoolExecutor(1) as pool:
        verifying = pool.submit(other.verify, NAME)
        until(lambda: list(pair.trees.glob("*.part")))
        for number in range(3):
            pair.write("other", content(number))
            assert pair.service.update(NAME).status == "done"
        assert not verifying.done()
        done = verifying.result()
    other.close()
    assert done.data["equal"]
    assert done.data["snapshot"] != pair.status()["shown"]
    pair.write("other", content(9))
    pair.service.update(NAME)
    names = [row.name for row in pair.service.snapshots(NAME).snapshots if row.destination]
    assert done.data["snapshot"] not in names


@pytest.mark.parametrize("options", ["nodatasum", "datasum"], indirect=True)
def test_what_is_damaged_is_repaired(pair: Pair) -> None:
    marker = b"a marker that occurs only once, to be repaired"
    data = bytearray(content(2))
    data[MIB + 5 : MIB + 5 + len(marker)] = marker
    pair.write("file", bytes(data))
    os.chmod(pair.source / "file", 0o4755)
    os.setxattr(pair.source / "file", "security.capability", CAPABILITY)
    pair.service.initialize(NAME)
    pair.damage(marker)
    found = pair.verify(repair=True)
    assert found.status == "repaired" and found.data["repaired_bytes"] == 128 << 10
    assert found.data["differences"]
    assert (pair.mount / "copy/current/file").read_bytes() == bytes(data)
    status = pair.status()
    assert not status["faults"] and status["verified"].differences == 0
    assert pair.verify().data["equal"]
    assert pair.verify(repair=True).status == "verified"
    pair.write("other", content(4))
    assert pair.service.update(NAME).status == "done"  # incremental: the identity is the same
    assert pair.service.history(NAME, limit=1).transfers[0].base
    assert pair.verify().data["equal"]
    assert len([row for row in pair.service.snapshots(NAME).snapshots if row.destination]) == 2


def test_a_repair_that_is_interrupted_leaves_the_old_or_the_new(pair: Pair) -> None:
    pair.service.initialize(NAME)
    seen: list[str] = []

    def observer(label: str) -> None:
        if label.startswith("BTRFS:REPAIR") and label not in seen:
            seen.append(label)
            raise Crash

    for number in range(30):
        good = b"marker %d: " % number + content(number, 200)
        pair.write(f"file{number}", content(99, 300_000) + good)
        pair.service.update(NAME)
        pair.damage(good)
        steps.observe(observer)
        try:
            assert pair.verify(repair=True).status == "repaired"
            break
        except Crash:
            pass
        finally:
            steps.observe(None)
        shown = (pair.mount / f"copy/current/file{number}").read_bytes()
        assert shown[300_000:] in (bytes(len(good)), good)
        assert not pair.status()["problem"]
        assert pair.verify(repair=True).status in ("repaired", "verified")
        assert pair.verify().data["equal"]
    kinds = {label.split(":")[2] for label in seen}
    assert kinds >= {"FOLDER", "SNAPSHOT", "WRITE", "SYNC", "IDENTITY", "READONLY"}
    assert kinds >= {"RECORD", "MOVE", "SHOW", "DELETE"}
    assert pair.verify().data["equal"]


def test_status_does_not_take_a_sample_for_a_proof(pair: Pair) -> None:
    pair.service.initialize(NAME)
    for options, verdict in (({}, "equal"), ({"sample": "50"}, "no difference in the sample")):
        pair.verify(**options)
        [line] = [one for one in details(pair.service.status(NAME)[0]) if "  verified" in one]
        assert line.endswith(f": {verdict}")


def test_only_contents_are_repaired(pair: Pair) -> None:
    pair.service.initialize(NAME)
    with pytest.raises(UsageError, match="cannot be combined"):
        pair.verify(sample="1", repair=True)


def test_a_copy_on_another_host_is_verified_and_repaired(tmp_path: Path, host: Sshd) -> None:
    marker = b"a marker that occurs only once, far away"
    with (
        btrfs.filesystem(size_mib=512) as here,
        btrfs.filesystem(size_mib=512, options="nodatasum") as there,
    ):
        pair = Pair(tmp_path / "home", here, there, host)
        (pair.source / "a/b").mkdir(parents=True)
        pair.write("a/b/a", content(1) + marker)
        pair.service.initialize(NAME)
        assert pair.verify().data["equal"]
        pair.damage(marker)
        assert differences(pair.verify(sample="100")) == [("a/b/a", "content", "")]
        assert pair.verify(repair=True).status == "repaired"
        assert pair.verify(changed=True).data["equal"]
        pair.write("more", content(2))
        pair.service.update(NAME)
        done = pair.verify(changed=True)
        assert done.data["equal"] and done.data["mode"] == "changed"
        pair.service.close()
        pair.service.shared.links.close()


def test_a_deleted_mirror_leaves_no_digests(pair: Pair) -> None:
    pair.service.initialize(NAME)
    assert pair.verify().data["equal"]
    assert list(pair.trees.iterdir())
    pair.service.delete(NAME, yes=True, keep_snapshots=False)
    assert not pair.trees.exists()


def test_a_mirror_is_not_deleted_while_its_snapshot_is_verified(pair: Pair) -> None:
    """The snapshot would be left at the source, where nothing deletes it any more."""
    pair.service.initialize(NAME)
    source = BtrfsDriver(str(pair.source))
    newest = source.snapshots()[-1]
    (pair.source / "next").write_text("next")
    pair.service.update(NAME)
    assert not source.verify_step(VerifyRequest(newest.guid, rate=1), 0.01).done
    planned = pair.service.prune(NAME, dry_run=True, accept=False)
    assert "it is being verified" in planned.text and "running-verify" not in planned.text
    pair.service.break_off(NAME)
    with pytest.raises(Refused, match="is being verified"):
        pair.service.delete(NAME, yes=False, keep_snapshots=False)
    source.verify_end()
    pair.service.delete(NAME, yes=False, keep_snapshots=False)
    assert source.snapshots() == []


@pytest.mark.parametrize("mode", [{}, {"changed": True}, {"sample": "100"}])
def test_a_block_volume_is_verified(tmp_path: Path, mode: dict[str, Any]) -> None:
    with open_lab("lab_block", tmp_path) as lab:
        world = World(lab, tmp_path / "home").initialized()
        lab.change(lab.source(), 3)
        world.service.update(NAME)
        done = world.service.verify(NAME, **mode)
        assert done.data["equal"] and done.data["read_bytes"]["source"] > 0
        place = Path(str(lab.destination()).removeprefix("block:"))
        [file] = place.glob("data*")
        data = bytearray(file.read_bytes())
        shown = lab.destination().facts().shown
        assert shown is not None
        for at in range(0, len(data), 4096):  # one byte of each block of content, or of the trees
            data[at + 9] ^= 1
        file.write_bytes(data)
        found = world.service.verify(NAME, **mode)
        [(path, what, end)] = differences(found)
        assert (path, what, end) == ("", "unreadable", "destination")
        refused = world.cli("verify", NAME, "--repair")
        assert refused.returncode == 1 and "cannot be repaired" in refused.stderr
        hint = refused.stderr.partition("hint: ")[2]
        commands = [one.split()[1:] for one in hint.split("'")[1::2]]
        assert [one[0] for one in commands] == ["break", "release", "initialize"]
        for words in commands:
            if words[0] == "initialize":
                place.rename(place.with_name("away"))
            ran = world.cli(*words)
            assert ran.returncode == 0, (words, ran.stderr)
        assert world.service.verify(NAME).data["equal"]
        world.close()
