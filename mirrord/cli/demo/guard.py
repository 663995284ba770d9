"""A process that cleans up after a demo, also when that was killed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrord.cli.demo.terminal import TIMEOUT_S, kill_processes, wait_until
from mirrord.core.errors import IoFailed
from mirrord.system import command


@contextmanager
def guarded(folder: Path, home: Path) -> Iterator[None]:
    """At the end, whatever ends this process, those of this `MIRRORD_HOME` are killed, and the
    folder is removed.
    """
    guard = command.start(
        [sys.executable, "-m", __name__, str(folder), str(home)],
        stdin=command.PIPE,
        stderr=command.NO_INPUT,
    )
    try:
        yield
    finally:
        guard.communicate(timeout=TIMEOUT_S)
        if guard.returncode:
            raise IoFailed(
                "the demo could not be cleaned up",
                where=str(folder),
                hint="End its 'mirrord-live' processes and delete the folder.",
            )


def _clean_up(folder: Path, home: Path) -> None:
    sys.stdin.buffer.read()  # until the demo has ended
    wait_until(lambda: not kill_processes(home), "its processes to end")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _clean_up(*map(Path, sys.argv[1:]))
