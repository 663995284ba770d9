"""A cluster of two Cassandra nodes recovers from mirrored sets, as in the paper's section 4.3.2.

Each node is on a host of its own (a namespace with an sshd), its commit log and its data on a btrfs
file system each. A writer puts on both replicas (consistency ALL) and logs each acknowledged put on
a fifth volume. Sets are taken meanwhile; then both nodes are started from each set, first without a
link between them, so that each answers from what it has itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import cassandra_install
from benchmarks.harness import ROOT, Row, filesystem, folder, run, service
from mirrord.config.hosts import render
from mirrord.core.pause import decoded
from tests.support.cgroups import Cgroup, cgroup
from tests.support.netns import Namespace, namespace
from tests.support.sshd import Sshd
from tests.support.verbs import Service

CYCLES = int(os.environ.get("MIRRORD_BENCH_CYCLES", "5"))
BETWEEN_S = 6
#: Run by the agent of host one: of its `VOLUMES` the snapshot of the last one is taken a second
#: after the others. What was acknowledged meanwhile is in the writer's log, and not in the copies
#: of the nodes, unless everything is paused.
LATE = """
import itertools, time
from mirrord.system import steps
turn = itertools.count(1)
def reached(label):
    if label == "BTRFS:SNAPSHOT:TAKE" and next(turn) % 3 == 0:
        time.sleep(1)
steps.observe(reached)
"""
NAME = "db"
#: The volumes of each host.
VOLUMES = {"one": ("data1", "commit1", "log1"), "two": ("data2", "commit2")}
ADDRESSES = {"one": "10.214.77.1", "two": "10.214.77.2"}
OTHER = {"one": "two", "two": "one"}
TOKENS = {"one": "-9223372036854775808", "two": "0"}
LOG = "acknowledged"
HEAP = "768m"
#: Batch: acknowledged when synced. Small segments, so that tables are flushed, and segments of the
#: log deleted, all the time: that is what a set of two moments breaks.
SETTINGS = """cluster_name: mirrord
num_tokens: 1
initial_token: "{token}"
auto_bootstrap: false
start_native_transport: true
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{seeds}"}}]
listen_address: {address}
rpc_address: {address}
data_file_directories: ["{data}/tables"]
hints_directory: {data}/hints
saved_caches_directory: {data}/caches
cdc_raw_directory: {data}/cdc
commitlog_directory: {commit}/log
commitlog_sync: batch
commitlog_segment_size: 1MiB
commitlog_total_space: 8MiB
memtable_heap_space: 32MiB
memtable_offheap_space: 32MiB
key_cache_size: 0MiB
read_request_timeout: 60s
range_request_timeout: 60s
write_request_timeout: 60s
"""
MODULES = [
    *(f"--add-exports={one}=ALL-UNNAMED" for one in (
        "java.base/jdk.internal.misc", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
        "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql",
        "java.base/java.lang.ref", "jdk.unsupported/sun.misc", "jdk.attach/sun.tools.attach",
    )),
    *(f"--add-opens={one}=ALL-UNNAMED" for one in (
        "java.base/java.lang.module", "java.base/jdk.internal.loader",
        "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect",
        "java.base/jdk.internal.math", "java.base/jdk.internal.module",
        "java.base/jdk.internal.util.jar", "jdk.management/com.sun.management.internal",
        "java.base/sun.nio.ch", "java.base/java.io", "java.base/java.lang.reflect",
        "java.base/java.lang", "java.base/java.util",
    )),
]  # fmt: skip


class Host:
    """A namespace with an sshd, and the cgroup of what is paused there."""

    def __init__(self, stack: ExitStack, inside: Path, name: str, number: int) -> None:
        self.name, self.inside = name, inside / name
        self.network: Namespace = stack.enter_context(namespace(number))
        self.app: Cgroup = stack.enter_context(cgroup())
        self.within = ["nsenter", f"--net=/run/netns/{self.network.name}"]
        self.sshd = Sshd(self.inside, within=self.within, address=self.network.there).start()
        stack.callback(self.sshd.stop)

    def settings(self, volumes: list[Path], code: str = "") -> str:
        """How mirrord reaches it, and may send the volumes and pause the cgroup. code: run by the
        agent first.
        """
        program = self.inside / "agent.py"
        program.write_text(f"{code}\nfrom mirrord.cli.main import main\nmain()\n")
        rules = [f"send={volume}" for volume in volumes] + [f"pause=cgroup:{self.app.path}"]
        words = [word for rule in rules for word in ("--allow", rule)]
        given = f"MIRRORD_HOME={self.inside / 'agent'}", f"PYTHONPATH={ROOT}"
        command = ("exec", "env", *given, sys.executable, str(program), "agent", *words)
        return render(self.sshd.host(name=self.name, command=command, data="ssh"))

    def start(self, data: Path, commit: Path, log: Path) -> subprocess.Popen[str]:
        """Start the node in the cgroup."""
        jars = cassandra_install.jars()
        file = log.with_suffix(".yaml")
        file.write_text(SETTINGS.format(
            token=TOKENS[self.name], address=ADDRESSES[self.name],
            seeds=",".join(ADDRESSES.values()), data=data, commit=commit,
        ))  # fmt: skip
        words: list[str | Path] = [
            *self.within, cassandra_install.java(), f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Xss512k",
            *MODULES, f"-javaagent:{next(jars.glob('jamm-*.jar'))}",
            "-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dcassandra.ring_delay_ms=2000", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            f"-Dcassandra.config=file://{file}", f"-Dcassandra.storagedir={data}",
            f"-Dcassandra.logdir={self.inside}", f"-Dlogback.configurationFile={logback(log)}",
            f"-Djava.io.tmpdir={self.inside}", "-cp", f"{jars}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip
        with log.open("wb") as out:
            return self.app.run(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def wait_for(self, node: subprocess.Popen[str], log: Path) -> None:
        """Until the node listens for clients."""
        until_s = time.monotonic() + 400
        while not run(*self.within, "ss", "-Htln", "sport", "=", ":9042"):
            text = log.read_text(errors="replace")[-4000:]
            assert node.poll() is None and time.monotonic() < until_s, text
            time.sleep(0.5)

    def client(self, *words: str | Path) -> list[str]:
        """The command line of the client. -P: `cassandra` must be the driver's."""
        file = ROOT / "benchmarks/cassandra_client.py"
        given = f"PYTHONPATH={cassandra_install.driver()}"
        return [*self.within, "env", given, sys.executable, "-P", str(file), *map(str, words)]


