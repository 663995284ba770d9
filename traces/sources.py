"""The bytes of a source: a file or standard input; uncompressed, or compressed by gzip or zstd."""

from __future__ import annotations

import codecs
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import zstandard

from mirrord.core.errors import Damaged, IoFailed, NotFound
from mirrord.traces.store import trace_errors

#: Bytes per read: large enough for the parsers, small compared to memory.
PIECE_BYTES = 4 << 20
#: Bytes at the beginning that are used to detect the format.
SAMPLE_BYTES = 256 << 10

#: Bytes decompressed at a time: the output may be 32,768 times as large (of zstd; 128 KiB for 4).
_PACKED_BYTES = 2 << 10
#: For zlib: with a gzip header.
_ANY_HEADER = 47
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Source:
    """One opened source; `place` is how far the file itself has been read, of `size` bytes.

    size is None if it is unknown (a pipe). sample: the beginning, decompressed. partial: the end of
    compressed data may be missing; `cut` then tells whether it was.
    """

    def __init__(
        self, name: str, raw: IO[bytes], size: int | None, *, partial: bool = False
    ) -> None:
        self.name, self.size, self._raw = name, size, _Counted(raw)
        self._partial, self.cut = partial, False
        head = self._raw.peek(4)
        self.compression = "gzip" if head[:2] == _GZIP else "zstd" if head[:4] == _ZSTD else None
        self._plain: _Counted | _Packed = self._raw
        if self.compression == "gzip":
            self._plain = _Packed(self._raw, lambda: zlib.decompressobj(_ANY_HEADER), pad=b"\0")
        elif self.compression == "zstd":
            # (2 GiB is what `zstd --long=31` needs.)
            frames = zstandard.ZstdDecompressor(max_window_size=1 << 31)
            self._plain = _Packed(self._raw, frames.decompressobj)
        # (A mark of UTF-8 would make the first record look like a header.)
        self.sample = self._read(SAMPLE_BYTES).removeprefix(codecs.BOM_UTF8)

    @property
    def place(self) -> int:
        """Bytes of the file that were read."""
        return self._raw.count

    def pieces(self) -> Iterator[bytes]:
        """The complete content, decompressed; once."""
        if self.sample:
            yield self.sample
        while piece := self._read(PIECE_BYTES):
            yield piece

    def _read(self, most: int) -> bytes:
        """Up to `most` bytes, fewer only at the end."""
        parts: list[bytes] = []
        left = most
        try:
            while left and not self.cut and (part := self._plain.read(left)):
                parts.append(part)
                left -= len(part)
        except EOFError:
            if not self._partial:
                hint = "Copy the file again, or read what is there with --partial."
                raise self._broken("the data are truncated", hint) from None
            self.cut = True
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._broken(str(error), "Copy the file again from its origin.") from None
        except OSError as error:
            raise IoFailed(
                "reading failed", where=self.name, why=str(error.strerror or error)
            ) from None
        return b"".join(parts)

    def _broken(self, why: str, hint: str) -> Damaged:
        return Damaged(
            f"the {self.compression} data cannot be decompressed",
            where=self.name,
            why=why,
            hint=hint,
        )


class _Counted:
    """Counts the bytes read; `peek` returns the next ones without consuming them."""

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


class _Packed:
    """Decompresses members or frames one after another; `EOFError` when the last is truncated.

    begin: makes the decompressor of one. pad: bytes that may be between them.
    """

    def __init__(self, raw: _Counted, begin: Callable[[], Any], pad: bytes = b"") -> None:
        self._raw, self._begin, self._pad = raw, begin, pad
        self._frame: Any = None
        self._ready = self._left = b""

    def read(self, length: int) -> bytes:
        while not self._ready:
            packed = self._left or self._raw.read(_PACKED_BYTES)
            self._left = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError
                return b""
            if self._frame is None:
                packed = packed.lstrip(self._pad) if self._pad else packed
                if not packed:
                    continue
                self._frame = self._begin()
            self._ready = self._frame.decompress(packed)
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        found, self._ready = self._ready[:length], self._ready[length:]
        return found


@contextmanager
def opened(path: str | Path, *, partial: bool = False) -> Iterator[Source]:
    """A source to read once; "-" is standard input.

    partial: accept compressed data whose end is missing. `NotFound`, `PermissionMissing`,
    `Refused`; later `Damaged` and `IoFailed`.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise NotFound("standard input is closed")
        yield Source("standard input", sys.stdin.buffer, None, partial=partial)
        return
    where = Path(path)
    with trace_errors(where):
        raw = where.open("rb")
    with raw:
        size = where.stat().st_size if where.is_file() else None
        yield Source(str(path), raw, size, partial=partial)
