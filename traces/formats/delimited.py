"""Formats of delimited columns, and any CSV by a map of its columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mirrord.core.errors import UsageError
from mirrord.system.native import TraceParser
from mirrord.traces.formats.base import FILETIME_EPOCH_NS, Format, Sample
from mirrord.traces.model import Op
from mirrord.traces.options import ReadOptions, time_unit_ns, unit_bytes

#: Names of operations in any CSV.
WORDS = {
    "w": Op.WRITE, "write": Op.WRITE, "writes": Op.WRITE, "wr": Op.WRITE, "ws": Op.WRITE,
    "r": Op.READ, "read": Op.READ, "reads": Op.READ, "rd": Op.READ, "rs": Op.READ,
    "d": Op.TRIM, "t": Op.TRIM, "trim": Op.TRIM, "discard": Op.TRIM, "unmap": Op.TRIM,
    "dealloc": Op.TRIM, "f": Op.FLUSH, "flush": Op.FLUSH, "sync": Op.FLUSH,
}  # fmt: skip
_SHARE = 0.9


@dataclass(frozen=True)
class Layout:
    """Columns (from 0) and units of a family member, as the native parser takes them."""

    time: int
    op: int | None
    offset: int
    length: int
    volumes: tuple[int, ...] = ()
    time_unit: str = "s"
    addr_unit: str = "byte"
    size_unit: str = "byte"
    delimiter: str = ","
    operation: str = "words"
    words: tuple[tuple[str, Op], ...] = tuple(WORDS.items())
    time_extra: int | None = None
    latency: int | None = None
    latency_unit: str = "us"
    #: Lines at the beginning that are skipped unless their time begins like a number.
    header: int = 0
    only_digits: bool = False


def parser_of(layout: Layout, options: ReadOptions) -> TraceParser:
    """The native parser; given units override those of the format."""
    words = dict(layout.words)
    if options.write_flag is not None and layout.op is not None:
        words = _flags(options.write_flag)
    return TraceParser.delimited(
        delimiter=0 if layout.delimiter == " " else ord(layout.delimiter),
        time=layout.time,
        offset=layout.offset,
        length=layout.length,
        op=layout.op,
        volumes=list(layout.volumes),
        time_extra=layout.time_extra,
        latency=layout.latency,
        operation=layout.operation if options.write_flag is None else "words",
        words={word: int(op) for word, op in words.items()},
        time_ns=time_unit_ns(options.time_unit, layout.time_unit),
        offset_bytes=unit_bytes(options.addr_unit, layout.addr_unit),
        length_bytes=unit_bytes(options.size_unit, layout.size_unit),
        latency_ns=time_unit_ns(None, layout.latency_unit),
        header=layout.header,
        only_digits=layout.only_digits,
        skip_bad=options.skip_bad,
    )


def _flags(write: str) -> dict[str, Op]:
    """With `--write-flag 0`, 1 means read, and vice versa; `WORDS` keep their meaning."""
    others = {"0": "1", "1": "0"}
    found = {**WORDS, write.lower(): Op.WRITE}
    if write in others:
        found[others[write]] = Op.READ
    return found


def _matcher(pattern: str, header: str | None = None) -> Callable[[Sample], bool]:
    compiled = re.compile(pattern, re.IGNORECASE)

    def matches(sample: Sample) -> bool:
        if header is not None and any(line.startswith(header) for line in sample.lines):
            return True
        records = sample.records
        fitting = sum(1 for line in records if compiled.fullmatch(line))
        return bool(records) and fitting >= max(1, int(_SHARE * len(records)))

    return matches


def _format(
    name: str,
    description: str,
    pattern: str,
    layout: Layout,
    *,
    header: str | None = None,
    absolute: Literal["unix", "windows"] | None = None,
) -> Format:
    start_ns = {"unix": 0, "windows": FILETIME_EPOCH_NS, None: None}[absolute]
    return Format(
        name,
        description,
        _matcher(pattern, header),
        lambda _sample, options: parser_of(layout, options),
        lambda _sample, _parser: start_ns,
        ("time_unit", "addr_unit", "size_unit"),
    )


_ONE_WRITES = (("0", Op.READ), ("1", Op.WRITE))

_N, _DEC = r"\d+", r"\d+(?:\.\d*)?"

_FAMILY = (
    _format(
        "msr", "MSR Cambridge CSV", rf"\d{{17,19}},[^,]*,{_N},(read|write),-?{_N},-?{_N},{_N}",
        Layout(0, 3, 4, 5, (1, 2), "100ns", latency=6, latency_unit="100ns"), absolute="windows",
    ),
    _format(
        "blkreplay", "blkreplay's .load", rf"{_DEC} ; +{_N} ; +{_N} ; ?[a-z]+ ;.*",
        Layout(0, 3, 1, 2, delimiter=";", operation="letters", only_digits=True,
               addr_unit="sector", size_unit="sector"),
        header="start ; sector; length ; op",
    ),
    _format(
        "systor17", "Systor '17 (LUN traces of an enterprise)",
        rf"{_DEC},(?:{_DEC})?,[a-z]?,{_N},{_N},{_N}",
        Layout(0, 2, 4, 5, (3,), latency=1, latency_unit="s", only_digits=True),
        header="Timestamp,Response,IOType,LUN", absolute="unix",
    ),
    _format(
        "libcachesim", "libCacheSim's CSV of a vscsi trace",
        rf"{_N},{_DEC},[0-9a-f]{{2}},{_N},{_N}",
        Layout(1, 2, 4, 3, operation="scsi", addr_unit="sector", only_digits=True),
        header="version,time,op,size,lbn",
    ),
    _format(
        "mirrord-csv", "the CSV that 'mirrord trace convert' writes",
        rf"{_N},[^,]*,(write|read|trim|flush),{_N},{_N},-?{_N}",
        Layout(0, 2, 3, 4, (1,), "ns", latency=5, latency_unit="ns", only_digits=True),
        header="time_ns,volume,op,offset,length,latency_ns",
    ),
    _format(
        "alibaba", "Alibaba's block traces of 2020", rf"{_N},[rw],{_N},{_N},\d{{9,}}",
        Layout(4, 1, 2, 3, (0,), "us"), absolute="unix",
    ),
    _format(
        "tencent", "Tencent's cloud block storage", rf"\d{{9,10}},{_N},{_N},[01],{_N}",
        Layout(0, 3, 1, 2, (4,), "s", "sector", "sector", words=_ONE_WRITES), absolute="unix",
    ),
    _format(
        "spc", "SPC, UMass (Financial, WebSearch)", rf"{_N},{_N},{_N},[rw],{_DEC}(,.*)?",
        Layout(4, 3, 1, 2, (0,), "s", addr_unit="sector"),
    ),
    _format(
        "cydonia", "Cydonia's CSV", rf"{_N},{_N},[rw],{_N}",
        Layout(0, 2, 1, 3, (), "us", addr_unit="sector"),
    ),
    _format(
        "ransap-write", "RanSAP, writes (with entropy)",
        rf"\d{{9,10}},{_N},{_N},{_N},{_DEC},{_DEC}",
        Layout(0, None, 2, 3, (), "s", addr_unit="sector", time_extra=1, operation="always",
               words=(("", Op.WRITE),)), absolute="unix",
    ),
    _format(
        "ransap-read", "RanSAP, reads", rf"\d{{9,10}},{_N},{_N},{_N}",
        Layout(0, None, 2, 3, (), "s", addr_unit="sector", time_extra=1, operation="always",
               words=(("", Op.READ),)), absolute="unix",
    ),
    _format(
        "fiu", "FIU (with the MD5 of each block)",
        rf"{_N} {_N} \S+ {_N} {_N} [rw] {_N} {_N} [0-9a-f]+",
        Layout(0, 5, 3, 4, (6, 7), "ns", delimiter=" ", addr_unit="sector", size_unit="sector"),
    ),
)  # fmt: skip


def mapped(sample: Sample, options: ReadOptions) -> TraceParser:
    """The parser of any CSV, by `--columns time=0,op=3,offset=4,length=5,volume=1+2`."""
    first = sample.lines[0] if sample.lines else ""
    if options.columns is None:
        raise UsageError(
            "a CSV needs a map of its columns",
            hint=f"Its first line is '{first[:100]}'. Give for example "
            "--columns time=0,op=3,offset=4,length=5,volume=1 (from 0, or by header names).",
        )
    delimiter = max(",;\t|", key=first.count)
    if not first.count(delimiter):
        delimiter = " "
    names = [word.strip() for word in _header(first, delimiter)]
    places = _places(options.columns, names)
    missing = [key for key in ("time", "offset", "length") if key not in places]
    if missing or ("op" not in places and options.write_flag != "all"):
        lacking = [*missing, *([] if "op" in places else ["op"])]
        raise UsageError(
            f"--columns lacks {', '.join(lacking)}",
            hint="A trace without operations can be read as writes only: --write-flag all.",
        )
    layout = Layout(
        places["time"][0],
        places["op"][0] if "op" in places else None,
        places["offset"][0],
        places["length"][0],
        tuple(places.get("volume", ())),
        delimiter=delimiter,
        header=1,
        latency=places["latency"][0] if "latency" in places else None,
        words=(*WORDS.items(), *_ONE_WRITES),
    )
    if "op" not in places:
        layout = replace(layout, operation="always", words=(("", Op.WRITE),))
        options = replace(options, write_flag=None)
    return parser_of(layout, options)


def _header(line: str, delimiter: str) -> list[str]:
    """The names in the first line of a CSV; there are few."""
    fields = csv.reader([line[:10_000]], delimiter=delimiter, skipinitialspace=True)
    return [name.strip() for name in next(fields, [])]


_KEYS = ("time", "op", "offset", "length", "volume", "latency")


def _places(text: str, names: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in _KEYS or not value:
            raise UsageError(
                f"'{part}' is not a column of the map",
                hint=f"Write KEY=COLUMN; keys are: {', '.join(_KEYS)}.",
            )
        for word in value.split("+"):
            if word.isdigit() and int(word) < 24:
                found.setdefault(key, []).append(int(word))
            elif word in names:
                found.setdefault(key, []).append(names.index(word))
            else:
                raise UsageError(
                    f"there is no column '{word}'",
                    hint=f"Columns are 0 to {len(names) - 1}, or: {', '.join(names)[:200]}.",
                )
    return found


#: From 1990 to 2100 in nanoseconds since 1970: too large to count from the start of a recording.
_DATES_NS = range(631_152_000 * 10**9, 4_102_444_800 * 10**9)


def _dated(_sample: Sample, parser: TraceParser) -> int | None:
    """Times within the range of dates are taken as Unix time."""
    return 0 if parser.zero is not None and parser.zero in _DATES_NS else None


CSV = Format(
    "csv",
    "any CSV, by --columns",
    lambda sample: False,
    mapped,
    _dated,
    takes=("columns", "time_unit", "addr_unit", "size_unit", "write_flag"),
)
FORMATS = (*_FAMILY, CSV)
