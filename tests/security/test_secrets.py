"""Keys and tokens: who can read them, and whether anything tells them."""

from __future__ import annotations

import os
import re
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mirrord.admin.pki import Authority
from mirrord.config.peers import Peers
from mirrord.core.errors import MirrordError
from mirrord.core.model import ReceiveRequest
from mirrord.drivers.btrfs.driver import BtrfsDriver
from mirrord.transport import ssh_keys
from tests.security.sentences import breaks
from tests.security.world import MIRROR, Host, stream_of
from tests.support.agents import agents
from tests.support.service import ServiceProcess


def modes(folder: Path) -> dict[str, int]:
    found = {}
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


@breaks("K2")
def test_keys_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ssh_keys.make(tmp_path / "keys/dr", "mirrord-dr")
        authority = Authority(tmp_path / "pki")
        authority.init()
        peers = Peers(tmp_path / "peers.d")
        authority.issue("one", ["receive=/b"], tmp_path / "pki/one.pem", peers)
    finally:
        os.umask(before)
    for folder in ("keys", "pki", "peers.d"):
        found = modes(tmp_path / folder)
        assert len(found) > 1
        for path, mode in found.items():
            assert mode == (0o700 if path == "." else 0o600), path


@breaks("K5", "K6")
def test_what_an_agent_makes_is_its_users_alone(host: Host, root: Path) -> None:
    (root / "home/big").write_bytes(os.urandom(12 << 20))
    source = BtrfsDriver(str(root / "home"))
    snapshot = source.take_snapshot("s1")
    data, backup = stream_of(source, snapshot), root / "backup/home"
    with host.peer("--allow", f"receive={root / 'backup'}", umask="000") as peer:
        there = peer.volume(backup)
        there.prepare(MIRROR)
        with there.receive(
            ReceiveRequest("t1", MIRROR, None, snapshot, resumable=True)
        ) as receiver:
            receiver.write(data[: 8 << 20])
        store = modes(backup / ".mirrord/current")
        for path in ("checkpoints", "checkpoints/t1", "staging", "swap", "diverged"):
            assert store[path] == 0o700, path
        assert store["checkpoints/t1/record"] == 0o600
        received = "checkpoints/t1/snapshots/1/"  # with the modes of the source
        ours = {path: mode for path, mode in store.items() if not path.startswith(received)}
        assert len(ours) < len(store)
        assert not [path for path, mode in ours.items() if mode & 0o022]
        peer.volume(root / "backup/block", "block").prepare(MIRROR)
        for path, mode in modes(root / "backup/block").items():
            assert path == "." or not mode & 0o077, path
        run = modes(host.home / "run")
        assert run.pop(".") == run.pop("agents") == 0o700
        assert len(run) == 1 and not [path for path, mode in run.items() if mode & 0o077]


@breaks("K7")
def test_nothing_tells_a_secret(host: Host, root: Path) -> None:
    """Neither a command line, an environment, sshd's log nor an error has a key or a token."""
    said = []
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        token = peer.link._token
        key = re.sub(r"-----.*-----|\s", "", host.sshd.key.read_text())
        for entry in os.listdir("/proc"):
            for name in ("cmdline", "environ", "comm"):
                try:
                    said.append(Path("/proc", entry, name).read_bytes().decode(errors="replace"))
                except OSError:
                    continue
        for path in ("/etc", root / "private", "\0"):
            with pytest.raises(MirrordError) as caught:
                peer.open(path)
            said.append(str(caught.value.as_dict()))
        said += [repr(peer.link.host), str(peer.link.notes)]
    said.append((host.sshd.folder / "log").read_text())
    whole = "\n".join(said)
    assert "mirrord" in whole
    assert token not in whole
    assert key[100:140] not in whole and "BEGIN PRIVATE KEY" not in whole


@breaks("K7")
def test_no_process_leaves_a_core_dump(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        with agents(tmp_path) as made:
            made.session().call("ping")
            limits = Path(f"/proc/{made.processes[-1].pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    [line] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4] == "0"
    for unit in (Path(__file__).parents[2] / "packaging").glob("*.service"):
        assert "\nLimitCORE=0\n" in unit.read_text()


@breaks("N1")
def test_a_line_without_the_command_is_a_login(host: Host, root: Path) -> None:
    host.sshd.authorize()
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", "-i", str(host.sshd.key), "-p", str(host.sshd.port),
         "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR",
         "-o", "UserKnownHostsFile=/dev/null", "127.0.0.1", f"cat {root}/private/secret"],
        capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.stdout == b"nobody's business"
    with host.peer() as peer:
        assert peer.link.peer.about == "everything (no --allow)"
        assert peer.volume(root / "home").facts().identity


@breaks("K1")
def test_the_key_gets_the_agent_and_nothing_else(host: Host, root: Path) -> None:
    host.sshd.authorize(host.line("--allow", f"receive={root / 'backup'}"))
    ssh = ["ssh", "-F", "/dev/null", "-i", str(host.sshd.key), "-p", str(host.sshd.port),
           "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
           "-o", "ExitOnForwardFailure=yes", "-o", "UserKnownHostsFile=/dev/null",
           "-o", "LogLevel=ERROR"]  # fmt: skip
    secret = root / "private/secret"
    for words in (
        ["127.0.0.1", f"cat {secret}"],
        ["127.0.0.1", f"mirrord agent; cat {secret}"],
        ["127.0.0.1", "mirrord agent --allow receive=/"],
        ["-tt", "127.0.0.1"],
        ["-s", "127.0.0.1", "sftp"],
        ["-W", f"127.0.0.1:{host.sshd.port}", "127.0.0.1"],
        ["-N", "-R", "0:127.0.0.1:9", "127.0.0.1"],
    ):
        done = subprocess.run(
            [*ssh, *words], input=b"GET\n", capture_output=True, timeout=90, check=False
        )
        assert done.returncode != 0, words
        assert b"nobody's business" not in done.stdout and b"SSH-2.0" not in done.stdout, words
    # Whatever is asked for, the bounds are those of the line.
    with host.peer("--allow", f"receive={root / 'backup'}") as peer:
        assert peer.link.peer.about == f"receive={root / 'backup'}"


@breaks("K3")
@pytest.mark.usefixtures("root")  # it needs root as that does
def test_another_user_cannot_use_the_services_sockets(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    service = ServiceProcess(tmp_path / "home").start()
    try:
        for path in (service.paths.act_socket, service.paths.read_socket):
            tried = subprocess.run(
                [sys.executable, "-c", "import os, socket, sys\nos.setgid(65534)\n"
                 "os.setgroups([])\nos.setuid(65534)\n"
                 "socket.socket(socket.AF_UNIX).connect(sys.argv[1])", str(path)],
                capture_output=True, text=True, timeout=90, check=False,
            )  # fmt: skip
            assert "PermissionError" in tried.stderr
    finally:
        service.stop()
