"""Another host for the demo: a network namespace with an sshd of its own, or one on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

from mirrord.cli.demo.places import must
from mirrord.cli.demo.terminal import kill_processes
from mirrord.core.errors import IoFailed, MirrordError
from mirrord.system import clock, command

_STARTED_S = 10.0
_TIMEOUT_S = 30.0
_SSHD_HINT = "Install the package openssh-server (Debian: apt-get install openssh-server)."


class OtherHost:
    """An sshd that nobody else uses: its own keys, its own authorized_keys, its own port."""

    def __init__(self, folder: Path, *, namespaced: bool) -> None:
        """namespaced: in a network of its own (which needs root), else on loopback."""
        self._namespaced = namespaced
        self._folder = folder / "other-host"
        self._name = f"mirrord-demo-{os.getpid()}"
        self._link = f"md{os.getpid() % 100_000}"
        # Two demos at the same time rarely get the same network.
        self._here, self._there = (f"10.203.{os.getpid() % 256}.{last}" for last in (1, 2))
        self._within: list[str] = []
        self._ip = ""
        self._sshd: command.Process | None = None
        self.address, self.port = "127.0.0.1", 0
        self.authorized = self._folder / "authorized_keys"
        #: What is run there: this very mirrord, with folders of its own.
        self.command = [
            shutil.which("env") or "env", f"MIRRORD_HOME={self._folder / 'mirrord'}",
            sys.executable, "-m", "mirrord", "agent",
        ]  # fmt: skip

    def make(self) -> str:
        """Make it; says what it is."""
        sshd = command.find("sshd", hint=_SSHD_HINT)
        self._folder.mkdir()
        for name in ("host_key", "unused"):
            must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        self.authorized.touch(mode=0o600)
        where = "an sshd of the demo's own on 127.0.0.1"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        if self._namespaced:
            try:
                self._make_namespace()
                where = f"a network namespace of its own with an sshd in it, at {self._there}"
            except MirrordError as error:
                print(
                    f"(network namespaces are not available: {error}; using an sshd on loopback)\n"
                )
        self._start(sshd)
        return where

    def _make_namespace(self) -> None:
        self._ip = command.find("ip", hint="Install the package iproute2.")
        must("ip", "netns", "add", self._name)
        inside = ("ip", "netns", "exec", self._name)
        peer = f"{self._link}p"
        must("ip", "link", "add", self._link, "type", "veth", "peer", "name", peer)
        must("ip", "link", "set", peer, "netns", self._name)
        must("ip", "address", "add", f"{self._here}/30", "dev", self._link)
        must("ip", "link", "set", self._link, "up")
        must(*inside, "ip", "address", "add", f"{self._there}/30", "dev", peer)
        must(*inside, "ip", "link", "set", peer, "up")
        must(*inside, "ip", "link", "set", "lo", "up")
        self._within = [self._ip, *inside[1:]]
        self.address = self._there

    def _start(self, sshd: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = self._folder / "sshd_config"
        config.write_text(
            f"ListenAddress {self.address}:{self.port}\nHostKey {self._folder}/host_key\n"
            f"AuthorizedKeysFile {self.authorized}\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        )
        log = self._folder / "sshd.log"
        with log.open("ab") as file:
            self._sshd = command.start(
                [*self._within, sshd, "-D", "-e", "-f", str(config)],
                stdin=command.NO_INPUT, stderr=file.fileno(),
            )  # fmt: skip
        deadline_s = clock.monotonic_s() + _STARTED_S
        while "listening" not in log.read_text():
            if self._sshd.poll() is not None or clock.monotonic_s() > deadline_s:
                raise IoFailed("the demo's sshd did not start", why=log.read_text()[-300:].strip())
            clock.sleep_s(0.02)

    @property
    def fingerprint(self) -> str:
        """Of its host key, as a person reads it there."""
        return must("ssh-keygen", "-lf", str(self._folder / "host_key.pub")).split()[1]

    def settings(self) -> str:
        """What hosts.d says beyond what `mirrord host add` is told."""
        return f"command = {json.dumps(self.command)}\n"

    def cut(self) -> None:
        """Everything that it serves us is gone at once, without a word; it takes new log-ins."""
        kill_processes(self._folder / "mirrord")

    def close(self) -> None:
        """End it, and remove what was made for it."""
        self.cut()
        if self._sshd is not None and self._sshd.poll() is None:
            self._sshd.terminate()
            self._sshd.wait(_TIMEOUT_S)
        if self._ip:
            command.run([self._ip, "link", "delete", self._link], timeout_s=_TIMEOUT_S)
            command.run([self._ip, "netns", "delete", self._name], timeout_s=_TIMEOUT_S)
