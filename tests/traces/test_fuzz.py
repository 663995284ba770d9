"""Whatever the bytes are: records that make sense, or one clear error; never a crash."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import InvariantError, MirrordError
from mirrord.traces.importing import import_trace
from mirrord.traces.options import ReadOptions
from mirrord.traces.store import TraceFile
from tests.traces.samples import EXAMPLES, NEEDED

#: What often breaks parsers, to be put anywhere.
SPITEFUL = [b"", b"\n", b",", b" ", b"\0", b"-1", b"18446744073709551615", b"9223372036854775807",
            b"99999999999999999999999999", b"0.000000000000000000000001",
            b"\xff" * 8, b"\x80\0\0\0",
            b"W", b"nan", b"1e308", b'"', b"fio version 3 iolog\n"]  # fmt: skip


def check(data: bytes, options: ReadOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "source", Path(name) / "t.parquet"
        source.write_bytes(data)
        try:
            made = import_trace([source], target, options, durable=False, window_rows=4)
        except MirrordError as error:
            assert not isinstance(error, InvariantError)
            assert sorted(path.name for path in Path(name).iterdir()) == ["source"]
            assert "\n" not in str(error)
            return
        stored = TraceFile(target)
        assert made.records == stored.records > 0
        last = 0
        for batch in stored.batches():
            assert batch.time_ns[0] >= last
            last = int(batch.time_ns[-1])
            assert (batch.offset >= 0).all() and (batch.length >= 0).all()
            assert (batch.offset + batch.length >= 0).all()  # no end beyond 2^63
            assert (batch.op < 4).all() and (batch.volume < len(stored.facts.volumes)).all()


@pytest.mark.parametrize("name", EXAMPLES)
@settings(max_examples=30, deadline=None)
@given(
    cut=st.floats(0, 1),
    end=st.floats(0, 1),
    put=st.sampled_from(SPITEFUL),
    mercy=st.booleans(),
    forced=st.booleans(),
)
def test_a_source_that_was_tampered_with(
    name: str, cut: float, end: float, put: bytes, mercy: bool, forced: bool
) -> None:
    data = EXAMPLES[name].data * 2
    at, until = sorted((int(cut * len(data)), int(end * len(data))))
    given_options = NEEDED.get(name, ReadOptions())
    options = ReadOptions(
        format=name if forced or name == "csv" else None,
        columns=given_options.columns,
        partial=mercy,
        skip_bad=mercy,
        align_shift="auto",
        dedup_s=0.5,
    )
    check(data[:at] + put + data[until:], options)
    check(data[:at] + put + data[at:], options)


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each != "csv"])
@settings(max_examples=20, deadline=None)
@given(data=st.binary(min_size=1, max_size=200), mercy=st.booleans())
def test_any_bytes(name: str, data: bytes, mercy: bool) -> None:
    check(data, ReadOptions(format=name, partial=mercy, skip_bad=mercy))
    check(gzip.compress(data), ReadOptions(partial=mercy, skip_bad=mercy))