def logback(log: Path) -> Path:
    """Its configuration of messages: to standard output."""
    file = log.with_suffix(".xml")
    file.write_text(
        '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">'
        "<encoder><pattern>%-5level %date{ISO8601} %F:%L - %msg%n</pattern></encoder></appender>"
        '<root level="INFO"><appender-ref ref="out"/></root></configuration>'
    )
    return file


class Bench:
    """The hosts, their volumes, the mirror."""

    def __init__(self, stack: ExitStack, inside: Path, images: Path) -> None:
        self.inside = inside
        self.hosts = {
            name: Host(stack, inside, name, 120 + number) for number, name in enumerate(VOLUMES)
        }
        self._link()
        self.there: Path = stack.enter_context(filesystem(images, "copy", 8))
        self.here: dict[str, Path] = {}
        for volume in (one for volumes in VOLUMES.values() for one in volumes):
            self.here[volume] = stack.enter_context(filesystem(images, volume, 2)) / volume
            run("btrfs", "subvolume", "create", self.here[volume])
        self.api: Service = service(inside)
        stack.callback(self.api.close)
        stack.callback(self.api.shared.links.close)
        # Before the file systems are unmounted.
        for host in self.hosts.values():
            stack.callback(host.app.remove)
        self._create()

    def _link(self) -> None:
        """A link between the hosts."""
        names = [host.network.name for host in self.hosts.values()]
        run("ip", "-n", names[0], "link", "add", "cluster", "type", "veth",
            "peer", "name", "cluster", "netns", names[1])  # fmt: skip
        for host in self.hosts.values():
            address = f"{ADDRESSES[host.name]}/24"
            run("ip", "-n", host.network.name, "addr", "add", address, "dev", "cluster")
            run("ip", "-n", host.network.name, "link", "set", "cluster", "up")

    def cut(self, verb: str) -> None:
        """verb: "add" cuts the hosts' link, "del" mends it."""
        for name, host in self.hosts.items():
            route = f"{ADDRESSES[OTHER[name]]}/32"
            run("ip", "-n", host.network.name, "route", verb, "unreachable", route)

    def _create(self) -> None:
        for name in self.hosts:
            self._reach(name)
        self.api.create(NAME, members=tuple(
            f"btrfs://{host}{self.here[one]}=btrfs:{self.there / one}"
            for host, volumes in VOLUMES.items() for one in volumes
        ))  # fmt: skip
        self.file = self.api.definitions.file(NAME)
        self.plain = self.file.read_text()

    def _reach(self, name: str, code: str = "") -> None:
        """Set how mirrord reaches a host."""
        folder = self.inside / "mirrord/etc/hosts.d"
        folder.mkdir(parents=True, exist_ok=True)
        volumes = [self.here[one] for one in VOLUMES[name]]
        (folder / f"{name}.toml").write_text(self.hosts[name].settings(volumes, code))
        self.api.shared.links.close()

    def delay_log(self) -> None:
        """From now on the snapshot of the writer's log is taken later than the others."""
        self._reach("one", LATE)

    def pausing(self, on: bool) -> None:
        """Let each member pause its host's cgroup, or nothing."""
        first, *parts = self.plain.split("[[member]]\n")
        names = [host for host, volumes in VOLUMES.items() for _ in volumes]
        pauses = [f"cgroup:{self.hosts[name].app.path}" if on else "none" for name in names]
        members = [f'pause = "{p}"\n{part}' for p, part in zip(pauses, parts, strict=True)]
        self.file.write_text('pause_max = "10s"\n' + "[[member]]\n".join([first, *members]))

    def taken(self, tag: str) -> dict[str, Path]:
        """Take a set, and keep a writable snapshot of each copy."""
        time.sleep(BETWEEN_S)
        self.api.update(NAME)
        made = {one: self.there / f"{tag}-{one}" for one in self.here}
        for one, path in made.items():
            run("btrfs", "subvolume", "snapshot", self.there / one / "current", path)
        return made

    def pause_ms(self) -> float:
        """The longest pause of a member in the last cycle."""
        found = decoded(self.api.history(NAME, limit=1).transfers[0].pause)
        assert found is not None
        return max(one.pause_ms for one in found.members)

    @contextmanager
    def cluster(self, volumes: dict[str, Path], tag: str, *, together: bool) -> Iterator[None]:
        """Both nodes run on these volumes. together: start them at the same time."""
        nodes = []
        try:
            for name, host in self.hosts.items():
                number = "1" if name == "one" else "2"
                log = self.log(tag, name)
                nodes.append(host.start(volumes[f"data{number}"], volumes[f"commit{number}"], log))
                if not together:
                    host.wait_for(nodes[-1], log)
            for (name, host), node in zip(self.hosts.items(), nodes, strict=True):
                host.wait_for(node, self.log(tag, name))
            yield
        finally:
            for node in nodes:
                node.kill()
                node.wait()

    def log(self, tag: str, host: str) -> Path:
        return self.inside / f"{tag}-{host}.log"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The writer runs on host one, in its cgroup."""
        host = self.hosts["one"]
        subprocess.run(host.client("create", ADDRESSES["one"]), check=True)
        words = host.client("write", ADDRESSES["one"], self.here["log1"] / LOG)
        writer = host.app.run(words, stdout=subprocess.PIPE)
        yield
        assert writer.poll() is None, "the writer has ended"
        writer.send_signal(signal.SIGTERM)
        failed = json.loads(writer.communicate(timeout=120)[0])
        assert not failed["failed"], failed

    def recovered(self, made: dict[str, Path], tag: str) -> list[dict[str, int]]:
        """Start from a set: what each node has itself, and what both have together."""
        log = made["log1"] / LOG
        found = list[dict[str, int]]()
        self.cut("add")
        cut = True
        try:
            with self.cluster(made, tag, together=True):
                for name in self.hosts:
                    found.append(self._checked(name, log, "ONE"))
                    text = self.log(tag, name).read_text(errors="replace")
                    found[-1]["replayed"] = _replayed(text)
                self.cut("del")
                cut = False
                found.append(self._checked("two", log, "ALL"))
        finally:
            if cut:
                self.cut("del")
        print(f"{tag}: {json.dumps(found)}", flush=True)
        return found

    def _checked(self, name: str, log: Path, level: str) -> dict[str, int]:
        words = self.hosts[name].client("check", ADDRESSES[name], log, level)
        found: dict[str, int] = json.loads(run(*words))
        return found


def _replayed(text: str) -> int:
    """The mutations that were replayed from the commit log, by the node's own message."""
    [line] = [one for one in text.splitlines() if "Log replay complete" in one]
    return int(line.partition("Log replay complete, ")[2].split()[0])


