"""A real sshd of the tests' own: an ordinary process with its own keys and configuration."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mirrord.core.model import RemoteHost
from mirrord.transport.known_hosts import fingerprint
from tests.support.ports import free_port

USER = getpass.getuser()


def make_key(file: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    """A private key made by ssh-keygen, and `file`.pub."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(file)], check=True
    )
    return file


class Sshd:
    """A server with one authorized key, `key`. Its folder must not be there yet."""

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        kinds: Sequence[str] = ("ed25519",),
        within: Sequence[str] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """options: more lines of sshd_config. kinds: of host keys. within: words before the
        command line, such as those of `ip netns exec`.
        """
        self.folder, self.address, self._within = folder, address, within
        folder.mkdir(parents=True)
        self.key = make_key(folder / "id")
        self.host_keys = [make_key(folder / f"host_{kind}", kind=kind) for kind in kinds]
        self.authorized = folder / "authorized_keys"
        self.authorize()
        self._options = list(options)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def authorize(self, options: str = "", key: Path | None = None) -> None:
        """Let `key` in, with these options (`command="…"`), and no other."""
        public = Path(f"{key or self.key}.pub").read_text()
        self.authorized.write_text(f"{options} {public}".lstrip())

    def start(self) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for _ in range(5):
            self.port = self.port or free_port()
            if self._started():
                return self
            self.port = 0
        raise AssertionError((self.folder / "log").read_text())

    def _started(self) -> bool:
        config = self.folder / "sshd_config"
        lines = [
            *self._options,
            f"ListenAddress {self.address}:{self.port}",
            *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {self.authorized}",
            "PidFile none", "UsePAM no", "StrictModes no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin yes", "MaxStartups 100",
            *_without_penalties(),
        ]  # fmt: skip
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._within, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, (self.folder / "log").read_text()
            if f"port {self.port}" in (self.folder / "log").read_text():
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """End it, and what serves its connections: one whose peer fell silent would stay."""
        if self.process is not None:
            sessions = self.sessions()
            for number in [*sessions, *(one for each in sessions for one in _children(each))]:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    @property
    def fingerprint(self) -> str:
        """That of its first host key."""
        import base64

        public = Path(f"{self.host_keys[0]}.pub").read_text().split()
        return fingerprint(base64.b64decode(public[1]))

    def known_hosts_line(self, name: str = "") -> str:
        """The line of known_hosts for its first host key."""
        public = Path(f"{self.host_keys[0]}.pub").read_text().split()
        return f"{name or f'[{self.address}]:{self.port}'} {public[0]} {public[1]}\n"

    def host(self, **changes: object) -> RemoteHost:
        """Settings that reach it: its fingerprint pinned, its key, `cat` as the program."""
        made = RemoteHost(
            "dr",
            self.address,
            port=self.port,
            user=USER,
            key=str(self.key),
            fingerprint=self.fingerprint,
            command=("cat",),
        )
        return made._replace(**changes)  # type: ignore[arg-type]

    def sessions(self) -> list[int]:
        """Processes of its that serve a connection."""
        assert self.process is not None
        return _children(self.process.pid)


def _children(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []  # it has ended
    return [int(word) for word in found.split()]


@cache
def _without_penalties() -> tuple[str, ...]:
    """From 9.8 on OpenSSH refuses a host after some failures, of which tests make many."""
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    version = re.match(r"OpenSSH_(\d+)\.(\d+)", said)
    is_new = version is not None and tuple(map(int, version.groups())) >= (9, 8)
    return ("PerSourcePenalties no",) if is_new else ()


@contextmanager
def running(
    folder: Path, *, options: Sequence[str] = (), kinds: Sequence[str] = ("ed25519",)
) -> Iterator[Sshd]:
    """A server for a block of code."""
    made = Sshd(folder, options=options, kinds=kinds).start()
    try:
        yield made
    finally:
        made.stop()
