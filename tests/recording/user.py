"""A user who works on a live volume for as long as a test runs."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Self

_BIG_BYTES = 48 << 20


class User:
    """Overwrites hot places of a large file, appends to a log, makes, replaces and removes files.
    A context manager; works in a thread between its two ends.
    """

    def __init__(self, home: Path, seed: int = 1) -> None:
        self._home, self._made = home, random.Random(seed)
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        (home / "big").write_bytes(self._made.randbytes(_BIG_BYTES))
        self.steps = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            with (self._home / "big").open("r+b") as big, (self._home / "log").open("ab") as log:
                while not self._stop.is_set():
                    self.step(big.fileno(), log.fileno())
                    time.sleep(0.002)
        except BaseException as error:
            self._failed.append(error)

    def step(self, big: int, log: int) -> None:
        """A few requests; some are soon written to the disk by themselves, as databases do."""
        made, self.steps = self._made, self.steps + 1
        blocks = _BIG_BYTES // 4096
        # Four in five go to a sixteenth of the file.
        span = blocks // 16 if made.random() < 0.8 else blocks - 16
        length = 4096 * made.choice([1, 1, 2, 4, 8, 16])
        os.pwrite(big, made.randbytes(length), made.randrange(span) * 4096)
        os.write(log, made.randbytes(made.randrange(200, 3000)))
        if self.steps % 50 == 0:
            number = made.randrange(60)
            (self._home / f"file{number}").write_bytes(made.randbytes(made.randrange(100, 600_000)))
        if self.steps % 135 == 0:
            (self._home / f"file{made.randrange(60)}").unlink(missing_ok=True)
        if self.steps % 100 == 0:
            os.fdatasync(big)
