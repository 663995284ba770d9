"""The values of a verification: what is asked of an end, what it answers, and what is recorded."""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from mirrord.core.model import FileName
from mirrord.core.units import counted

#: Bytes of a block. Also a part of the definition of the digests.
BLOCK_BYTES = 128 * 1024
#: The digest of a block that cannot be read.
UNREADABLE = b"\xff" * 32
#: Sizes of one answer.
NODES_MAX = 1000
BLOCKS_MAX = 16384
#: Bytes that are read or written by one call.
PIECE_BYTES = 512 * 1024
#: Differences that are named; the rest is not looked for.
NAMED_MAX = 1000
#: How long one call of `verify_step` works at most.
STEP_S_MAX = 5.0


class VerifyMode(enum.Enum):
    """What is read. CHANGED: only what differs from an older snapshot that was verified."""

    FULL = "full"
    CHANGED = "changed"
    SAMPLE = "sample"


def sample_parts(text: str) -> int:
    """A percentage as parts of a million; `ValueError`."""
    try:
        parts = round(float(text.strip().removesuffix("%")) * 10_000)
    except (ValueError, OverflowError):
        parts = 0
    if not 1 <= parts <= 1_000_000:
        raise ValueError("expected a percentage from 0.0001 to 100")
    return parts


def parse_mode(text: str) -> tuple[VerifyMode, int]:
    """A mode as a definition has it, with the parts of a million of a sample; `ValueError`."""
    word, _, rest = text.strip().partition(" ")
    if word == VerifyMode.SAMPLE.value:
        return VerifyMode.SAMPLE, sample_parts(rest)
    if rest or word not in (VerifyMode.FULL.value, VerifyMode.CHANGED.value):
        raise ValueError('expected "full", "changed" or for example "sample 1 %"')
    return VerifyMode(word), 0


class VerifyRequest(NamedTuple):
    """What an end is to compute.

    base: an older snapshot, for CHANGED. rate: bytes per second, 0: unlimited. seed, parts: for
    SAMPLE; the blocks that are read, `parts` of a million, depend on the seed.
    """

    guid: str
    mode: VerifyMode = VerifyMode.FULL
    base: str = ""
    rate: int = 0
    seed: int = 0
    parts: int = 0


class PoolState(NamedTuple):
    """What a ZFS pool says of itself.

    scan: the line of `zpool status` on its last scrub or resilver; "" for none. scrubbed_at_s: when
    its last scrub ended, scrub_errors: the errors that this did not repair; None: not known, as the
    pool remembers only the last scrub or resilver. data_errors: the known ones; None: the user may
    not see them.
    """

    name: str
    health: str
    scan: str = ""
    scrubbed_at_s: int | None = None
    scrub_errors: int | None = None
    data_errors: int | None = None


class VerifyProgress(NamedTuple):
    """How far an end is.

    mode: FULL where CHANGED was requested and the base is not known; why says so. files, blocks:
    what was seen. read_blocks, read_bytes: what was read, without holes. unreadable: blocks, names
    and folders that could not be read. root: the digest of everything, in hex; "" until it is done,
    and when nothing of the snapshot can be read; why says so. pool: of a ZFS dataset, in the
    first and the last answer.
    """

    done: bool
    mode: VerifyMode
    why: str = ""
    files: int = 0
    blocks: int = 0
    read_blocks: int = 0
    read_bytes: int = 0
    unreadable: int = 0
    root: str = ""
    pool: PoolState | None = None


class VerifyNode(NamedTuple):
    """A path in a snapshot with its digests. kind: f (file), d (folder), l (symbolic link) or o.
    unreadable: it, or something in it, cannot be read. size: of a file.
    """

    path: FileName
    kind: str
    unreadable: bool
    node: bytes
    metadata: bytes
    content: bytes
    size: int


class Difference(NamedTuple):
    """A path that is not the same at both ends.

    what: missing (at the destination), extra (only there), type, metadata, content, link (the name
    is a hard link of another file), unreadable. end: where it is unreadable, else "". ranges:
    (offset, length) of the content that differs; () for another name of a file that was named.
    """

    path: FileName
    what: str
    end: str = ""
    ranges: tuple[tuple[int, int], ...] = ()


class Verified(NamedTuple):
    """The last verification of a snapshot; see the table `verification`. differences: how many
    paths differ.
    """

    guid: str
    name: str
    at_ns: int
    mode: VerifyMode
    differences: int
    root: str

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        if self.differences:
            more = "at least " if self.differences >= NAMED_MAX else ""
            return f"{more}{counted(self.differences, 'difference')}"
        return "equal" if self.mode is not VerifyMode.SAMPLE else "no difference in the sample"


def standing(found: Sequence[Verified]) -> Verified | None:
    """The one of these, newest first, that says how the destination is: the newest. But what reads
    only what was changed does not disprove that other data is damaged.
    """
    thorough = next((one for one in found if one.mode is not VerifyMode.CHANGED), None)
    if thorough is not None and thorough.differences:
        return thorough
    return found[0] if found else None
