"""The service and another host: one connection for all mirrors, an outage, and the return."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from mirrord.config.hosts import render
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.sshd import Sshd, running
from tests.support.world import NAME


def agents(home: Path) -> list[int]:
    """The agents that serve us there."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            words = (each / "cmdline").read_bytes() if each.name.isdigit() else b""
            if b"mirrord\0agent" in words and f"MIRRORD_HOME={home}" in _environment(each):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def _environment(process: Path) -> list[str]:
    return (process / "environ").read_bytes().decode().split("\0")


def away(served: Served, sshd: Sshd) -> Path:
    """Two mirrors to another host, each every second; that host's mirrord home."""
    there = served.home.parent / "there"
    agent = ("env", f"MIRRORD_HOME={there}", sys.executable, "-m", "mirrord", "agent")
    served.paths.hosts.mkdir(parents=True)
    (served.paths.hosts / "dr.toml").write_text(render(sshd.host(name="dr", command=agent)))
    place = served.lab.destination().location
    for name in (NAME, "second"):
        served.service.create(
            name, str(served.lab.source()), f"block://dr{place}-{name}", schedule="every 1s"
        )
        served.service.initialize(name)
    return there


def test_an_outage_is_an_alarm_that_names_the_host_and_ends_with_it(
    served: Served, tmp_path: Path
) -> None:
    with running(tmp_path / "sshd") as sshd:
        there = away(served, sshd)
        [agent] = agents(there)
        sshd.stop()
        os.kill(agent, signal.SIGKILL)
        until(lambda: {served.row(name).get("healthy") for name in (NAME, "second")} == {False})
        # (Its lag may be noticed first.)
        until(lambda: any("dr" in problem for problem in served.row()["problems"]))
        served.lab.change(served.lab.source(), 1)
        sshd.start()
        until(lambda: all(served.row(name)["healthy"] for name in (NAME, "second")))
        until(lambda: served.alarms() == {})
        # One connection for both, and none of the old ones is left.
        until(lambda: len(agents(there)) == 1)
        log = served.daemon.text()
        assert "dr" in log and "Traceback" not in log
    served.clean_up()
    until(lambda: agents(there) == [])
