"""The client of `benchmarks cassandra`, a program of its own: it runs inside a host's namespace.

create ADDRESS                wait for the node, make the table, put once on both replicas
write ADDRESS LOG             put until SIGTERM; each acknowledged put is a line of LOG
check ADDRESS LOG LEVEL       what of LOG is in the table, as JSON
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel  # type: ignore[import-not-found]
from cassandra.cluster import (  # type: ignore[import-not-found]
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
)
from cassandra.policies import WhiteListRoundRobinPolicy  # type: ignore[import-not-found]
from cassandra.query import SimpleStatement  # type: ignore[import-not-found]

PATIENCE_S = 400
IN_FLIGHT = 16
KEYSPACE = """CREATE KEYSPACE IF NOT EXISTS bench
WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}"""
TABLE = "CREATE TABLE IF NOT EXISTS bench.put (k int PRIMARY KEY, v blob)"
PUT = "INSERT INTO bench.put (k, v) VALUES (?, ?)"


def value(key: int) -> bytes:
    """1 to 4 KiB that do not compress, known from the key."""
    return hashlib.shake_128(b"%d" % key).digest(1024 + key * 37 % 3072)


def line(key: int) -> str:
    return f"{key:08d} {hashlib.sha256(value(key)).hexdigest()[:16]}\n"


def patiently(work: Callable[[], Any]) -> Any:
    """Again until it succeeds: the node starts, or does not see the other one yet."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except Exception:
            if time.monotonic() > until_s:
                raise
            time.sleep(1)


def session_with(address: str, level: str = "ALL") -> Any:
    """A session with this node only."""
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
        consistency_level=ConsistencyLevel.name_to_value[level],
        request_timeout=60,
    )

    def connect() -> Any:
        cluster = Cluster(
            [address], execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=4,
            connect_timeout=20, control_connection_timeout=20,
        )  # fmt: skip
        try:
            return cluster.connect()
        except Exception:
            cluster.shutdown()
            raise

    return patiently(connect)


def create(address: str) -> None:
    session = session_with(address)
    patiently(lambda: session.execute(KEYSPACE))
    patiently(lambda: session.execute(TABLE))
    put = patiently(lambda: session.prepare(PUT))
    patiently(lambda: session.execute(put, (-1, b"")))


def write(address: str, log: str) -> None:
    session = session_with(address)
    put = session.prepare(PUT)
    over, failures = threading.Event(), list[str]()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    free = threading.BoundedSemaphore(IN_FLIGHT)

    def acknowledged(_rows: object, key: int) -> None:
        os.write(file, line(key).encode())
        free.release()

    def failed(error: Exception) -> None:
        failures.append(repr(error))
        free.release()

    for key in itertools.count():
        if over.is_set():
            break
        free.acquire()
        future = session.execute_async(put, (key, value(key)))
        future.add_callbacks(acknowledged, failed, callback_args=(key,))
    for _ in range(IN_FLIGHT):
        free.acquire()
    print(json.dumps({"failed": len(failures), "first": failures[:1]}))


def check(address: str, log: str, level: str) -> None:
    session = session_with(address, level)
    whole, torn = Path(log).read_text().rpartition("\n")[::2]
    logged = {int(one.split()[0]): one + "\n" for one in whole.splitlines()}
    bad = [key for key, one in logged.items() if one != line(key)]
    query = SimpleStatement("SELECT k, v FROM bench.put", fetch_size=500)

    def read() -> tuple[set[int], int]:
        keys, wrong = set[int](), 0
        for key, found in session.execute(query):
            if key >= 0:
                keys.add(key)
                wrong += found != value(key)
        return keys, wrong

    keys, wrong = patiently(read)
    missing = sorted(logged.keys() - keys)
    print(json.dumps({
        "logged": len(logged), "rows": len(keys), "missing": len(missing),
        "extra": len(keys - logged.keys()), "wrong": wrong + len(bad) + bool(torn),
        "first": missing[:3],
    }))  # fmt: skip


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"create": create, "write": write, "check": check}
    commands[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # the driver's threads are not waited for
