"""A recording of a live mirror (docs/traces.md): what each write waited for, and what follows from
that: the modes, the lag, M.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrord.core.errors import Damaged, Refused
from mirrord.core.live import Mode
from mirrord.traces.parsing import plain_name
from mirrord.traces.store import trace_errors

_MAGIC = b"mirrord live 1\n\0"
#: A record; times are us after the arrival (native/live-core/src/primary/recording.rs).
RECORD = np.dtype(
    [
        ("kind", "u1"), ("mode", "u1"), ("flags", "u1"), ("", "u1"), ("length", "<u4"),
        ("offset", "<u8"), ("osn", "<u8"), ("limit", "<u8"), ("arrived", "<u8"),
        ("local", "<u4"), ("sent", "<u4"), ("received", "<u4"), ("answered", "<u4"),
        ("durable", "<u4"), ("", "<u4"),
    ]
)  # fmt: skip
_UNKNOWN = 0xFFFFFFFF
#: Of the field `kind`: what is no write, the mode is another one, records are missing.
_NOTES, _MODE, _DROPPED = 16, 16, 17
_FAILED = 1
#: Writes, zeroes, discards, and the notes.
_KINDS = (0, 1, 2, 16, 17, 18)
#: 142 years: no time is so late.
_LATEST_US = 1 << 52
#: By the number in the field `mode`.
MODES = (Mode.ASYNC, Mode.SYNC, Mode.STRICT_SYNC, Mode.SEMI_SYNC)
Records = npt.NDArray[Any]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recording:
    """writes: answered ones, in the order of their arrival. modes: when each began (us) and which
    it is. dropped: writes that are missing.
    """

    name: str
    writes: Records
    modes: tuple[tuple[int, Mode], ...]
    last_us: int
    dropped: int

    @property
    def first_us(self) -> int:
        """When it began."""
        return self.modes[0][0]

    @property
    def span_s(self) -> float:
        """Its length."""
        return (self.last_us - self.first_us) / 1e6

    def share(self, mode: Mode) -> float:
        """Share of the time in this mode, 0 to 1."""
        return shares(self.modes, self.last_us).get(mode, 0.0)

    @property
    def changes(self) -> int:
        """Changes of the mode."""
        return len(self.modes) - 1


def read(path: str | Path) -> Recording:
    """Read one; `Refused` when it is none, `Damaged` without writes or when it is cut off."""
    with trace_errors(path), Path(path).open("rb") as opened:
        header = opened.read(RECORD.itemsize)
        data = opened.read() if header.startswith(_MAGIC) else b""
    size = len(header) + len(data)
    if not header.startswith(_MAGIC):
        raise Refused(
            "this is no recording of a live mirror",
            where=str(path),
            hint="'mirrord trace record MIRROR' makes one; of other traces 'mirrord trace info' "
            "shows what they are.",
        )
    if size % RECORD.itemsize:
        raise Damaged(
            "the recording is cut off",
            where=str(path),
            why=f"it has {size} bytes",
            hint="To read all but its last record: "
            f"truncate -s {size - size % RECORD.itemsize} {path}",
        )
    return _made(plain_name(str(path)), np.frombuffer(data, RECORD), str(path))


def _made(name: str, records: Records, where: str) -> Recording:
    odd = np.flatnonzero(~np.isin(records["kind"], _KINDS) | (records["arrived"] > _LATEST_US))
    if len(odd):
        at, first = int(odd[0]), records[odd[0]]
        raise Damaged(
            f"record {at + 1:,} is not one of a live mirror",
            where=where,
            why=f"its kind is {first['kind']}, and its time {first['arrived']}",
            hint="Record again: the file was changed or damaged.",
        )
    is_write = (records["kind"] < _NOTES) & (records["answered"] != _UNKNOWN)
    writes = records[is_write & (records["flags"] & _FAILED == 0)]
    if not len(writes):
        raise Damaged("the recording has no writes", where=where)
    writes = writes[np.argsort(writes["arrived"], kind="stable")]
    changes = records[records["kind"] == _MODE]
    modes: list[tuple[int, Mode]] = []
    for at, code in zip(changes["arrived"], changes["mode"], strict=True):
        if int(code) >= len(MODES):
            raise Damaged("the recording has an unknown mode", where=where, why=f"mode {code}")
        mode = MODES[int(code)]
        if not modes or modes[-1][1] is not mode:
            modes.append((int(at), mode))
    if not modes:
        modes.append((int(writes["arrived"][0]), MODES[int(writes["mode"][0]) % len(MODES)]))
    last_us = max(int(records["arrived"].max()), int(answered_us(writes).max()))
    missing = records[records["kind"] == _DROPPED]["offset"]
    return Recording(name, writes, tuple(modes), last_us, int(missing.sum()))


def answered_us(writes: Records) -> Times:
    """When each was answered."""
    found: Times = (writes["arrived"] + writes["answered"]).astype(np.int64)
    return found


def received_us(recording: Recording) -> Times:
    """When the secondary had each write. Of those that were only tracked: when tracking ended; of
    those of which it is not known: never.
    """
    writes = recording.writes
    never = np.iinfo(np.int64).max
    arrived = writes["arrived"].astype(np.int64)
    is_known = writes["received"] != _UNKNOWN
    found = np.where(is_known, arrived + writes["received"].astype(np.int64), never)
    ends = [at for at, mode in recording.modes if mode is not Mode.ASYNC] or [never]
    later = np.searchsorted(ends, arrived, side="left")
    ended = np.array([*ends, never], np.int64)[later]
    return np.where(is_known, found, ended)


def lag_bytes(recording: Recording) -> tuple[Times, Times]:
    """What a failure of the primary would lose, in bytes: when it changes, and to what."""
    answered, received = answered_us(recording.writes), received_us(recording)
    is_late = received > answered
    length = recording.writes["length"].astype(np.int64)[is_late]
    at = np.concatenate((answered[is_late], received[is_late]))
    change = np.concatenate((length, -length))
    # Of what happens at the same time, what arrives comes first.
    order = np.lexsort((change, at))
    return at[order], np.cumsum(change[order])


def oldest_us(recording: Recording, at_us: Times) -> Times:
    """The age of the oldest answered write that the secondary lacks, at these times."""
    answered = answered_us(recording.writes)
    arrived = recording.writes["arrived"].astype(np.int64)
    # (They are received in their order.)
    received = np.maximum.accumulate(received_us(recording))
    first = np.searchsorted(received, at_us, side="right")
    is_any = first < len(received)
    first = np.minimum(first, len(received) - 1)
    is_lacking = is_any & (answered[first] <= at_us)
    return np.where(is_lacking, at_us - arrived[first], 0)


Modes = Sequence[tuple[int, Mode]]


def shares(modes: Modes, last: int) -> dict[Mode, float]:
    """The share of the time in each mode."""
    ends = [at for at, _ in modes[1:]] + [last]
    total = max(1, last - modes[0][0])
    found: dict[Mode, float] = {}
    for (at, mode), end in zip(modes, ends, strict=True):
        found[mode] = found.get(mode, 0.0) + max(0, end - at) / total
    return found


@dataclass(frozen=True)
class Course:
    """A recording in parts of equal length. at_s: when each begins, since the start. iops,
    outstanding (mean, by Little's law): of the writes that were answered in it. latency_ms (mean):
    of those that arrived in it. lag_bytes, lag_s: the greatest. limit_bytes: the greatest M; 0 out
    of semi-sync. Where no write arrived, latency and M are those of before. modes: the one that
    took most of it.
    """

    at_s: npt.NDArray[np.float64]
    iops: npt.NDArray[np.float64]
    latency_ms: npt.NDArray[np.float64]
    outstanding: npt.NDArray[np.float64]
    lag_bytes: npt.NDArray[np.float64]
    lag_s: npt.NDArray[np.float64]
    limit_bytes: npt.NDArray[np.float64]
    modes: tuple[Mode, ...]


def course(recording: Recording, parts: int) -> Course:
    """The recording in so many parts."""
    first, last = recording.first_us, recording.last_us
    edges = np.linspace(first, last + 1, parts + 1).astype(np.int64)
    width_s = max(1, int(edges[1] - edges[0])) / 1e6
    writes = recording.writes
    place = np.clip(np.searchsorted(edges, answered_us(writes), side="right") - 1, 0, parts - 1)
    arrived = np.searchsorted(edges, writes["arrived"].astype(np.int64), side="right") - 1
    arrived = np.clip(arrived, 0, parts - 1)
    waited = writes["answered"].astype(np.float64)
    came = np.bincount(arrived, minlength=parts)
    waits = np.bincount(arrived, waited, minlength=parts)
    mean_ms = np.divide(waits, came * 1000.0, out=np.zeros(parts), where=came > 0)
    modes = tuple(
        _longest(recording.modes, int(begin), int(end)) for begin, end in itertools.pairwise(edges)
    )
    is_semi = np.array([mode is Mode.SEMI_SYNC for mode in modes])
    at, lag = lag_bytes(recording)
    # What it was when a part began counts in it, too.
    before = np.searchsorted(at, edges[:-1], side="right")
    began = np.where(before > 0, lag[np.maximum(before - 1, 0)], 0) if len(lag) else 0 * edges[:-1]
    greatest = began.astype(np.float64)
    lag_place = np.searchsorted(edges, at, side="right") - 1
    is_inside = lag_place < parts
    np.maximum.at(greatest, lag_place[is_inside], lag[is_inside])
    fine = np.linspace(first, last, parts * 8).astype(np.int64)
    limit = np.where(writes["mode"] == MODES.index(Mode.SEMI_SYNC), writes["limit"], 0)
    limits = np.zeros(parts)
    np.maximum.at(limits, arrived, limit.astype(np.float64))
    return Course(
        (edges[:-1] - first) / 1e6,
        np.bincount(place, minlength=parts) / width_s,
        _held(mean_ms, came > 0),
        np.bincount(place, waited, minlength=parts) / 1e6 / width_s,
        greatest,
        oldest_us(recording, fine).reshape(parts, 8).max(axis=1) / 1e6,
        np.where(is_semi, _held(limits, (limits > 0) | ~is_semi), 0.0),
        modes,
    )


def _held(
    values: npt.NDArray[np.float64], is_known: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Where a value is not known the last one that is."""
    last = np.maximum.accumulate(np.where(is_known, np.arange(len(values)), 0))
    return values[last]


def _at(modes: Modes, at: int) -> Mode:
    return next((mode for begin, mode in reversed(modes) if begin <= at), modes[0][1])


def _longest(modes: Modes, begin: int, end: int) -> Mode:
    inside = [(begin, _at(modes, begin)), *(each for each in modes if begin < each[0] < end)]
    found = shares(inside, end)
    return max(found, key=lambda mode: found[mode])
