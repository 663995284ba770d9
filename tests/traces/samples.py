"""Small sources of every format, with the records that are in them."""

from __future__ import annotations

import struct
from typing import NamedTuple

from mirrord.traces.model import NO_LATENCY, Op
from mirrord.traces.options import ReadOptions

W, R, T, F = (int(op) for op in (Op.WRITE, Op.READ, Op.TRIM, Op.FLUSH))


class Record(NamedTuple):
    """A record in plain numbers."""

    time_ns: int
    volume: str
    op: int
    offset: int
    length: int
    latency_ns: int = NO_LATENCY


class Example(NamedTuple):
    """A source, and what it says."""

    data: bytes
    records: list[Record]
    epoch_ns: int | None = None


def vscsi(version: int, rows: list[tuple[int, int, int, int]]) -> bytes:
    """Rows of (SCSI command, bytes, sector, µs)."""
    parts = []
    for number, (command, length, sector, time) in enumerate(rows):
        if version == 1:
            parts.append(struct.pack("<IIIHHQQ", number, length, 1, command, 0x100, sector, time))
        else:
            parts.append(
                struct.pack("<HHIIIQQQ", command, 0x200, number, length, 1, sector, time, 70)
            )
    return b"".join(parts)


def live(rows: list[tuple[int, int, int, int, int]]) -> bytes:
    """Rows of (kind, µs, offset, bytes, µs until the answer); the time 0 is 1000 s after 1970."""
    head = struct.pack("<16sQQ32x", b"mirrord live 1\n\0", 1000 * 10**9, 1 << 20)
    return head + b"".join(
        struct.pack(
            "<BBBxIQQQQIIIII4x", kind, 1, 0, length, offset, 7, 0, time, 5, 1, 60, answered, 90
        )
        for kind, time, offset, length, answered in rows
    )


def blktrace(rows: list[tuple[int, int, int, int, bytes]], device: int = 8 << 20 | 16) -> bytes:
    """Rows of (ns, action word, sector, bytes, what follows)."""
    return b"".join(
        struct.pack(
            "<IIQQIIIIIHH",
            0x65617407,
            number,
            time,
            sector,
            length,
            action,
            1,
            device,
            0,
            0,
            len(follows),
        )
        + follows
        for number, (time, action, sector, length, follows) in enumerate(rows, 1)
    )


def srt(rows: list[tuple[int, int, int, int, int, int]]) -> bytes:
    """Rows of (s, µs, bytes, sector of 256 B, device, flags)."""
    header = (
        b"$$TR_IOREC-1.3 (IOAdaptor Upgrade Version)\n"
        b'tracedate    = "Sat May 30 00:03:06 1992";\n'
        b"disks = { 0 -> { sectorsize  = 256, } };\n\x0c"
    )
    return header + b"".join(
        struct.pack(
            ">14I", 56, 0x40001, s, us, 100, 1100, length, sector, device, 1, 0, flags, 0, 1
        )
        for s, us, length, sector, device, flags in rows
    )


FILETIME = 128166372003061629
FILETIME_UNIX_NS = (FILETIME - 116444736000000000) * 100
MD5 = "531e779e5cf0e3e1e7f1b8e8d9f2c0aa"

