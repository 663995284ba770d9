"""ZFS streams made up record by record, as `zfs send` makes them, for tests without ZFS."""

from __future__ import annotations

import struct

BEGIN, OBJECT, FREEOBJECTS, WRITE, FREE, END = range(6)
RECORD = 312
_MAGIC = 0x2F5BACBAC
Field = tuple[int, str, int]


class Writer:
    """Writes one stream in either byte order (">" is that of another machine)."""

    def __init__(self, *, order: str = "<", features: int = 1 << 22, payload: bytes = b"") -> None:
        self.order, self.stream = order, b""
        self._sums = [0, 0, 0, 0]
        self.record(
            BEGIN,
            (4, "I", len(payload)),
            (8, "Q", _MAGIC),
            (16, "Q", features << 2 | 1),
            (32, "I", 2),
            (40, "Q", 77),
            (48, "Q", 55),
            payload=payload,
            name=b"tank/a@two",
        )

    def record(self, kind: int, *fields: Field, payload: bytes = b"", name: bytes = b"") -> None:
        header = bytearray(RECORD)
        header[56 : 56 + len(name)] = name
        struct.pack_into(self.order + "I", header, 0, kind)
        for at, form, value in fields:
            struct.pack_into(self.order + form, header, at, value)
        self._sum(header[:280])
        if kind != BEGIN:
            struct.pack_into(self.order + "4Q", header, 280, *self._sums)
        self._sum(header[280:])
        self._sum(payload)
        self.stream += bytes(header) + payload

    def _sum(self, data: bytes | bytearray) -> None:
        a, b, c, d = self._sums
        for (word,) in struct.iter_unpack(self.order + "I", data):
            a = (a + word) % 2**64
            b = (b + a) % 2**64
            c = (c + b) % 2**64
            d = (d + c) % 2**64
        self._sums = [a, b, c, d]

    def write(self, number: int, offset: int, data: bytes) -> None:
        length = len(data)
        self.record(WRITE, (8, "Q", number), (24, "Q", offset), (32, "Q", length), payload=data)

    def end(self) -> bytes:
        sums = [(8 + 8 * n, "Q", value) for n, value in enumerate(self._sums)]
        self.record(END, *sums, (40, "Q", 77))
        return self.stream


def sample(order: str = "<") -> bytes:
    """A small stream of several kinds of records."""
    made = Writer(order=order, payload=bytes(48))
    made.record(OBJECT, (8, "Q", 7), (16, "I", 19), (24, "I", 4096), (28, "I", 5), payload=bytes(8))
    made.write(7, 0, b"a" * 512)
    made.write(7, 512, b"b" * 1024)
    made.record(FREE, (8, "Q", 7), (16, "Q", 4096), (24, "Q", 2**64 - 1))
    made.record(FREEOBJECTS, (8, "Q", 9), (16, "Q", 23))
    return made.end()
