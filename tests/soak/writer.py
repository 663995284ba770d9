"""A program that works on a volume: `writer KIND FILE PAUSE_MS`, until its standard input ends.

It writes one line after the other, each durable before its token is printed: a printed token is an
acknowledged write. What fails is printed as `!` and the reason, and tried again with a new token.

Kinds: `path` opens the file for each line; `held` keeps a descriptor; `mapped` writes by mmap and
msync; `replaced` writes a new file and renames it over the old one.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
import time
from collections.abc import Callable

#: So many lines by one descriptor or mapping; then it is opened again.
_HELD_LINES = 40
_LINE_BYTES = 48


def line(token: str) -> bytes:
    return token.ljust(_LINE_BYTES - 1, ".").encode() + b"\n"


def _write(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) != len(data):
        raise OSError(0, "short write")


class Writer:
    """Ways of writing a line so that it is there after a crash."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._lines = 0

    def close(self) -> None:
        self._lines = 0
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, flags: int) -> int:
        return os.open(self.path, flags | os.O_CREAT, 0o644)

    def path_line(self, token: str) -> None:
        descriptor = self._open(os.O_WRONLY | os.O_APPEND | os.O_SYNC)
        try:
            _write(descriptor, line(token))
        finally:
            os.close(descriptor)

    def held_line(self, token: str) -> None:
        if self._descriptor < 0:
            self._descriptor = self._open(os.O_WRONLY | os.O_APPEND | os.O_SYNC)
        _write(self._descriptor, line(token))
        self._lines += 1
        if self._lines == _HELD_LINES:
            self.close()

    def mapped_line(self, token: str) -> None:
        if self._map is None:
            # A file of its own for each mapping: its pages are written before they are used, as a
            # full disk would else end the process in the middle of a store.
            self._descriptor = os.open(
                f"{self.path}.{token}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644
            )
            _write(self._descriptor, bytes(_HELD_LINES * _LINE_BYTES))
            os.fsync(self._descriptor)
            self._map = mmap.mmap(self._descriptor, _HELD_LINES * _LINE_BYTES)
        at = self._lines * _LINE_BYTES
        self._map[at : at + _LINE_BYTES] = line(token)
        self._map.flush()
        os.fsync(self._descriptor)
        self._lines += 1
        if self._lines == _HELD_LINES:
            self.close()

    def replaced_line(self, token: str) -> None:
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123 - a start without pathlib is quick
                old = file.read()
        except FileNotFoundError:
            old = b""
        new = self.path + ".new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write(descriptor, old + line(token))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(new, self.path)
        folder = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def main(arguments: list[str]) -> int:
    kind, path, pause_ms = arguments
    writer = Writer(path)
    add: Callable[[str], None] = getattr(writer, f"{kind}_line")
    number = 0
    name = os.path.basename(path)
    while not select.select([0], [], [], float(pause_ms) / 1000)[0]:
        number += 1
        token = f"{name}-{number:06d}"
        try:
            add(token)
        except OSError as error:
            os.write(1, f"!{error.strerror}\n".encode())
            writer.close()
            time.sleep(0.1)
        else:
            os.write(1, f"{token}\n".encode())
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
