"""The pause of applications on several hosts (namespaces with an sshd each), three btrfs volumes on
each: the worst host of each pause, as in the paper's figure 13.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import ROOT, Row, filesystem, folder, median, need, run, service
from mirrord.config.hosts import render
from mirrord.core.pause import MemberPause
from tests.support.cgroups import Cgroup, cgroup
from tests.support.netns import namespace
from tests.support.sshd import Sshd

COUNTS = tuple(map(int, os.environ.get("MIRRORD_BENCH_HOSTS", "2,4,10").split(",")))
ROUNDS = int(os.environ.get("MIRRORD_BENCH_ROUNDS", "50"))
VOLUMES = ("a", "b", "c")
LOAD = ["--rw=randwrite", "--bs=8k", "--size=16m", "--ioengine=psync", "--fdatasync=8"]
PACE = ["--rate_iops=100", "--time_based", "--runtime=900", "--group_reporting"]


def measure() -> list[Row]:
    """Each count of hosts."""
    need("fio", "fio")
    return [row for count in COUNTS for row in _measured(count)]


def _measured(count: int) -> list[Row]:
    with ExitStack() as stack:
        inside = stack.enter_context(folder())
        images = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        api = service(inside)
        stack.callback(api.close)
        stack.callback(api.shared.links.close)
        there = stack.enter_context(filesystem(images, "copy", 2))
        ends, paths, apps = list[str](), list[str](), list[tuple[Cgroup, Path]]()
        for number in range(1, count + 1):
            app = stack.enter_context(cgroup())
            mount = stack.enter_context(filesystem(images, f"source{number}", 1))
            _host(stack, inside, number, app, mount)
            for volume in VOLUMES:
                run("btrfs", "subvolume", "create", mount / volume)
                name = f"{volume}{number}"
                ends.append(f"btrfs://host{number}{mount / volume}=btrfs:{there / name}")
                paths.append(app.path)
            apps.append((app, mount))
        api.create("db", members=tuple(ends))
        _pausing(api.definitions.file("db"), paths)
        api.initialize("db")
        for app, mount in apps:
            words = ["fio", "--name=load", f"--directory={mount / 'a'}", *LOAD, *PACE]
            app.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(3)
        found = [
            max(one.members, key=lambda member: member.pause_ms)
            for one in api.pause_once("db", count=ROUNDS).pauses
        ]
    return _rows(count, found)


def _host(stack: ExitStack, inside: Path, number: int, app: Cgroup, mount: Path) -> None:
    """A host that serves its volumes over SSH."""
    network = stack.enter_context(namespace(100 + number))
    within = ("nsenter", f"--net=/run/netns/{network.name}")
    home = inside / f"host{number}"
    sshd = Sshd(home, within=within, address=network.there).start()
    stack.callback(sshd.stop)
    given = f"MIRRORD_HOME={home / 'agent'}", f"PYTHONPATH={ROOT}"
    rules = ("--allow", f"send={mount}", "--allow", f"pause=cgroup:{app.path}")
    command = ("exec", "env", *given, sys.executable, "-m", "mirrord", "agent", *rules)
    hosts = inside / "mirrord/etc/hosts.d"
    hosts.mkdir(parents=True, exist_ok=True)
    made = sshd.host(name=f"host{number}", command=command, data="ssh")
    (hosts / f"host{number}.toml").write_text(render(made))


def _pausing(file: Path, paths: list[str]) -> None:
    """Give each member its pause."""
    parts = file.read_text().split("[[member]]\n")
    members = [
        f'pause = "cgroup:{path}"\n{part}' for path, part in zip(paths, parts[1:], strict=True)
    ]
    file.write_text('pause_max = "60s"\n' + "[[member]]\n".join([parts[0], *members]))


def _rows(count: int, found: list[MemberPause]) -> list[Row]:
    whole = [one.pause_ms for one in found]
    parts = ", ".join(
        f"{part} {median([getattr(one, part + '_ms') for one in found]):.1f}"
        for part in ("confirm", "snapshot", "resume", "network")
    )
    late = statistics.quantiles(whole, n=100, method="inclusive")[98]
    name = f"worst of {count} hosts"
    return [
        Row(f"pause, {name}: median", median(whole), "ms", "<=", 100, note=f"{parts} ms"),
        Row(f"pause, {name}: 99 %", late, "ms", "<=", 100, note=f"longest {max(whole):.0f} ms"),
    ]
