"""The bytes of a source: a file, standard input, compressed by gzip or zstd or not at all."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from mirrord.core.errors import Damaged, NotFound, PermissionMissing, Refused

#: Read at once: large enough for the parsers, small beside memory.
PIECE_BYTES = 4 << 20
#: So much of the beginning is looked at to tell the format.
SAMPLE_BYTES = 256 << 10

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Source:
    """One opened source; `place` is how far the file itself has been read, of `size` bytes.

    size is None where it is not known (a pipe). sample: the beginning, decompressed.
    """

    def __init__(self, name: str, raw: IO[bytes], size: int | None) -> None:
        self.name, self.size, self._raw = name, size, _Counted(raw)
        head = self._raw.peek(4)
        self.compression = "gzip" if head[:2] == _GZIP else "zstd" if head[:4] == _ZSTD else None
        self._plain = self._decompressed()
        self.sample = self._read(SAMPLE_BYTES)

    @property
    def place(self) -> int:
        """Bytes of the file that were read."""
        return self._raw.count

    def pieces(self) -> Iterator[bytes]:
        """All of the content, from its beginning; once."""
        if self.sample:
            yield self.sample
        while piece := self._read(PIECE_BYTES):
            yield piece

    def _decompressed(self) -> Any:
        if self.compression == "gzip":
            return gzip.GzipFile(fileobj=cast(IO[bytes], self._raw), mode="rb")
        if self.compression == "zstd":
            return _Zstd(self._raw)
        return self._raw

    def _read(self, most: int) -> bytes:
        """Up to `most` bytes, fewer only at the end."""
        parts: list[bytes] = []
        left = most
        try:
            while left and (part := self._plain.read(left)):
                parts.append(part)
                left -= len(part)
        except EOFError:
            raise self._broken("it ends in the middle") from None
        except (OSError, zlib.error, zstandard.ZstdError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise self._broken(str(error)) from None
        return b"".join(parts)

    def _broken(self, why: str) -> Damaged:
        return Damaged(
            f"the {self.compression} data cannot be decompressed", where=self.name, why=why,
            hint="Copy the file again from where it came.",
        )  # fmt: skip


class _Counted:
    """Counts what is read, and can be looked into before that."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._ahead, self.count = raw, b"", 0

    def peek(self, length: int) -> bytes:
        while len(self._ahead) < length and (more := self._raw.read(length - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, length: int = -1) -> bytes:
        ahead, self._ahead = self._ahead, b""
        if not ahead:
            ahead = self._raw.read(length)
        elif 0 <= length < len(ahead):
            ahead, self._ahead = ahead[:length], ahead[length:]
        self.count += len(ahead)
        return ahead


class _Zstd:
    """Reads frames one after another, and notices when the last one is broken off."""

    def __init__(self, raw: _Counted) -> None:
        self._raw, self._frame = raw, self._begin()
        self._ready, self._inside = b"", False

    @staticmethod
    def _begin() -> Any:
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def read(self, length: int) -> bytes:
        while not self._ready:
            packed = (self._frame.unused_data if self._frame.eof else b"") or self._raw.read(
                1 << 15
            )
            if not packed:
                if self._inside and not self._frame.eof:
                    raise EOFError
                return b""
            if self._frame.eof:
                self._frame = self._begin()
            self._inside = True
            self._ready = self._frame.decompress(packed)
        found, self._ready = self._ready[:length], self._ready[length:]
        return found


@contextmanager
def opened(path: str | Path) -> Iterator[Source]:
    """A source to read once; "-" is standard input. `NotFound`, `PermissionMissing`, `Refused`."""
    if str(path) == "-":
        yield Source("standard input", sys.stdin.buffer, None)
        return
    where = Path(path)
    try:
        if where.is_dir():
            raise Refused("this is a folder, not a trace", where=str(path),
                          hint="Name the files in it.")  # fmt: skip
        with where.open("rb") as raw:
            size = where.stat().st_size if where.is_file() else None
            yield Source(str(path), raw, size)
    except FileNotFoundError:
        raise NotFound("there is no such file", where=str(path)) from None
    except PermissionError:
        raise PermissionMissing("the file may not be read", where=str(path)) from None
