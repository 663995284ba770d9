"""`mirrord-receive`: random histories, interruptions, and what it does alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.btrfs.history import History, differences, state
from tests.btrfs.streams import INTERRUPTED, Target, boundaries, send, snapshot
from tests.support import btrfs
from tests.support.service import PATIENCE_S

#: How long random histories are made, in seconds (MIRRORD_HISTORY_S: as long as asked).
_HISTORY_S = float(os.environ.get("MIRRORD_HISTORY_S", "40"))


@pytest.fixture
def places() -> Iterator[tuple[Path, Path]]:
    with btrfs.folders() as both:
        yield both


def _peer(data: bytes, into: Path) -> None:
    into.mkdir(exist_ok=True)
    words: list[str | Path] = ["btrfs", "receive", "-q", into]
    subprocess.run(words, input=data, check=True, capture_output=True)


def _without_acls(tree: dict[bytes, dict[str, object]]) -> dict[bytes, dict[str, object]]:
    """What `btrfs receive` gets right: it lets new objects inherit ACLs, properties and, where it
    keeps temporary names, times.
    """
    kept = {}
    for path, one in tree.items():
        xattrs = one["xattrs"]
        assert isinstance(xattrs, dict)
        others = {
            key: value for key, value in xattrs.items() if not key.startswith(("system.", "btrfs."))
        }
        kept[path] = {
            **one,
            "xattrs": others,
            "mode": "",
            "mtime": 0 if path == b"." else one["mtime"],
        }
    return kept


@pytest.mark.parametrize("version", [1, 2])
def test_random_histories_arrive_without_a_difference(
    places: tuple[Path, Path], version: int
) -> None:
    """Content and all metadata, against the source and `btrfs receive`; each increment is applied
    to what arrived before.
    """
    here, there = places
    seed = version if "MIRRORD_HISTORY_S" not in os.environ else random.randrange(1 << 30)
    until = time.monotonic() + _HISTORY_S / 2
    while time.monotonic() < until:
        seed += 2
        live = btrfs.make_subvolume(here / f"live{seed}")
        if version == 2:
            kind = ["zstd", "lzo", "zlib"][seed // 2 % 3]
            subprocess.run(["btrfs", "property", "set", live, "compression", kind], check=True)
        history, base, base_there = History(live, seed), None, None
        for turn in range(5):
            history.run(150)
            newer = snapshot(live, here / f"s{seed}.{turn}")
            data, wanted = send(newer, base, version=version), state(newer)
            target = Target(there / f"t{seed}.{turn}", base_there)
            assert target.receive(data) == (0, ""), (seed, turn)
            found = state(target.subvolume)
            assert differences(wanted, found) == [], (seed, turn)
            _peer(data, there / f"peer{seed}")
            theirs = state(there / f"peer{seed}" / newer.name)
            assert differences(_without_acls(found), _without_acls(theirs)) == [], (seed, turn)
            base, base_there = newer, target.subvolume


def _change(here: Path) -> tuple[Path, Path, bytes]:
    """Base, newer snapshot, and the stream between them: of some megabytes."""
    live = btrfs.make_subvolume(here / "live")
    history = History(live, 5)
    history.run(200)
    base = snapshot(live, here / "base")
    history.run(400)
    for n in range(20):
        (live / f"large{n}").write_bytes(random.Random(n).randbytes(1 << 20))
    newer = snapshot(live, here / "newer")
    return base, newer, send(newer, base)


def test_it_resumes_exactly_where_a_stream_was_cut(places: tuple[Path, Path]) -> None:
    here, there = places
    base, newer, data = _change(here)
    first = Target(there / "base")
    assert first.receive(send(base)) == (0, "")
    target = Target(there / "t", first.subvolume)
    ends, chance = boundaries(data), random.Random(1)
    position = 0
    for cut in sorted(chance.sample(range(ends[1], len(data)), 12)):
        status, errors = target.receive(data[position:cut], kept=True, resume=position)
        assert (status, errors) == (INTERRUPTED, "")
        whole = max(end for end in ends if end <= cut)
        assert target.position() == whole
        assert len(os.listdir(target.checkpoints)) <= 2
        target.remove_staged()
        position = whole
    assert target.receive(data[position:], kept=True, resume=position) == (0, "")
    assert differences(state(newer), state(target.subvolume)) == []


def test_it_clones_from_a_snapshot_of_the_base_where_mounts_cannot_share(
    places: tuple[Path, Path],
) -> None:
    """As before Linux 5.18. The snapshot is gone afterwards, however it ends."""
    here, there = places
    base, newer, data = _change(here)
    first = Target(there / "base")
    assert first.receive(send(base)) == (0, "")
    target = Target(there / "t", first.subvolume)
    words = [*target.words(), "--near-base"]
    for part, status in ((data[: len(data) // 2], INTERRUPTED), (data, 0)):
        target.remove_staged()
        done = subprocess.run(words, input=part, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (status, b"")
        assert os.listdir(target.into) == ["snap"]
    assert differences(state(newer), state(target.subvolume)) == []


def test_the_digest_of_a_checkpoint_is_that_of_the_senders_prefix(
    places: tuple[Path, Path],
) -> None:
    from mirrord.system.native import StreamDigest

    here, there = places
    _base, newer, _data = _change(here)
    data = send(newer)
    target, position = Target(there / "t"), 0
    for cut in (len(data) // 3, len(data) // 2):
        target.receive(data[position:cut], kept=True, resume=position)
        target.remove_staged()
        position = target.position()
        digest = StreamDigest()
        digest.update(data[:position])
        record = target.record.read_bytes()
        assert bytes.fromhex(digest.hexdigest()) in (record[32:64], record[32800:32832])


def test_it_resumes_after_it_was_killed(places: tuple[Path, Path]) -> None:
    """At random moments, also between the steps of a checkpoint: SIGTERM asks for those."""
    here, there = places
    base, newer, data = _change(here)
    first = Target(there / "base")
    assert first.receive(send(base)) == (0, "")
    target = Target(there / "t", first.subvolume)
    chance, position, resumed = random.Random(3), 0, 0
    for attempt in range(40):
        target.remove_staged()
        position = target.position()
        resumed += position > 0
        reading, writing = os.pipe()
        child = target.start(reading, kept=True, resume=position)
        os.close(reading)
        part = data[position : position + chance.randrange(1, 2 << 20)]
        with open(writing, "wb") as pipe:  # noqa: PTH123
            pipe.write(part)
            pipe.flush()
            # (Where the disk is so slow that no checkpoint is made in that time, it gets more.)
            slower = 1 if resumed else 1 + attempt / 4
            time.sleep(chance.random() * 0.03 * slower)
            if chance.random() < 0.7:
                child.send_signal(signal.SIGTERM)
                time.sleep(chance.random() * 0.06 * slower)
            child.kill()
            child.wait()
        assert child.stderr is not None and child.stderr.read() == b""
        child.stderr.close()
        assert target.position() >= position
    assert resumed > 5
    target.remove_staged()
    position = target.position()
    assert target.receive(data[position:], kept=True, resume=position) == (0, "")
    assert differences(state(newer), state(target.subvolume)) == []


def test_a_checkpoint_whose_snapshot_was_replaced_does_not_count(
    places: tuple[Path, Path],
) -> None:
    here, there = places
    _base, newer, _data = _change(here)
    data = send(newer)
    target = Target(there / "t")
    target.receive(data[: len(data) // 2], kept=True)
    target.remove_staged()
    position, [name] = target.position(), os.listdir(target.checkpoints)
    kept = target.checkpoints / name
    subprocess.run(["btrfs", "-q", "subvolume", "delete", kept], check=True)
    btrfs.make_subvolume(kept)
    subprocess.run(["btrfs", "property", "set", "-ts", kept, "ro", "true"], check=True)
    status, errors = target.receive(data[position:], kept=True, resume=position)
    assert status == 1 and errors.startswith("checkpoint\t")
    assert not target.subvolume.exists()


def _words(length: int) -> bytes:
    """Short words in random order: repetitions of every length and distance."""
    chance = random.Random(7)
    words = [chance.randbytes(chance.randrange(2, 9)) for _ in range(900)]
    return b"".join(chance.choice(words) for _ in range(length // 2))[:length]


def test_what_is_compressed_is_decompressed_where_the_kernel_does_not_take_it(
    places: tuple[Path, Path],
) -> None:
    """A file system without checksums refuses encoded writes."""
    here, _there = places
    for kind in ("zstd", "lzo", "zlib"):
        live = btrfs.make_subvolume(here / kind)
        subprocess.run(["btrfs", "property", "set", live, "compression", kind], check=True)
        text = b"".join(b"%d bottles of beer on the wall, " % n for n in range(40_000))
        (live / "text").write_bytes(text)
        (live / "words").write_bytes(_words(400_000))
        with (live / "text").open("r+b") as file:
            file.write(b"again " * 3000)
        with (live / "end").open("wb") as file:
            file.seek(200_000)
            file.write(text[:150_001])
        newer = snapshot(live, here / f"{kind}.s")
        data = send(newer, version=2)
        assert len(data) < len(text)
        with btrfs.filesystem(size_mib=256, options="nodatasum") as plain:
            target = Target(plain / "t")
            assert target.receive(data) == (0, "")
            wanted, found = state(newer), state(target.subvolume)
            for one in (*wanted.values(), *found.values()):
                one["xattrs"].pop("btrfs.compression", None)
            assert differences(wanted, found) == []


def test_only_what_it_needs_is_left_to_it(places: tuple[Path, Path]) -> None:
    """Capabilities, system calls, file systems."""
    _here, there = places
    target = Target(there / "t")
    reading, writing = os.pipe()
    child = target.start(reading)
    os.close(reading)
    try:
        proc, until = Path(f"/proc/{child.pid}"), time.monotonic() + PATIENCE_S
        while "Seccomp:\t2" not in (proc / "status").read_text():
            assert time.monotonic() < until
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        needed = sum(1 << bit for bit in (0, 1, 3, 4, 9, 21, 27, 31))
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert int(status[name], 16) == needed
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        for thread in (proc / "task").iterdir():
            assert "Seccomp:\t2" in (thread / "status").read_text()
        mounts = (proc / "mountinfo").read_text().splitlines()
        assert len(mounts) == 1 and " tmpfs " in mounts[0] and " ro," in mounts[0]
        assert os.listdir(proc / "root") == []
    finally:
        os.close(writing)
        child.communicate()


def test_memory_is_bounded(places: tuple[Path, Path]) -> None:
    """Many folders, each with times that are set last."""
    here, there = places
    live = btrfs.make_subvolume(here / "live")
    for n in range(3000):
        (live / f"folder{n}").mkdir()
        (live / f"folder{n}" / "file").write_bytes(b"x")
    newer = snapshot(live, here / "s")
    data = send(newer)
    target = Target(there / "t")
    reading, writing = os.pipe()
    child = target.start(reading)
    os.close(reading)
    with open(writing, "wb") as pipe:  # noqa: PTH123
        pipe.write(data[:-1])
        pipe.flush()
        status = Path(f"/proc/{child.pid}/status").read_text()
        pipe.write(data[-1:])
    assert child.communicate()[1] == b"" and child.returncode == 0
    [most] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    assert int(most) < 24 << 10
    assert differences(state(newer), state(target.subvolume)) == []
