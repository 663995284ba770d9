"""The example of docs/consistency-groups.md, as it stands there: PostgreSQL with its tables on one
volume and its write-ahead log on another.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import btrfs
from tests.support.cgroups import Cgroup, cgroup
from tests.support.unit import OWN, ROOT, environment

TEXT = (ROOT / "docs/consistency-groups.md").read_text(encoding="utf-8")
BIN = Path("/usr/lib/postgresql/15/bin")
PORT = "5498"
UNIT = "postgresql@15-main.service"


def commands(first: str) -> list[str]:
    """The commands of the example that begins like that."""
    [block] = [
        one for one in re.findall(r"^```console\n(.*?)^```", TEXT, re.M | re.S) if first in one
    ]
    return [line[2:] for line in block.splitlines() if line.startswith("# ")]


class Database:
    """A server in the cgroup of its unit, its socket in the folder `sockets`.

    committed: the numbers that were acknowledged.
    """

    def __init__(self, folder: Path, app: Cgroup, sockets: str) -> None:
        self.folder, self.app, self.sockets = folder, app, sockets
        self.committed: list[int] = []
        self._over = threading.Event()

    def sql(self, text: str, *, port: str = PORT) -> str:
        words = ["psql", "-XAtq", "-h", self.sockets, "-p", port, "-d", "postgres", "-c", text]
        return as_postgres(*words)

    def start(self) -> None:
        data, wal = self.folder / "data/pg", self.folder / "wal/pg"
        for place in (data, wal):
            subprocess.run(["chown", "postgres:", place], check=True)
        as_postgres(str(BIN / "initdb"), "-D", str(data), "--waldir", str(wal), "-A", "trust")
        server = [str(BIN / "postgres"), "-D", str(data), "-p", PORT, "-k", self.sockets, "-h", ""]
        log = (self.folder / "log").open("wb")
        with log:
            self.app.run(["runuser", "-u", "postgres", "--", *server], stdout=log, stderr=log)
        until_s = time.monotonic() + 60
        while True:
            try:
                self.sql("CREATE TABLE number (n int PRIMARY KEY)")
                break
            except subprocess.CalledProcessError:
                assert time.monotonic() < until_s, (self.folder / "log").read_text()
                time.sleep(0.1)
        as_postgres(str(BIN / "pgbench"), "-i", "-q", "-h", self.sockets, "-p", PORT, "postgres")

    def commit(self) -> None:
        """Commit one number after the other, until told to end."""
        number = 0
        words = ["psql", "-XAtq", "-h", self.sockets, "-p", PORT, "-d", "postgres"]
        with subprocess.Popen(
            ["runuser", "-u", "postgres", "--", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        ) as client:
            assert client.stdin is not None and client.stdout is not None
            while not self._over.is_set():
                number += 1
                client.stdin.write(f"INSERT INTO number VALUES ({number}) RETURNING n;\n")
                client.stdin.flush()
                assert int(client.stdout.readline()) == number
                self.committed.append(number)
            client.stdin.close()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Clients write in this block."""
        client = threading.Thread(target=self.commit)
        client.start()
        load = ["pgbench", "-n", "-c", "2", "-T", "600", "-h", self.sockets, "-p", PORT, "postgres"]
        bench = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", *load],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            yield
        finally:
            self._over.set()
            client.join(60)
            bench.terminate()
            bench.wait()


def as_postgres(*words: str) -> str:
    done = subprocess.run(
        ["runuser", "-u", "postgres", "--", *words],
        check=True,
        capture_output=True,
        text=True,
        cwd="/",
    )
    return done.stdout


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_the_copy_recovers_with_every_commit_before_the_pause(tmp_path: Path, rounds: int) -> None:
    if not (BIN / "initdb").exists():
        pytest.skip("needs PostgreSQL 15 (apt-get install postgresql)")
    with (
        btrfs.filesystem(size_mib=2048) as here,
        btrfs.filesystem(size_mib=2048) as there,
        cgroup(UNIT) as app,
        tempfile.TemporaryDirectory(prefix="mirrord-") as sockets,
    ):
        subprocess.run(["chown", "postgres:", sockets], check=True)
        for mount in (here, there):
            mount.parent.chmod(0o711)
        for name in ("data", "wal"):
            (here / name).mkdir()
            btrfs.make_subvolume(here / name / "pg")
        database = Database(here, app, sockets)

        def run(line: str) -> str:
            line = line.replace("/srv/", f"{here}/").replace("/backup/", f"{there}/")
            line = re.sub("^mirrord ", f"{OWN} ", line)
            line = re.sub(r"(-[hk]) /tmp\b", rf"\1 {sockets}", line)
            done = subprocess.run(
                line, shell=True, env=environment(tmp_path), capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout

        database.start()
        with database.busy():
            create, initialize, test, update = commands("mirrord create db")
            run(create)
            run(initialize)
            assert "median " in run(test)
            for _ in range(rounds):
                before = len(database.committed)
                run(update)
                after = len(database.committed)
                *prepare, start, check, stop, drop = commands("try-data")
                for line in prepare:
                    run(line)
                run(start)
                text = database.sql("SELECT n FROM number ORDER BY n", port="5499")
                found = [int(one) for one in text.split()]
                assert found == list(range(1, len(found) + 1))
                assert 0 < before <= len(found) <= after + 1
                run(check)
                run(stop)
                run(drop)
