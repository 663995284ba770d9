"""A mirror of three btrfs volumes on two hosts, which are namespaces with an sshd each. Their
destinations are on both hosts, too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mirrord.config.hosts import render
from tests.pausers.conftest import NAME, VOLUMES, Group
from tests.support import btrfs
from tests.support.cgroups import Cgroup, cgroup
from tests.support.netns import Namespace, namespace
from tests.support.service import until
from tests.support.sshd import Sshd
from tests.support.stripes import FILE, WRITER_OF_TWO
from tests.support.unit import ROOT

#: The host of each volume.
AT = {"a": "one", "b": "one", "c": "two"}
HOSTS = ("one", "two")


class Hosts(Group):
    """See above. apps: of each host."""

    #: The destinations are on the host that controls the mirror.
    copies_here = False

    def __init__(
        self, home: Path, here: Path, there: Path, apps: dict[str, Cgroup],
        networks: dict[str, Namespace],
    ) -> None:  # fmt: skip
        self.apps, self.networks = apps, networks
        self.sshds: dict[str, Sshd] = {}
        super().__init__(home, here, there, apps["one"])
        self.paths.hosts.mkdir(parents=True)
        for host, network in networks.items():
            # `ip netns exec` would hide the cgroups.
            within = ("nsenter", f"--net=/run/netns/{network.name}")
            self.sshds[host] = Sshd(home / host, within=within, address=network.there).start()
            self.allow(host, *self.rules(host))

    def allow(self, host: str, *rules: str, code: str = "") -> None:
        """Set what the agent there may do. code: run by it first."""
        words = [word for rule in rules for word in ("--allow", rule)]
        given = f"MIRRORD_HOME={self.agent_home(host)}", f"PYTHONPATH={ROOT}"
        program: tuple[str, ...] = (sys.executable, "-m", "mirrord")
        if code:
            file = self.home / f"agent-{host}.py"
            file.write_text(f"{code}\nfrom mirrord.cli.main import main\nmain()\n")
            program = (sys.executable, str(file))
        command = ("exec", "env", *given, *program, "agent", *words)
        made = self.sshds[host].host(name=host, command=command, data="ssh", connect_s=10.0)
        (self.paths.hosts / f"{host}.toml").write_text(render(made))
        self.service.shared.links.close()

    def rules(self, host: str) -> tuple[str, ...]:
        """What the agent there may do at first."""
        return f"send={self.here}", f"receive={self.there}", f"pause=cgroup:{self.apps[host].path}"

    def agent_home(self, host: str) -> Path:
        return self.home / f"agent-{host}"

    def create(self, **options: object) -> None:
        there = {one: "btrfs:" if self.copies_here else f"btrfs://{AT[one]}" for one in VOLUMES}
        ends = tuple(
            f"btrfs://{AT[one]}{self.here / one}={there[one]}{self.there / one}" for one in VOLUMES
        )
        self.service.create(NAME, members=ends, **options)  # type: ignore[arg-type]

    def paused(self, pause_max: str = "5s") -> None:
        """Create it, with a pause of the application of each host."""
        self.create()
        file = self.service.definitions.file(NAME)
        text = file.read_text()
        for name, host in AT.items():
            line = f'name = "{name}"'
            text = text.replace(line, f'{line}\npause = "cgroup:{self.apps[host].path}"')
        file.write_text(f'pause_max = "{pause_max}"\npause_alarm = "{pause_max}"\n{text}')

    def write(self, few: int = 2, *, flags: int = 0) -> None:
        """Start the writers of both hosts."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for host, first, end in (("one", 0, ours), ("two", 2, theirs)):
                files = [str(self.here / one / FILE) for one in VOLUMES if AT[one] == host]
                numbers = (str(first), str(end.fileno()), str(few), str(flags))
                words = [sys.executable, "-c", WRITER_OF_TWO, *numbers, *files]
                self.apps[host].run(words, pass_fds=[end.fileno()])
        until(lambda: (self.here / "c" / FILE).stat().st_size > 0)

    def any_asked(self) -> bool:
        """Whether any application is to be frozen."""
        return any(app.asked() for app in self.apps.values())

    def records(self) -> list[Path]:
        """The records of pauses on both hosts."""
        return [one for host in HOSTS for one in self.agent_home(host).rglob("*.paused")]

    def processes(self, host: str, word: str) -> list[int]:
        """The agents (`agent`) or guards (`mirrord.pausers.guard`) on a host."""
        wanted = f"MIRRORD_HOME={self.agent_home(host)}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    entry.name.isdigit()
                    and wanted in (entry / "environ").read_bytes().split(b"\0")
                    and word.encode() in (entry / "cmdline").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
        return found

    def kill(self, host: str, word: str) -> None:
        """See `processes`."""
        for pid in self.processes(host, word):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.service.close()
        self.service.shared.links.close()
        for host, sshd in self.sshds.items():
            self.kill(host, "agent")
            sshd.stop()


@contextmanager
def hosts(home: Path) -> Iterator[Hosts]:
    """See above."""
    with ExitStack() as stack:
        here, there = stack.enter_context(btrfs.folders())
        apps = {host: stack.enter_context(cgroup()) for host in HOSTS}
        first = 20 + 2 * (os.getpid() % 40)  # runs beside each other have addresses of their own
        networks = {
            host: stack.enter_context(namespace(first + number))
            for number, host in enumerate(HOSTS)
        }
        made = Hosts(home, here, there, apps, networks)
        stack.callback(made.close)
        for app in apps.values():
            stack.callback(app.remove)
        yield made
