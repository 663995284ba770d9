"""The helper process does what `zfs` does, asked for the same beside it on all a pool holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zfs.conftest import inside
from tests.zfsvm.guest import Guest

_READING = """
import json, os, subprocess, sys, time
from mirrord.drivers.zfs.commands import helper
from mirrord.drivers.zfs.dataset import place
from mirrord.drivers.zfs.snapshots import listing

root = sys.argv[1]
def zfs(*words, given=None):
    done = subprocess.run(["zfs", *words], capture_output=True, input=given)
    return [done.returncode, done.stdout.decode(), done.stderr.decode()]
def well(*words, given=None):
    done = zfs(*words, given=given)
    assert done[0] == 0, (words, done)
    return done[1]

key = b"a key of a tester"
well("create", "-o", "mirrord:prepared=x", "-o", "mountpoint=/here/" + root, "here/" + root)
here = "here/" + root
well("create", "-o", "mirrord:mark=its own\\u00e9", here + "/plain")
open(f"/{here}/plain/file", "wb").write(os.urandom(300_000))
well("create", "-o", "mountpoint=legacy", here + "/legacy")
well("create", "-o", "mountpoint=none", "-o", "canmount=off", here + "/none")
well("create", "-o", "canmount=noauto", "-o", "readonly=on", here + "/noauto")
well("create", here + "/with space")
well("create", "-s", "-V", "16M", "-o", "snapdev=visible", here + "/volume")
well("create", "-o", "encryption=on", "-o", "keyformat=passphrase", here + "/secret", given=key)
well("create", here + "/secret/below")
well("create", "-o", "encryption=on", "-o", "keyformat=passphrase", here + "/locked", given=key)
well("unmount", here + "/locked")
well("unload-key", here + "/locked")
well("snapshot", "-r", here + "@a")
well("snapshot", "-o", "mirrord:snapshot=reference - 1", here + "/plain@marked")
well("bookmark", here + "/plain@a", here + "/plain#kept")
for number in range(3):
    well("clone", here + "/plain@a", f"{here}/clone{number}")
