"""Each kind of pauser, on real cgroups, file systems, programs and virtual machines."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError, PauseFailed, UsageError
from mirrord.pausers import registry
from mirrord.pausers.hook import HookPauser
from mirrord.pausers.registry import checked, open_pauser
from tests.pausers.test_guard import order, started
from tests.support.btrfs import filesystem, unmount
from tests.support.cgroups import Cgroup, cgroup, top
from tests.support.service import takes_clients, until
from tests.support.unit import ROOT

SLEEP = "import time; time.sleep(100)"


@pytest.fixture
def app() -> Iterator[Cgroup]:
    with cgroup() as made:
        yield made


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cgroups:db.service", "Did you mean 'cgroup'?"),
        ("frozen:x", "kinds: none, cgroup, hook, fsfreeze, qmp, live"),
        ("db.service", "KIND:ARGUMENT"),
        ("cgroup:", "the name of a systemd unit"),
        ("cgroup:a/b", "the name of a systemd unit"),
        ("cgroup:/a/../b", "the name of a systemd unit"),
        ("hook:pause-db", "absolute path"),
        ("hook:", "absolute path"),
        ("fsfreeze:srv", "mount point"),
        ("qmp:vm", "QMP socket"),
        ("live:db.img", "path of an image"),
    ],
)
def test_a_malformed_pause(text: str, wanted: str) -> None:
    with pytest.raises(UsageError) as failure:
        checked(text)
    assert wanted in f"{failure.value} {failure.value.hint}"


def test_another_package_adds_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    added = EntryPoint("vsphere", "mirrord.pausers.hook:HookPauser", registry.GROUP)

    def found(*, group: str, name: str) -> list[EntryPoint]:
        return [added] if (group, name) == (added.group, added.name) else []

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    made = open_pauser("vsphere:/usr/bin/stun")
    assert isinstance(made, HookPauser) and str(made) == "vsphere:/usr/bin/stun"


# cgroup


def refusal(text: str, *written: Path) -> str:
    with pytest.raises(MirrordError) as failure, closing(open_pauser(text)) as pauser:
        pauser.lock_path()
        pauser.check(written)
    return f"{failure.value} {failure.value.hint}"


def test_a_cgroup_that_does_not_exist() -> None:
    assert "does not exist" in refusal("cgroup:no-such-unit.service")
    assert "does not exist" in refusal("cgroup:/no/such.service")


def test_the_root_cgroup() -> None:
    assert "the root cgroup" in refusal("cgroup:/")


def test_a_cgroup_that_somebody_froze(app: Cgroup) -> None:
    app.freeze(True)
    assert "frozen already" in refusal(f"cgroup:{app.name}")
    assert app.asked()


def test_two_cgroups_of_one_name(app: Cgroup) -> None:
    with cgroup() as other, cgroup("db.service", app) as one, cgroup("db.service", other) as two:
        found = refusal("cgroup:db.service")
        assert one.path in found and two.path in found
        with closing(open_pauser(f"cgroup:{two.path}")) as pauser:
            pauser.check([])


@pytest.mark.parametrize("above", [False, True])
def test_a_cgroup_that_has_mirrord_itself(app: Cgroup, above: bool) -> None:
    code = f"from tests.pausers.test_kinds import refusal; print(refusal('cgroup:{app.path}'))"
    with cgroup("inner", app) as inner:
        place = inner if above else app
        process = place.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
        assert "mirrord itself runs in it" in process.communicate()[0]


def test_a_process_that_waits_for_a_disk(app: Cgroup, tmp_path: Path) -> None:
    with ext4(tmp_path) as mount:
        subprocess.run(["fsfreeze", "-f", mount], check=True)
        try:
            process = app.python("import sys; open(sys.argv[1], 'w').write('x')", mount / "file")
            stat = Path(f"/proc/{process.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "D")
            guard = started(order(tmp_path / "r", f"cgroup:{app.name}", max_s=0.3))
            with pytest.raises(PauseFailed, match="state D") as failure:
                guard.pause()
            assert str(process.pid) in failure.value.why and "disk" in failure.value.hint
            guard.close()
            assert not app.asked()
        finally:
            subprocess.run(["fsfreeze", "-u", mount], check=True)
        process.wait(10)


def test_an_application_that_is_killed_while_frozen(app: Cgroup, tmp_path: Path) -> None:
    process = app.python(SLEEP)
    guard = started(order(tmp_path / "r", f"cgroup:{app.name}"))
    guard.pause()
    process.kill()
    process.wait(10)
    guard.resume()
    guard.close()


def test_a_service_that_is_restarted_while_frozen(app: Cgroup, tmp_path: Path) -> None:
    """Its new cgroup is not frozen: the snapshots are not of one moment."""
    process = app.python(SLEEP)
    guard = started(order(tmp_path / "r", f"cgroup:{app.name}"))
    guard.pause()
    process.kill()
    process.wait(10)
    until(lambda: not app.pids())
    app.folder.rmdir()
    app.folder.mkdir()
    with pytest.raises(PauseFailed, match="ended before the snapshots"):
        guard.resume()
    guard.close()


def test_somebody_thaws_it(app: Cgroup, tmp_path: Path) -> None:
    app.python(SLEEP)
    guard = started(order(tmp_path / "r", f"cgroup:{app.name}"))
    guard.pause()
    app.freeze(False)
    with pytest.raises(PauseFailed, match="ended before the snapshots"):
        guard.resume()
    guard.close()


def test_without_cgroup_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert top().is_dir()
    monkeypatch.setattr("mirrord.system.mounts.of_type", lambda _kind: [])
    assert "version 2 is not mounted" in refusal("cgroup:db.service")


@pytest.mark.parametrize("name", ["mirrord", "mirrord-agent"])
def test_the_services_may_freeze_cgroups(name: str) -> None:
    unit = (ROOT / f"packaging/{name}.service").read_text(encoding="utf-8")
    assert "\nProtectControlGroups=" not in unit and "\nProtectKernelTunables=yes" in unit


@pytest.mark.parametrize("name", ["mirrord", "mirrord-agent"])
def test_systemd_kills_no_guard_with_the_service(name: str) -> None:
    """With `mixed` all its processes get SIGKILL as soon as the first one is gone."""
    unit = (ROOT / f"packaging/{name}.service").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^KillMode=(.*)$", unit) == ["process"]


# fsfreeze


@contextmanager
def ext4(folder: Path) -> Iterator[Path]:
    image, mount = folder / "ext4.img", folder / "a mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        yield mount
    finally:
        unmount(mount)


def test_a_file_system_is_frozen(tmp_path: Path) -> None:
    with ext4(tmp_path) as mount:
        guard = started(order(tmp_path / "r", f"fsfreeze:{mount}"))
        guard.pause()
        writer = threading.Thread(target=(mount / "file").write_text, args=("x",))
        writer.start()
        time.sleep(0.2)
        assert writer.is_alive()
        guard.resume()
        writer.join(10)
        assert (mount / "file").read_text() == "x"
        guard.close()
        with closing(open_pauser(f"fsfreeze:{mount}")) as pauser:
            pauser.resume()  # not frozen: nothing happens


def test_other_file_systems_are_not_written_to_disk(tmp_path: Path) -> None:
    """One of them may be slow, or hang."""
    (tmp_path / "other").mkdir()
    with ext4(tmp_path) as mount, ext4(tmp_path / "other") as other:
        for _ in range(20):  # somebody else may sync everything meanwhile
            for folder in (mount, other):
                (folder / "file").write_bytes(os.urandom(1 << 20))
            with closing(open_pauser(f"fsfreeze:{mount}")) as pauser:
                pauser.check([])
            is_dirty = [_is_dirty(folder / "file") for folder in (mount, other)]
            assert not is_dirty[0]
            if is_dirty[1]:
                return
    pytest.fail("the other file system was written to disk each time")


def _is_dirty(file: Path) -> bool:
    """Whether it is in memory only: ext4 has chosen no place for it."""
    shown = subprocess.run(["filefrag", "-v", file], check=True, capture_output=True, text=True)
    return "delalloc" in shown.stdout


def test_a_file_system_that_somebody_else_thaws_was_not_paused(tmp_path: Path) -> None:
    with ext4(tmp_path) as mount:
        guard = started(order(tmp_path / "r", f"fsfreeze:{mount}"))
        guard.pause()
        subprocess.run(["fsfreeze", "-u", mount], check=True)
        with pytest.raises(PauseFailed, match="ended before the snapshots were taken"):
            guard.resume()
        guard.close()
        (mount / "file").write_text("x")


def test_file_systems_that_cannot_be_frozen(tmp_path: Path) -> None:
    assert "not a mount point" in refusal(f"fsfreeze:{tmp_path}")
    with ext4(tmp_path) as mount:
        assert f"{mount}/new/file is on it" in refusal(f"fsfreeze:{mount}", mount / "new/file")
        subprocess.run(["fsfreeze", "-f", mount], check=True)
        guard = started(order(tmp_path / "r", f"fsfreeze:{mount}"))
        with pytest.raises(PauseFailed, match="frozen already"):
            guard.pause()
        guard.close()
        subprocess.run(["fsfreeze", "-u", mount], check=True)  # fails unless it still is
    with filesystem(size_mib=256) as mount:
        found = refusal(f"fsfreeze:{mount}")
        assert "it would wait for the thaw" in found and "cgroup:UNIT" in found


def test_the_name_of_a_dataset_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent passes the locations of all volumes, which for ZFS are names."""
    with ext4(tmp_path) as mount:
        monkeypatch.chdir(mount)
        try:
            with closing(open_pauser(f"fsfreeze:{mount}")) as pauser:
                pauser.check([Path("tank/data")])
        finally:
            monkeypatch.undo()


