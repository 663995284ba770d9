"""Binary formats: vscsi of VMware, blktrace, SRT of HP, recordings of live mirrors."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime

from mirrord.core.errors import UsageError
from mirrord.system.native import TraceParser
from mirrord.traces.formats.base import Format, Sample
from mirrord.traces.options import ReadOptions

#: Actions of blktrace by the letters of blkparse.
ACTIONS = {"Q": 1, "M": 2, "F": 3, "G": 4, "S": 5, "R": 6, "D": 7, "C": 8}


def action_of(options: ReadOptions) -> str:
    """The letter given with `--only`; Q by default. `UsageError` when it is not an action."""
    letter = (options.only or "Q").upper()
    if letter not in ACTIONS and letter != "A":
        raise UsageError(
            f"'{options.only}' is not an action", hint="Q: queued, C: completed, D: issued."
        )
    return letter


def _vscsi(version: int, record: int, at: int) -> Format:
    def matches(sample: Sample) -> bool:
        data = sample.data
        if len(data) < record:
            return False
        count = min(len(data) // record, 8)
        versions = [struct.unpack_from("<H", data, at + record * i)[0] >> 8 for i in range(count)]
        return set(versions) == {version}

    what = "with response times" if version == 2 else "32 bytes per record"
    return Format(
        f"vscsi{version}",
        f"VMware vscsiStats v{version} ({what})",
        matches,
        lambda _sample, options: TraceParser.vscsi(version, options.skip_bad),
    )


def _blktrace(_sample: Sample, options: ReadOptions) -> TraceParser:
    letter = action_of(options)
    if letter == "A":
        raise UsageError(
            "action A cannot be selected from blktrace files", hint="Use --only Q, C or D."
        )
    return TraceParser.blktrace(ACTIONS[letter])


def _srt_epoch(sample: Sample, _parser: TraceParser) -> int | None:
    """The header's date; it has no time zone, so UTC is assumed."""
    found = re.search(rb'tracedate\s*=\s*"([^"]{10,40})"', sample.data)
    if found is None:
        return None
    try:
        date = datetime.strptime(found[1].decode("ascii", "replace"), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return None
    return int(date.replace(tzinfo=UTC).timestamp()) * 10**9


FORMATS = (
    Format(
        "blktrace", "blktrace's binary files, one for each processor (Linux)",
        lambda sample: sample.data[:4] == b"\x07\x74\x61\x65" and len(sample.data) >= 48,
        _blktrace, lambda _sample, parser: parser.epoch,
        takes=("only",),
    ),
    Format(
        "srt", "HP's SRT 1.3 (DiskSim: hpl)",
        lambda sample: sample.data.startswith(b"$$TR_IOREC-1.3"),
        lambda _sample, options: TraceParser.srt(options.skip_bad), _srt_epoch,
    ),
    Format(
        "mirrord-live", "what 'mirrord trace record' writes of a live mirror",
        lambda sample: sample.data.startswith(b"mirrord live 1\n\0"),
        lambda _sample, options: TraceParser.live(options.skip_bad),
        lambda _sample, parser: parser.epoch,
    ),
    _vscsi(1, 32, 14),
    _vscsi(2, 40, 2),
)  # fmt: skip
