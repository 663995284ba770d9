"""Processes of users, and those that nobody should have left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.drivers.contract import Driver

#: A program that appends numbers to the file that it is given, which it has open all the time.
FILE_WRITER = """
import os
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC)
def write(number):
    os.write(file, b"%d\\n" % number)
"""
_ANSWERING = """
print("ready", flush=True)
for line in sys.stdin:
    try:
        write(int(line))
        print("acknowledged", flush=True)
    except Exception as error:
        print(f"failed: {error}", flush=True)
"""
_FREEZING = """
import os, signal, sys
from mirrord.core.model import Endpoint
from mirrord.drivers.registry import open_driver
driver = open_driver(Endpoint(sys.argv[1], sys.argv[2]))
driver.freeze()
assert driver.facts().frozen
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def writer(program: str, *arguments: str) -> Iterator[Callable[[int], bool]]:
    """Run a program that defines `write(number)`; calls it. (See `tests.contract.lab.Lab`.)"""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{program}\n{_ANSWERING}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    reader, asked = child.stdout, child.stdin
    with child:
        assert reader.readline() == "ready\n"

        def write(number: int) -> bool:
            asked.write(f"{number}\n")
            asked.flush()
            return reader.readline() == "acknowledged\n"

        yield write
        asked.close()


def freeze_and_die(driver: Driver) -> None:
    """A process that freezes the driver's volume, and is killed."""
    done = subprocess.run([sys.executable, "-c", _FREEZING, driver.kind, driver.location])
    assert done.returncode == -signal.SIGKILL


def working_on(*words: str) -> list[tuple[int, str]]:
    """Other processes (pid, command line) whose command line has all these words in it."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            raw = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        line = raw.replace(b"\0", b" ").decode(errors="replace")
        if all(word in line for word in words):
            found.append((int(entry), line))
    return found
