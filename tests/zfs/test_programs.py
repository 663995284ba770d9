"""How few commands an update is, and what a program refuses: inside the virtual machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zfs.conftest import inside
from tests.zfsvm.guest import Guest

#: What syncoid starts for one update (benchmarks/zfs.py counts it).
SYNCOID = 17

_COMMANDS = """
import json, os, sys, tempfile
from pathlib import Path
from tests.support.verbs import Service
from mirrord.drivers.zfs.commands import command
from mirrord.system.paths import Paths

name, kind = sys.argv[1:]
def change(number):
    path = f"/dev/zvol/here/{name}/home" if kind == "volume" else f"/here/{name}/home/file"
    with open(path, "r+b" if kind == "volume" else "wb") as file:
        file.write(os.urandom(4096))
        file.flush()
        os.fsync(file.fileno())

folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
service = Service(Paths(folder / "etc", folder / "state", folder / "run"))
change(0)
service.create("home", f"zfs:here/{name}/home", f"zfs:there/{name}/home")
service.initialize("home")
counts, statuses = [], []
for number in range(1, 4):
    change(number)
    before = command.executions()
    statuses.append(service.update("home").status)
    counts.append(command.executions() - before)
before = command.executions()
statuses.append(service.update("home").status)
counts.append(command.executions() - before)
service.close()
print(json.dumps([counts, statuses]))
"""

_READING = """
import json, os, sys, tempfile, time
from pathlib import Path
from tests.support.verbs import Service
from mirrord.drivers.zfs.volume import dataset_cache
from mirrord.system.paths import Paths

name = sys.argv[1]
looked, real = [], dataset_cache.look
def look(location, where, *more):
    looked.append(location)
    return real(location, where, *more)
dataset_cache.look = look

def reads(work):
    looked.clear()
    work()
    return len(looked)

here, there = f"here/{name}/home", f"there/{name}/home"
folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
service = Service(Paths(folder / "etc", folder / "state", folder / "run"))
service.create("home", f"zfs:{here}", f"zfs:{there}")
service.initialize("home")
said = {}
for what in ("changed", "unchanged"):
    if what == "changed":
        Path(f"/{here}/file").write_bytes(os.urandom(4096))
    reads(lambda: service.update("home"))
    said[what] = [looked.count(here), looked.count(there)]
service.close()

cache = dataset_cache.DatasetCache(here, here)
def follows(between, *, fresh=True):
    cache.read_ahead("mirrord:x")
    between()
    return reads(lambda: cache.place("mirrord:x", fresh=fresh))
said["at once"] = follows(lambda: None)
said["twice"] = reads(lambda: cache.place("mirrord:x"))
said["after a change"] = follows(cache.change)
said["in the lock"] = follows(lambda: cache.trust(True))
said["known in the lock"] = [follows(lambda: None), follows(lambda: None, fresh=False)]
cache.trust(False)
said["later"] = follows(lambda: time.sleep(1.1))
print(json.dumps(said))
"""

_TAKING = """
import json, subprocess, sys
from mirrord.core.model import SnapshotKind
from mirrord.drivers.zfs.dataset import place
from mirrord.drivers.zfs.snapshots import counters, listing, programs
from mirrord.drivers.zfs.dataset.marks import SnapshotMark

dataset = sys.argv[1]
mark = SnapshotMark(SnapshotKind.REFERENCE, "", 123)
def look():
    return place.look(dataset, dataset).here
def zfs(*words):
    subprocess.run(["zfs", *words], check=True)

seen = look()
first = programs.take(seen, "first", mark)
open(f"/{dataset}/file", "wb").write(b"x" * 4096)
second = programs.take(seen, "second", mark)
found = {one.full: one for one in listing.load(dataset, (), None, dataset).entries}
good = [found[f"{dataset}@{one.entry.name}"] for one in (first, second)]
said = {
    "same": [(one.guid, one.order, one.created_ns, one.mark.text()) for one in good]
    == [(one.entry.guid, one.entry.order, one.entry.created_ns, one.entry.mark.text())
        for one in (first, second)],
    "bookmarks": sorted(name for name in found if "#" in name),
    "before": second.before == first.entry.guid and first.before == "",
    "written": second.written
    == int(subprocess.run(["zfs", "get", "-Hpo", "value", "written@first", f"{dataset}@second"],
                          check=True, capture_output=True).stdout),
    "taken already": programs.take(seen, "first", mark) is None,
}
zfs("set", "mirrord:relationship:m1=a record", dataset)
said["related since"] = programs.take(seen, "third", mark, ["mirrord:relationship:m1"]) is None
zfs("set", "mirrord:mark=another", dataset)
said["marked since"] = programs.take(seen, "third", mark) is None
zfs("rename", dataset, dataset + ".old")
zfs("create", dataset)
said["recreated"] = programs.take(seen, "third", mark) is None
said["gone"] = programs.take(seen._replace(name=dataset + ".none"), "third", mark) is None
said["third"] = [one for one in listing.load(dataset, (dataset + ".old",), None, dataset).entries
                 if one.name == "third"]
now = look()
counters.save(now, "g", counters.read(now))
said["quiet"] = counters.has_writes(now, "g")
open(f"/{dataset}/file", "wb").write(b"x")
said["moved"] = counters.has_writes(now, "g")
said["of another"] = counters.has_writes(now, "other")
print(json.dumps(said))
"""


@pytest.fixture
def name(zfs_guest: Guest) -> Iterator[str]:
    with zfs_guest.datasets() as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["filesystem", "volume"])
def test_an_update_takes_fewer_commands_than_syncoid(
    zfs_guest: Guest, name: str, kind: str
) -> None:
    options = ["-s", "-V", "16M"] if kind == "volume" else []
    zfs_guest.run("zfs", "create", *options, f"here/{name}/home")
    zfs_guest.run("udevadm", "settle")
    counts, statuses = inside(zfs_guest, _COMMANDS, name, kind)
    assert statuses == ["done", "done", "done", "unchanged"]
    print(f"commands of an update of a {kind}: {counts[2]}; when nothing changed: {counts[3]}")
    assert counts[1] <= SYNCOID and counts[2] <= SYNCOID
    assert counts[3] <= 6


def test_what_a_verb_reads_first_is_not_read_again(zfs_guest: Guest, name: str) -> None:
    """The relationship record comes with all other properties. An update without changes reads
    each volume once; with changes the source once more, when its base is pinned.
    """
    zfs_guest.run("zfs", "create", f"here/{name}/home")
    said = inside(zfs_guest, _READING, name)
    assert said.pop("changed") == [2, 1] and said.pop("unchanged") == [1, 1]
    assert said.pop("at once") == 0
    # What was read under this lock is valid, but facts are read again.
    assert said.pop("known in the lock") == [1, 0]
    assert set(said.values()) == {1}, said


def test_a_program_takes_a_snapshot_only_of_what_was_seen(zfs_guest: Guest, name: str) -> None:
    """By its identity, mark and record; the kernel's counters prove a change, never that there is
    none.
    """
    dataset = f"here/{name}/home"
    zfs_guest.run("zfs", "create", dataset)
    said = inside(zfs_guest, _TAKING, dataset)
    assert said.pop("bookmarks") == [f"{dataset}#first", f"{dataset}#second"]
    assert said.pop("third") == []
    assert not said.pop("quiet") and not said.pop("of another")
    assert all(said.values()), said