def test_a_zfs_file_system_cannot_be_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrord.system.mounts.type_at", lambda _path: "zfs")
    found = refusal(f"fsfreeze:{tmp_path}")
    assert "a ZFS file system cannot be frozen" in found and "cgroup:UNIT" in found


# hook


def test_a_program_that_hangs(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $1 $2 >> {tmp_path}/log\n[ $2 = resume ] || sleep 60\n")
    program.chmod(0o755)
    guard = started(order(tmp_path / "r", f"hook:{program} orders", max_s=0.3))
    began_s = time.monotonic()
    with pytest.raises(PauseFailed, match=r"did not end within 0\.27 s"):
        guard.pause()
    guard.close()
    assert time.monotonic() - began_s < 5
    assert (tmp_path / "log").read_text().splitlines() == ["orders pause", "orders resume"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert "not installed" in refusal(f"hook:{tmp_path}/none")
    (tmp_path / "none").touch(mode=0o644)
    assert "not an executable file" in refusal(f"hook:{tmp_path}/none")


# qmp


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A virtual machine without disks, run by the QEMU of the tests' machine."""
    found = sorted(Path.home().glob(".cache/mirrord/zfsvm/*/qemu/usr/bin/qemu-system-x86_64"))
    if not found:
        pytest.skip("needs the QEMU of the machine that has OpenZFS")
    path = tmp_path / "qmp"
    words = [str(found[-1]), "-machine", "none", "-nodefaults", "-display", "none", "-accel", "tcg"]
    folders = [str(found[-1].parents[2] / place) for place in ("usr/lib/x86_64-linux-gnu",)]
    process = subprocess.Popen(
        [*words, "-qmp", f"unix:{path},server=on,wait=off"],
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(folders)},
    )
    try:
        until(lambda: takes_clients(path))
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def machine(emulator: subprocess.Popen[bytes], tmp_path: Path) -> Path:
    """Its QMP socket."""
    return tmp_path / "qmp"


@pytest.mark.zfs
def test_a_virtual_machine_is_stopped(machine: Path, tmp_path: Path) -> None:
    guard = started(order(tmp_path / "r", f"qmp:{machine}"))
    [confirm_s] = guard.pause()
    assert confirm_s < 5
    guard.resume()
    guard.close()
    with closing(open_pauser(f"qmp:{machine}")) as pauser:
        pauser.check([])
        pauser.pause(5)
        assert pauser.is_paused()
    assert "its status is 'paused'" in refusal(f"qmp:{machine}")
    with closing(open_pauser(f"qmp:{machine}")) as pauser:
        pauser.resume()
        pauser.check([])


@pytest.mark.zfs
def test_a_virtual_machine_that_stops_too_late_is_continued(
    emulator: subprocess.Popen[bytes], machine: Path
) -> None:
    with closing(open_pauser(f"qmp:{machine}")) as pauser:
        pauser.check([])
        emulator.send_signal(signal.SIGSTOP)
        with pytest.raises(PauseFailed, match="does not answer"):
            pauser.pause(0.3)
        emulator.send_signal(signal.SIGCONT)
        pauser.resume()
        assert not pauser.is_paused()
    with closing(open_pauser(f"qmp:{machine}")) as pauser:
        pauser.check([])  # it runs


@pytest.mark.parametrize("said", [b'{"event": "X"}\n', b"x", b"[" * 100_000 + b"\n"])
def test_a_virtual_machine_that_never_answers_is_given_up(tmp_path: Path, said: bytes) -> None:
    ended = threading.Event()
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "qmp"))
        server.listen()

        def talk() -> None:
            with server.accept()[0] as made, suppress(OSError):
                while not ended.wait(0.05):
                    made.sendall(said)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        timer = threading.Timer(20, ended.set)
        timer.start()
        began_s = time.monotonic()
        with (
            closing(open_pauser(f"qmp:{tmp_path}/qmp")) as pauser,
            pytest.raises(PauseFailed, match="does not answer"),
        ):
            pauser.check([])
        assert time.monotonic() - began_s < 15
        ended.set()
        timer.cancel()
        thread.join()


def test_no_virtual_machine(tmp_path: Path) -> None:
    assert "does not answer" in refusal(f"qmp:{tmp_path}/none")
    open_pauser(f"qmp:{tmp_path}/none").resume()  # it has ended: there is nothing to do
