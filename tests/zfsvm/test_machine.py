"""The machine that the ZFS tests run on: it is real, it stays as it was built, and it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrord.config.hosts import render
from mirrord.core.errors import LinkLost
from mirrord.system.paths import Paths
from tests.contract.zfs import zfs_lab
from tests.support.service import until
from tests.support.verbs import Service
from tests.zfsvm import builder, inside, session
from tests.zfsvm.agents import guest_agents, new_home, ssh_host
from tests.zfsvm.guest import ROOT, Guest, GuestError
from tests.zfsvm.qemu import NoMachine

pytestmark = pytest.mark.zfs


def test_it_has_real_openzfs_with_two_pools(zfs_guest: Guest) -> None:
    assert zfs_guest.run("zfs", "version").startswith("zfs-2.")
    listed = zfs_guest.run("zpool", "list", "-Hpo", "name,health").splitlines()
    assert {"here\tONLINE", "there\tONLINE"} <= set(listed)


def test_a_users_work_is_seen_and_depends_on_the_seed(zfs_guest: Guest) -> None:
    with zfs_guest.datasets() as name:
        folder = f"/here/{name}"
        zfs_guest.user("fill", folder, 1)
        digests = [zfs_guest.user("digest", folder)]
        for seed in (1, 2):
            zfs_guest.user("change", folder, seed)
            digests.append(zfs_guest.user("digest", folder))
        assert len(set(digests)) == 3
        assert zfs_guest.user("digest", folder) == digests[-1]
    with zfs_guest.datasets() as other:
        assert other != name, "nobody meets what another test left"


def test_what_fails_in_it_is_said_here(zfs_guest: Guest) -> None:
    with pytest.raises(GuestError, match="dataset does not exist"):
        zfs_guest.run("zfs", "list", "here/nowhere")
    with pytest.raises(GuestError, match="FileNotFoundError"):
        zfs_guest.user("digest", "/nowhere")


def test_an_agent_in_it_answers_and_ends_with_its_client(zfs_guest: Guest) -> None:
    with guest_agents(zfs_guest) as others:
        first = others.session()
        first.call("ping")
        others.kill()
        assert zfs_guest.user("gone", others.pids[0])
        with pytest.raises(LinkLost):
            while True:  # until it is noticed
                first.call("ping")
        others.session().call("ping")
        assert len(others.pids) == 2


def test_an_agent_in_it_finds_loaded_what_it_needs(zfs_guest: Guest) -> None:
    """Otherwise each of hundreds loads it, which takes most of a second under emulation."""
    with zfs_lab(volume=False, large=False) as lab:
        assert lab.source().facts().view
        lab.others.close()
        [pid] = lab.others.pids
        assert zfs_guest.user("read_text", f"{inside.LATE}{pid}") == ""


def test_the_product_reaches_it_by_its_own_ssh(zfs_guest: Guest, tmp_path: Path) -> None:
    """A mirror of a volume's image between two folders in the machine, driven from here."""
    paths = Paths(*(tmp_path / part for part in ("etc", "state", "run")))
    paths.hosts.mkdir(parents=True)
    host = ssh_host(zfs_guest, new_home())
    (paths.hosts / "there.toml").write_text(render(host))
    places = [f"block://there/var/tmp/{tmp_path.name}/{end}" for end in ("source", "copy")]
    made = "import sys, pathlib; from mirrord.drivers.block.volume import Volume as V; "
    made += "p = pathlib.Path(sys.argv[1]); p.parent.mkdir(parents=True); "
    made += "v = V.create(p, 1 << 24); v.write(0, b'x' * 99999); v.close()"
    place = places[0].removeprefix("block://there")
    zfs_guest.run(
        "env", "PYTHONPATH=/opt/mirrord/tree", "/opt/mirrord/bin/python", "-c", made, place
    )
    service = Service(paths)
    try:
        service.create("m", *places)
        service.initialize("m")
        assert service.status("m")[0].state == "mirrored"
    finally:
        service.close()
        service.shared.links.close()


STARTS = """
import sys, time
from tests.zfsvm.machine import Machine
machine = Machine(name="short", memory_mib=512)
machine._await_ssh = lambda until: None
machine.start()
print(machine.pid, machine.folder, flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_process_that_started_it_however_that_ends() -> None:
    builder.build()
    owner = subprocess.Popen([sys.executable, "-c", STARTS], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        pid, folder = owner.stdout.readline().decode().split()
    image = (builder.folder() / "root.img").stat()
    # Where `Popen` returns, `setpriv` may still be about to ask for the signal: only once it has
    # become QEMU (whose name is among its own arguments, too) is it certain that it did.
    until(lambda: "qemu" in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0])
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), 10, what="it outlived its owner")
    after = (builder.folder() / "root.img").stat()
    assert (image.st_mtime_ns, image.st_size) == (after.st_mtime_ns, after.st_size)
    left = {file.name: file.stat().st_blocks for file in Path(folder).iterdir()}
    # (QEMU unlinks the file for what is written to the image as soon as it has opened it.)
    kept = {name for name in left if not name.startswith("vl.")}
    assert kept <= {"blank", "console", "qemu.log"} and left["blank"] == 0
    subprocess.run(["rm", "-r", folder], check=True)


def test_why_there_is_none_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without debootstrap and an empty cache: each test fails, the report says why."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builder, "_TOOLS", ("debootstrap-is-not-here",))
    kept = session._Kept("none")
    for _ in range(2):
        with pytest.raises(NoMachine, match="missing here: debootstrap-is-not-here"):
            kept.get()
    monkeypatch.setattr(session, "_first", kept)
    well, lines = session.summary()
    assert not well and lines[0].startswith("REAL OPENZFS WAS NOT TESTED")
    assert os.listdir(tmp_path / "mirrord" / "zfsvm") == ["lock"]
