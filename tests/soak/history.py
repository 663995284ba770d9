"""What happened, one line an event, as it happens: on the screen and in a file."""

from __future__ import annotations

import time
from pathlib import Path


class Violation(Exception):
    """A rule did not hold. `rule` is its short name; the text says what was seen."""

    def __init__(self, rule: str, seen: str) -> None:
        super().__init__(f"{rule}: {seen}")
        self.rule = rule


class History:
    """The events of one seed. The file has all the output of the commands, the screen one line."""

    def __init__(self, file: Path, *, quiet: bool = False) -> None:
        self.path = file
        self._file = file.open("w", encoding="utf-8")
        self._began_s = time.monotonic()
        self._quiet = quiet

    def add(self, line: str, details: str = "") -> None:
        stamp = f"{time.monotonic() - self._began_s:8.2f} {line}"
        self._file.write(stamp + "\n")
        self._file.writelines(f"         | {each}\n" for each in details.splitlines())
        self._file.flush()
        if not self._quiet:
            print(stamp, flush=True)

    def close(self) -> None:
        self._file.close()