def measure() -> list[Row]:
    """Sets with a pause and without, and the recovery from each."""
    cassandra_install.jars(), cassandra_install.driver()
    with ExitStack() as stack:
        inside = stack.enter_context(folder())
        images = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        bench = Bench(stack, inside, images)
        sets, pauses = list[dict[str, Path]](), list[float]()
        with bench.cluster(bench.here, "first", together=False), bench.writing():
            bench.pausing(True)
            bench.api.initialize(NAME)
            for number in range(CYCLES):
                sets.append(bench.taken(f"set{number}"))
                pauses.append(bench.pause_ms())
            bench.delay_log()
            sets.append(bench.taken("late"))
            bench.pausing(False)
            control = bench.taken("control")
        full = bench.here["log1"] / LOG
        prefixes = sum(_is_prefix(one["log1"] / LOG, full) for one in sets)
        found = [bench.recovered(one, f"set{number}") for number, one in enumerate(sets)]
        lacking = min(part["missing"] for part in bench.recovered(control, "control"))
    return [*_rows(found, prefixes, pauses), _control(lacking)]


def _is_prefix(some: Path, full: Path) -> bool:
    """By cmp(1); the log of a set is shorter than the full one, and not empty."""
    size = some.stat().st_size
    return 0 < size < full.stat().st_size and (
        subprocess.run(["cmp", f"--bytes={size}", some, full]).returncode == 0
    )


