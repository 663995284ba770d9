"""The other host of `benchmarks.remote`: a network namespace with its own real sshd."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import filesystem, folder, need, run, service
from mirrord.config.hosts import render
from mirrord.control.shared import Shared
from mirrord.core.model import RemoteHost
from mirrord.core.results import Watcher
from tests.support.sshd import Sshd
from tests.support.verbs import Service

HERE, THERE = "10.203.11.1", "10.203.11.2"


class Stage(NamedTuple):
    """one, two: local and remote btrfs. near: the link's local end. host: the remote host."""

    inside: Path
    one: Path
    two: Path
    sshd: Sshd
    near: str
    host: RemoteHost
    shared: Shared

    def service(self, watcher: Watcher | None = None) -> Service:
        """A service with this stage's folders; several may be used at the same time."""
        return Service(service(self.inside).paths, watcher, self.shared)

    def describe(self, host: RemoteHost) -> None:
        """Write a host's file, for endpoints that refer to it."""
        folder = self.service().paths.hosts
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{host.name}.toml").write_text(render(host))

    def ssh(self) -> list[str]:
        """The command line of a plain ssh to the other end."""
        return [str(self.inside / "bin" / "ssh"), "-i", str(self.sshd.key), f"root@{THERE}"]

    def variables(self) -> dict[str, str]:
        """An environment in which `ssh` knows the other end, and `mirrord` uses these folders."""
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = f"{self.inside / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"
        return {**kept, "PATH": path, "MIRRORD_HOME": str(self.inside / "mirrord")}

    def btrbk(self, name: str, subvolumes: list[str], keep: str = "latest") -> list[str]:
        """The command line of a run of btrbk from `one` to `two` over the same ssh."""
        (self.one / f"{name}-snapshots").mkdir()
        (self.two / name).mkdir()
        lines = [
            "timestamp_format long-iso", f"ssh_identity {self.sshd.key}", "ssh_user root",
            f"snapshot_preserve_min {keep}", f"target_preserve_min {keep}", "target_preserve 3h",
            f"volume {self.one}", f"  snapshot_dir {name}-snapshots",
            f"  target ssh://{THERE}{self.two / name}",
            *(f"  subvolume {each}" for each in subvolumes),
        ]  # fmt: skip
        config = self.inside / f"{name}.conf"
        config.write_text("\n".join(lines) + "\n")
        return [need("btrbk", "btrbk"), "-c", str(config), "run"]

    def run(self, words: list[str]) -> None:
        """Run a program in that environment; raises when it fails."""
        subprocess.run(words, env=self.variables(), check=True, capture_output=True)

    def cut(self, *agents: int) -> None:
        """Cut the connection and kill these agents, as in a power failure of that host."""
        for pid in [*agents, *self.sshd.sessions()]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def processor_s(self) -> float:
        """Processor time of this process and of the agents, with the programs that they ran."""
        used = sum(os.times()[:4])
        waiting = self.sshd.sessions()
        while waiting:
            pid = waiting.pop()
            with suppress(OSError):  # it has just ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                waiting += map(int, children.split())
        return used

    @contextmanager
    def rate(self, bits: int) -> Iterator[None]:
        """Limit the link to that rate, towards the other end."""
        limit = ["rate", f"{bits}bit", "burst", str(bits // 2000), "latency", "50ms"]
        run("tc", "qdisc", "add", "dev", self.near, "root", "tbf", *limit)
        try:
            yield
        finally:
            run("tc", "qdisc", "del", "dev", self.near, "root")


@contextmanager
def stage(size_gib: int = 6) -> Iterator[Stage]:
    """Both file systems, the namespace, its sshd; everything is removed afterwards."""
    need("ip", "iproute2")
    with (
        folder() as inside,
        filesystem(inside, "one", size_gib) as one,
        filesystem(inside, "two", size_gib) as two,
        _namespace() as (near, words),
    ):
        sshd = Sshd(inside / "sshd", within=words, address=THERE)
        sshd.port = 22
        sshd.start()
        shared = Shared()
        try:
            _known_ssh(inside, sshd)
            program = [str(Path(sys.executable).with_name("mirrord")), "agent"]
            command = ("env", f"MIRRORD_HOME={inside}/there", *program)
            host = sshd.host(name="dr", command=command)
            made = Stage(inside, one, two, sshd, near, host, shared)
            made.describe(host)
            yield made
        finally:
            shared.links.close()
            for pid in sshd.sessions():
                with suppress(ProcessLookupError):
                    os.kill(pid, 15)
            sshd.stop()


@contextmanager
def _namespace() -> Iterator[tuple[str, list[str]]]:
    """The near device, and the command prefix to run in the other namespace."""
    name = f"mrr{os.getpid()}"
    near = f"{name}n"
    run("ip", "netns", "add", name)
    words = ["ip", "netns", "exec", name]
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", "far0", "netns", name)
        run("ip", "addr", "add", f"{HERE}/24", "dev", near)
        run("ip", "link", "set", near, "up")
        run(*words, "ip", "addr", "add", f"{THERE}/24", "dev", "far0")
        run(*words, "ip", "link", "set", "far0", "up")
        run(*words, "ip", "link", "set", "lo", "up")
        yield near, words
    finally:
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)
        run("ip", "netns", "del", name)


def _known_ssh(inside: Path, sshd: Sshd) -> None:
    """An `ssh` that knows the server, without any user's known_hosts."""
    (inside / "known").write_text(sshd.known_hosts_line(THERE))
    (inside / "bin").mkdir()
    program = inside / "bin" / "ssh"
    options = f"-F none -o UserKnownHostsFile={inside / 'known'} -o StrictHostKeyChecking=yes"
    program.write_text(f'#!/bin/sh\nexec {need("ssh", "openssh-client")} {options} "$@"\n')
    program.chmod(0o755)