EXAMPLES: dict[str, Example] = {
    "vscsi1": Example(
        vscsi(1, [(0x2A, 4096, 8, 1000), (0x28, 512, 0, 1500), (0x42, 8192, 16, 1501),
                  (0x00, 0, 0, 1502), (0x35, 0, 0, 1600)]),
        [Record(0, "0", W, 4096, 4096), Record(500_000, "0", R, 0, 512),
         Record(501_000, "0", T, 8192, 8192), Record(600_000, "0", F, 0, 0)],
    ),
    "vscsi2": Example(
        vscsi(2, [(0x2A, 4096, 8, 1000), (0x88, 512, 1, 1500)]),
        [Record(0, "0", W, 4096, 4096, 70_000), Record(500_000, "0", R, 512, 512, 70_000)],
    ),
    "mirrord-live": Example(
        live([(16, 400, 0, 0, 0), (0, 500, 4096, 8192, 61), (17, 501, 3, 0, 0),
              (1, 502, 0, 512, 0xFFFFFFFF), (2, 503, 512, 512, 7), (18, 600, 3, 0, 0)]),
        [Record(0, "image", W, 4096, 8192, 61_000), Record(2_000, "image", W, 0, 512),
         Record(3_000, "image", T, 512, 512, 7_000)],
        1000 * 10**9 + 500_000,
    ),
    "blktrace": Example(
        blktrace([
            (10, 1 << 26 | 1, 0, 0, struct.pack("<II", 1000, 5)),
            (20, 2 << 16 | 1, 8, 4096, b""), (25, 2 << 16 | 7, 8, 4096, b""),
            (30, 2 << 16 | 8, 8, 4096, b""), (40, (1 << 13 | 2) << 16 | 1, 16, 8192, b"pdu"),
            (50, (4 | 2) << 16 | 1, 0, 0, b""), (60, 1 << 16 | 1, 0, 512, b""),
        ]),
        [Record(0, "8,16", W, 4096, 4096), Record(20, "8,16", T, 8192, 8192),
         Record(30, "8,16", F, 0, 0), Record(40, "8,16", R, 0, 512)],
        1000 * 10**9 + 5 - 10 + 20,
    ),
    "srt": Example(
        srt([(0, 174, 4096, 1056, 0x08000107, 0), (1, 0, 512, 2, 0x0800000F, 0x1B)]),
        [Record(0, "08000107", W, 1056 * 256, 4096, 1_100_000),
         Record(999_826_000, "0800000f", R, 512, 512, 1_100_000)],
        707184186 * 10**9 + 174_000,
    ),
    "blkparse": Example(
        b"  8,16   2    41103     9.378419363 16766  Q   W 3428327242 + 8 [flush-8:16]\n"
        b"  8,16   2    41104     9.378419400 16766  P   N [flush-8:16]\n"
        b"  8,16   2    41105     9.378419500 16766  C   W 3428327242 + 8 [0]\n"
        b"  8,16   2    41106     9.378420363     1  A   W 3428327242 + 8 <- (8,17) 3428327208\n"
        b"  8,17   1        1     9.378421363     1  Q FWFSM 64 + 16 [jbd2/sda1-8]\n"
        b"  8,17   1        2     9.378422363     1  Q FWS [jbd2/sda1-8]\n"
        b"  8,17   1        3     9.378423363     1  Q  DS 1024 + 2048 [fstrim]\n"
        b"  8,17   1        4     9.378424363     1  Q  RA 8 + 8 [cat]\n"
        b"CPU0 (8,16):\n Reads Queued:           1,        4KiB\t Writes Queued: 1,  4KiB\n",
        [Record(0, "8,16", W, 3428327242 * 512, 4096), Record(2000, "8,17", W, 32768, 8192),
         Record(3000, "8,17", F, 0, 0), Record(4000, "8,17", T, 524288, 1048576),
         Record(5000, "8,17", R, 4096, 4096)],
    ),
    "fio2": Example(
        b"fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda write 4096 512\n"
        b"/dev/sda wait 250 0\n/dev/sda trim 0 8192\n/dev/sda datasync 0 0\n/dev/sda close\n",
        [Record(0, "/dev/sda", W, 4096, 512), Record(250_000, "/dev/sda", T, 0, 8192),
         Record(250_000, "/dev/sda", F, 0, 0)],
    ),
    "fio3": Example(
        b"fio version 3 iolog\n0 f1 add\n0 f1 open\n100 f1 write 4096 512\n350 f1 read 0 4096\n"
        b"351 f1 sync\n352 f1 trim 0 4096\n400 f1 close\n",
        [Record(0, "f1", W, 4096, 512), Record(250_000, "f1", R, 0, 4096),
         Record(251_000, "f1", F, 0, 0), Record(252_000, "f1", T, 0, 4096)],
    ),
    "msr": Example(
        f"{FILETIME},hm,0,Write,7014912,4096,26\n{FILETIME + 7},hm,1,Read,0,512,1000\n".encode(),
        [Record(0, "hm-0", W, 7014912, 4096, 2600), Record(700, "hm-1", R, 0, 512, 100_000)],
        FILETIME_UNIX_NS,
    ),
    "blkreplay": Example(
        b"Copyright Thomas\n INFO: something\nstart ; sector; length ; op ;  replay_delay=0 ; "
        b"replay_duration=0\n    0.000000000 ;     37766853 ;   64 ; W ; 0.0 ; 0.0\n"
        b"INFO: a header in between\n    0.000000700 ; 8 ;   1 ; RA ; 0.0 ; 0.0\n",
        [Record(0, "0", W, 37766853 * 512, 32768), Record(700, "0", R, 4096, 512)],
    ),
    "systor17": Example(
        b"Timestamp,Response,IOType,LUN,Offset,Size\n"
        b"1456095145.133076000,0.000806000,R,0,899056122368,131072\n"
        b"1456095145.133077000,0.000100000,,0,0,0\n"
        b"1456095145.133078000,,W,4,4096,512\n",
        [Record(0, "0", R, 899056122368, 131072, 806_000), Record(2000, "4", W, 4096, 512)],
        1456095145133076000,
    ),
    "libcachesim": Example(
        b"version,time,op,size,lbn\n1,5633898368,2a,4096,8\n1,5633898369,28,512,1\n",
        [Record(0, "0", W, 4096, 4096), Record(10**9, "0", R, 512, 512)],
    ),
    "mirrord-csv": Example(
        b"time_ns,volume,op,offset,length,latency_ns\n5,a,write,1,2,-1\n9,b,trim,0,4096,70\n",
        [Record(0, "a", W, 1, 2), Record(4, "b", T, 0, 4096, 70)],
    ),
    "alibaba": Example(
        b"419,W,8792731648,16384,1577808144360767\n725,R,0,512,1577808144360770\n",
        [Record(0, "419", W, 8792731648, 16384), Record(3000, "725", R, 0, 512)],
        1577808144360767000,
    ),
    "tencent": Example(
        b"1538323199,105352008,584,1,1576\n1538323200,0,8,0,1577\n",
        [Record(0, "1576", W, 105352008 * 512, 584 * 512), Record(10**9, "1577", R, 0, 4096)],
        1538323199 * 10**9,
    ),
    "spc": Example(
        b"0,20941264,8192,W,0.551706\n8,21888,32768,r,2077.065185,optional,9\n",
        [Record(0, "0", W, 20941264 * 512, 8192),
         Record(2076513479000, "8", R, 21888 * 512, 32768)],
    ),
    "cydonia": Example(
        b"0,6218919,w,4096\n1560,6160455,r,512\n",
        [Record(0, "0", W, 6218919 * 512, 4096), Record(1_560_000, "0", R, 6160455 * 512, 512)],
    ),
    "ransap-write": Example(
        b"1623920106,1042231293,8,4096,0.5,0.25\n1623920107,5,16,512,0.5,0.25\n",
        [Record(-42231288, "0", W, 8192, 512), Record(0, "0", W, 4096, 4096)][::-1],
        1623920106 * 10**9 + 1042231293,
    ),
    "ransap-read": Example(
        b"1623920106,5,8,4096\n1623920107,6,16,512\n",
        [Record(0, "0", R, 4096, 4096), Record(10**9 + 1, "0", R, 8192, 512)],
        1623920106 * 10**9 + 5,
    ),
    "fiu": Example(
        f"0 4892 syslogd 904265560 8 W 6 0 {MD5}\n7 1 a 8 16 R 6 1 {MD5}\n".encode(),
        [Record(0, "6-0", W, 904265560 * 512, 4096), Record(7, "6-1", R, 4096, 8192)],
    ),
    "disksim": Example(
        b"0.5 0 8 16 0\n1.25 1 24 3 1\n3.0 0 7 1 12\n",
        [Record(0, "0", W, 4096, 8192), Record(750_000, "1", R, 12288, 1536),
         Record(2_500_000, "0", W, 3584, 512)],
    ),
    "ssdsim": Example(
        b"1000000 0 8 16 0\n90000000 0 24 3 1\n",
        [Record(0, "0", W, 4096, 8192), Record(89_000_000, "0", R, 12288, 1536)],
    ),
    "replayer": Example(
        b"0.5 0 4096 8192 0\n1.25 0 512 1024 1\n",
        [Record(0, "0", W, 4096, 8192), Record(750_000, "0", R, 512, 1024)],
    ),
    "csv": Example(
        b"when;disk;what;place;bytes;took\n1.5;sda;WRITE;4096;512;10\n2.0;sdb;discard;0;4096;20\n",
        [Record(0, "sda", W, 4096, 512, 10_000), Record(500_000_000, "sdb", T, 0, 4096, 20_000)],
    ),
}  # fmt: skip
#: Options without which a format cannot be read.
NEEDED = {
    "csv": ReadOptions(columns="time=when,volume=disk,op=what,offset=3,length=bytes,latency=took")
}