well("hold", "one", here + "/plain@a")
well("hold", "two", here + "/plain@a")
well("snapshot", here + "/plain@going")
well("hold", "it", here + "/plain@going")
well("destroy", "-d", here + "/plain@going")
subprocess.run(["mount", "-o", "remount,ro", f"/{here}/with space"], check=True)
sending = ["zfs", "send", "-p", here + "/plain@marked"]
sent = subprocess.run(sending, capture_output=True, check=True).stdout
well("receive", "-u", here + "/received", given=sent)
well("set", "mirrord:mark=another", here + "/plain")
zfs("receive", "-s", "-u", here + "/half", given=sent[: len(sent) // 2])
assert len(well("get", "-Ho", "value", "receive_resume_token", here + "/half")) > 20

datasets = well("list", "-Ho", "name", "-t", "filesystem,volume", "-r", here).split("\\n")[:-1]
snapshots = well("list", "-Ho", "name", "-t", "snapshot", "-r", here).split("\\n")[:-1]
others = "mirrord:prepared", "referenced", "createtxg", "creation"
every = ",".join((*place._PROPERTIES, *others))
get = ["zfs", "get", "-Hp", "-o", "name,property,value,source", every]
value = ["zfs", "get", "-Hp", "-o", "value"]
asked = [[*get, name] for name in datasets]
asked += [[*get, *datasets, here + "/nothing", "here"]]
asked += [[*value, "guid,referenced,written", name] for name in (*datasets, *snapshots)]
asked += [["zfs", "list", "-Hp", "-t", "snapshot", "-o", listing.COLUMNS, name]
          for name in (*snapshots, here + "/plain@none", here + "/none/at/all@a", "nowhere@a")]
asked += [["zfs", "list", "-Hp", "-t", "snapshot", "-o", "name,guid,nonsense", snapshots[0]],
          [*value, "nonsense", here], [*value, "guid", here, "there"],
          [*value, "guid", "nowhere/at/all"]]
subprocess.run(["zpool", "sync"], check=True)
while helper.attempt(asked[0], None, timeout_s=60) is None:
    time.sleep(0.05)
def compared(words):
    said = helper.attempt(words, None, timeout_s=60)
    wanted = zfs(*words[1:])
    # (Where a block size has come from it cannot know, and nobody asks.)
    wanted[1] = wanted[1].replace("volblocksize\\t16384\\tdefault", "volblocksize\\t16384\\t-")
    return said, wanted, said is not None and [said.status, said.output, said.errors] == wanted

differ, none = [], []
for words in asked:
    for _ in range(5):  # (what a pool has left may change between the two questions)
        said, wanted, same = compared(words)
        if same or said is None:
            break
    if said is None:
        none.append(words)
    elif not same:
        lines = zip(said.output.split("\\n"), wanted[1].split("\\n"))
        other = [pair for pair in lines if pair[0] != pair[1]]
        differ.append([words[-1], other, said.errors, wanted[2]])
print(json.dumps({"differ": differ, "none": none, "asked": len(asked)}))
"""


_CHANGING = """
import json, os, signal, subprocess, sys, time
from mirrord.core.errors import IoFailed
from mirrord.drivers.zfs.commands import command, helper

root = sys.argv[1]
TYPE = ["zfs", "get", "-Hp", "-o", "value", "type", root]
def zfs(*words):
    return subprocess.run(["zfs", *words], capture_output=True, check=True, text=True).stdout
def attempt(*words):
    said = helper.attempt(["zfs", *words], None, timeout_s=60)
    return None if said is None else list(said)
def value(name, of):
    return zfs("get", "-Ho", "value,source", name, of).strip()
def names():
    return zfs("list", "-Hr", "-t", "all", "-o", "name", root).split()

one, two, kept = root + "@one", root + "@two", root + "#kept"
for full in (one, two):
    zfs("snapshot", full)
zfs("bookmark", one, kept)
while attempt(*TYPE[1:]) is None:
    time.sleep(0.05)
well, done = [0, "", ""], {}
done["hold"] = attempt("hold", "tag", one, two) == well
held = zfs("holds", "-H", one, two).splitlines()
done["both"] = [line.split()[1] for line in held] == ["tag"] * 2
done["again"] = attempt("hold", "tag", one) is None
done["of none"] = attempt("hold", "tag", root + "@none") is None
done["held"] = attempt("destroy", one) is None and one in names()
done["release"] = attempt("release", "tag", one, two) == well and zfs("holds", "-H", one, two) == ""
done["no tag"] = attempt("release", "tag", one) is None
done["set"] = attempt("set", "a:b=1 = \u00e9", "c:d=", root) == well
done["is set"] = value("a:b", root) == "1 = \u00e9\tlocal"
done["native"] = attempt("set", "readonly=on", root) is None
done["not set"] = value("readonly", root)[:3] == "off"
done["inherit"] = attempt("inherit", "a:b", root) == well
done["inherited"] = value("a:b", root) == "-\t-"
done["options"] = attempt("destroy", "-d", two) is None
done["deeper"] = attempt("inherit", "-r", "c:d", root) is None
done["several"] = attempt("destroy", root + "@one,two") is None and one in names()
done["whole"] = attempt("destroy", root) is None and attempt("destroy", "-r", root) is None
done["bookmark"] = attempt("destroy", kept) == well and kept not in names()
done["destroy"] = attempt("destroy", one) == well and one not in names()
done["gone"] = attempt("destroy", one) is None
zfs("clone", two, root + "/clone")
done["cloned"] = attempt("destroy", two) is None and two in names()
done["read by none"] = attempt("list", "-H", root) is None

# What it does not do is done by `zfs`, whose words are those of any complaint.
before = command.executions()
done["as result"] = command.result(TYPE)[:2] == (0, "filesystem\\n")
done["not started"] = command.executions() == before
failed = command.result(["zfs", "destroy", two])
done["complaint"] = "dependent clones" in failed.errors and command.executions() == before + 1

# A fork has one of its own; one that was killed is replaced, and the work goes on without it.
child = os.fork()
if child == 0:
    os._exit(0 if attempt(*TYPE[1:]) is None else 1)
done["fork"] = os.waitpid(child, 0)[1] == 0 and attempt(*TYPE[1:]) is not None
pid = helper._helper._process.pid
os.kill(pid, signal.SIGKILL)
done["killed"] = command.result(TYPE).output == "filesystem\\n"
until = time.monotonic() + 60
while attempt(*TYPE[1:]) is None and time.monotonic() < until:
    time.sleep(0.02)
now = helper._helper
done["replaced"] = now._process.pid != pid and now.able and not now.over

# One that hangs in the kernel is left there.
os.kill(helper._helper._process.pid, signal.SIGSTOP)
stopped = helper._helper
try:
    helper.attempt(["zfs", "hold", "tag", two], None, timeout_s=0.5)
    done["hangs"] = False
except IoFailed as error:
    done["hangs"] = "did not end" in str(error) and stopped.over
done["goes on"] = command.result(["zfs", "hold", "tag", two]).status == 0
zfs("release", "tag", two)
print(json.dumps([name for name, good in done.items() if not good]))
"""


@pytest.fixture
def name(zfs_guest: Guest) -> Iterator[str]:
    with zfs_guest.datasets() as made:
        yield made


def test_what_it_reads_is_to_the_letter_what_zfs_prints(zfs_guest: Guest, name: str) -> None:
    """Of all kinds of datasets and snapshots, and what is not there."""
    zfs_guest.run("zfs", "destroy", f"here/{name}")
    said = inside(zfs_guest, _READING, name)
    assert said["differ"] == []
    assert len(said["none"]) == 5  # what it does not know is left to `zfs`
    assert said["asked"] > 40


def test_what_it_does_is_done_and_what_it_cannot_is_left_to_zfs(
    zfs_guest: Guest, name: str
) -> None:
    """And nothing is changed by what it refuses; nobody notices that it was killed, or hangs."""
    zfs_guest.run("zfs", "create", f"here/{name}/home")
    assert inside(zfs_guest, _CHANGING, f"here/{name}/home") == []
