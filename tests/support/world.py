"""A mirror called `home` between the two places of a lab, driven through the control API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from mirrord.config.hosts import render
from mirrord.control.documents import of_status
from mirrord.core.results import Result
from mirrord.drivers.contract import Driver
from mirrord.engine.members import Members
from mirrord.system.paths import Paths
from tests.contract.lab import Lab
from tests.contract.sets import SetLab
from tests.support.places import driver_at
from tests.support.service import ServiceProcess
from tests.support.sshd import Sshd
from tests.support.verbs import Service

NAME = "home"
ROOT = Path(__file__).parents[2]


class World:
    """The lab, the folder that MIRRORD_HOME names, and a service on it, in this process.

    A lab on another machine says by `host` how that is reached.
    """

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab = lab
        self.home = home
        self.paths = Paths(home / "etc", home / "state", home / "run")
        host = getattr(lab, "host", None)
        if host is not None:
            self.paths.hosts.mkdir(parents=True)
            (self.paths.hosts / f"{host.name}.toml").write_text(render(host))
        self.service = Service(self.paths)

    def close(self) -> None:
        self.service.close()
        self.close_links()

    def close_links(self) -> None:
        """The end of all connections to other hosts, as the end of the process brings it."""
        self.service.shared.links.close()

    def again(self) -> Service:
        """A new service, as a new process would have it."""
        self.close()
        self.service = Service(self.paths)
        return self.service

    def forget_catalogue(self) -> None:
        """The catalogue is lost; a new service."""
        self.close()
        for path in self.paths.state.glob("catalogue.sqlite*"):
            path.unlink()
        self.again()

    def clean_up(self) -> None:
        """The test is over."""
        self.close()

    def create(self, **options: Any) -> Result:
        return self.service.create(NAME, self.end("source"), self.end("destination"), **options)

    def end(self, which: str) -> str:
        """The endpoint of the source or the destination, as it is defined."""
        return str(getattr(self.lab, which)())

    def driver(self, which: str) -> Driver:
        """A fresh driver of the source or the destination, as the definition names it now."""
        return driver_at(self.lab, self.status()[which])

    def initialized(self, **options: Any) -> World:
        self.create(**options)
        self.service.initialize(NAME)
        return self

    def status(self) -> dict[str, Any]:
        return of_status(self.service.status(NAME)[0])

    def source_content(self) -> str:
        return self.lab.content(self.lab.source())

    def view_content(self) -> str:
        return self.lab.content(self.lab.destination())

    def in_step(self) -> bool:
        """The destination shows what the source has."""
        return self.source_content() == self.view_content()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mirrord", *words]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MIRRORD_HOME": str(self.home)}

    def cli(self, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the command line as a process."""
        return subprocess.run(
            self.command(*words),
            env=self.environment(),
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )


class SetWorld(World):
    """The same with a mirror of three members."""

    lab: SetLab

    def __init__(self, lab: SetLab, home: Path) -> None:
        super().__init__(lab, home)
        self.members = lab.pairs()

    def create(self, **options: Any) -> Result:
        ends = tuple(f"{one.source}={one.destination}" for one in self.members)
        return self.service.create(NAME, members=ends, **options)

    def driver(self, which: str) -> Members:
        """See `World.driver`."""
        rows = self.status()["members"]
        drivers = [driver_at(self.lab, row[which]) for row in rows]
        return Members(drivers, [row["name"] for row in rows])


class RemoteWorld(World):
    """The same, but one end is on another host: an agent that a real sshd starts.

    away: "destination" (the data are pushed) or "source" (they are pulled).
    """

    def __init__(self, lab: Lab, home: Path, sshd: Sshd, away: str) -> None:
        super().__init__(lab, home)
        self._away = away
        given = f"MIRRORD_HOME={home}/there", f"PYTHONPATH={ROOT}"
        agent = ["env", *given, sys.executable, "-m", "mirrord", "agent"]
        self.paths.hosts.mkdir(parents=True)
        host = sshd.host(name="there", command=tuple(agent))
        (self.paths.hosts / "there.toml").write_text(render(host))

    def end(self, which: str) -> str:
        """See `World.end`."""
        driver = getattr(self.lab, which)()
        place = str(driver)
        return f"{driver.kind}://there{driver.location}" if which == self._away else place


class DaemonWorld(World):
    """The same, but the service is a daemon, a process of its own, asked through its socket."""

    def __init__(self, lab: Lab, home: Path) -> None:
        super().__init__(lab, home)
        self.daemon = ServiceProcess(home).start()
        self.service = self._client()

    def _client(self) -> Service:
        return cast(Service, self.daemon.client())

    def again(self) -> Service:
        """A new daemon."""
        self.daemon.restart()
        self.service = self._client()
        return self.service

    def clean_up(self) -> None:
        assert self.daemon.stop() == 0