def _rows(found: list[list[dict[str, int]]], prefixes: int, pauses: list[float]) -> list[Row]:
    parts = [part for one in found for part in one]
    logged = [one[0]["logged"] for one in found]
    replayed = [part["replayed"] for part in parts if "replayed" in part]
    extra = max(part["extra"] for part in parts)
    lost = sum(part["missing"] for part in parts)
    wrong = sum(part["wrong"] for part in parts)
    note = f"{min(logged)} to {max(logged)} logged, {min(replayed)} to {max(replayed)} replayed"
    return [
        Row("cassandra: logs that are a prefix", prefixes, "sets", ">=", len(found)),
        Row("cassandra: acknowledged puts lost", lost, "puts", "<=", 0, note=note),
        Row("cassandra: wrong values", wrong, "puts", "<=", 0),
        Row("cassandra: replayed by a node, fewest", min(replayed), "puts", ">=", 1),
        # 16 are in flight (cassandra_client.IN_FLIGHT).
        Row("cassandra: more than was logged, most", extra, "puts", "<=", 16),
        Row("cassandra: longest pause", max(pauses), "ms", "<=", 1000),
    ]


def _control(lacking: int) -> Row:
    return Row("cassandra: lost without a pause", lacking, "puts", ">=", 1, note="must be lost")
