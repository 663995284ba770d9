"""The test of the paper (DCC 2016, 4.2): a writer stripes increasing integers over several volumes,
and waits for each write before the next. What is read from a set of snapshots must be a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

RECORD = 512
FILE = "stripe"

#: words: after how many records it sleeps for 1 ms, further flags to open with, and the files. Each
#: record is a number. (btrfs takes writes of 512 bytes with O_DSYNC; with O_DIRECT it wants 4 KiB.)
WRITER = """
import os, sys, time
flags = os.O_WRONLY | os.O_CREAT | int(sys.argv[2])
files = [os.open(path, flags) for path in sys.argv[3:]]
number, few = 0, int(sys.argv[1])
while True:
    os.pwrite(files[number % len(files)], b"%-512d" % number, number // len(files) * 512)
    number += 1
    if not number % few:
        time.sleep(0.001)
"""


def numbers(folders: Sequence[Path]) -> list[int]:
    """All numbers in the copies, in order. What is zeros was not written: with O_DSYNC a file can
    have its new size before the data.
    """
    return sorted(number for folder in folders for number in numbers_in(folder / FILE))


def numbers_in(file: Path) -> list[int]:
    """All numbers in one copy."""
    data = file.read_bytes()
    records = [data[at : at + RECORD] for at in range(0, len(data), RECORD)]
    return [int(record) for record in records if record.strip(b"\0")]


def is_prefix(found: Sequence[int]) -> bool:
    """Whether these are the first writes, without a gap."""
    return list(found) == list(range(len(found)))


#: The same on two hosts: of three files in a row the first two are on one host, the third is on the
#: other. A host writes when the other has told it over a socket that all before is written.
#: words: the number of its first file, the socket, after how many rows it sleeps for 1 ms, further
#: flags to open with, files.
WRITER_OF_TWO = """
import os, sys, time
first, link, few, flags = map(int, sys.argv[1:5])
files = [os.open(path, os.O_WRONLY | os.O_CREAT | flags) for path in sys.argv[5:]]
row = 0
while True:
    if (row or first) and not os.read(link, 1):
        break
    for at, file in enumerate(files, 3 * row + first):
        os.pwrite(file, b"%-512d" % at, row * 512)
    row += 1
    if not row % few:
        time.sleep(0.001)
    os.write(link, b"x")
"""
