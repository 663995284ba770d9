"""Bad sources: each is one clear error that says where and what next, and leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import os
import random
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mirrord.cli.main import run
from mirrord.core.errors import (
    Damaged,
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    UsageError,
)
from mirrord.traces import batches as make
from mirrord.traces.generators import Sequential
from mirrord.traces.importing import first_records, import_trace
from mirrord.traces.model import Facts
from mirrord.traces.options import ReadOptions
from mirrord.traces.reading import open_trace
from mirrord.traces.sources import SAMPLE_BYTES, opened
from mirrord.traces.store import TraceFile, TraceWriter, trace_errors
from mirrord.traces.writing import write_text
from tests.traces.samples import EXAMPLES, FILETIME


def refused(
    path: Path, kind: type[MirrordError], *parts: str, options: ReadOptions | None = None
) -> MirrordError:
    """The error of importing it; what was at the target stays, and nothing else is there."""
    target = path.parent / "target.parquet"
    target.write_bytes(b"what was there before")
    names = sorted(os.listdir(path.parent))
    with pytest.raises(kind) as caught:
        import_trace([path], target, options)
    assert target.read_bytes() == b"what was there before"
    assert sorted(os.listdir(path.parent)) == names
    said = f"{caught.value} | {caught.value.hint}"
    for part in parts:
        assert part in said, said
    assert "\n" not in said and caught.value.hint
    return caught.value


def source(tmp_path: Path, data: bytes, name: str = "source") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_empty(tmp_path: Path) -> None:
    refused(source(tmp_path, b""), Damaged, "is empty")
    refused(source(tmp_path, gzip.compress(b"")), Damaged, "is empty")
    refused(source(tmp_path, b""), Damaged, "is empty", options=ReadOptions(format="msr"))


def test_no_record_in_it(tmp_path: Path) -> None:
    refused(
        source(tmp_path, b"fio version 3 iolog\n0 f add\n"), Refused, "the source has no records"
    )
    only_headers = EXAMPLES["blkreplay"].data[:100]
    refused(
        source(tmp_path, only_headers),
        Refused,
        "no record",
        options=ReadOptions(format="blkreplay"),
    )


@pytest.mark.parametrize("name", ["vscsi1", "vscsi2", "srt", "blktrace"])
def test_truncated_in_the_middle_of_a_binary_record(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    path = source(tmp_path, example.data[:-5])
    refused(path, Damaged, "ends in the middle of record", "--partial")
    made = import_trace([path], tmp_path / "t.parquet", ReadOptions(partial=True))
    assert made.records == len(example.records) - 1
    assert "broken-record" in [each.name for each in made.findings]


@pytest.mark.parametrize("name", ["msr", "spc", "fio3", "alibaba", "fiu", "blkreplay"])
def test_truncated_in_the_middle_of_a_line(name: str, tmp_path: Path) -> None:
    good = EXAMPLES[name].data
    last = good.rstrip().rsplit(b"\n", 1)[-1]
    path = source(tmp_path, good + last[: len(last) // 5])
    refused(path, Damaged, "ends in the middle of line", "--partial")
    import_trace([path], tmp_path / "t.parquet", ReadOptions(partial=True))


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_truncated_or_damaged_compression(packed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lines = b"".join(b"%d,8,w,512\n" % (i * 7919) for i in range(50_000))
    whole = packed(lines)
    refused(source(tmp_path, whole[:-20]), Damaged, "cannot be decompressed", "Copy")
    half = source(tmp_path, whole[: len(whole) // 2])
    refused(half, Damaged, "cannot be decompressed", "--partial")
    made = import_trace([half], tmp_path / "t.parquet", ReadOptions(partial=True))
    assert 15_000 < made.records < 35_000
    assert "1 end of compressed data missing" in [each.text for each in made.findings]
    # Some tools fill the last block of a tape with zeros.
    if packed is gzip.compress:
        import_trace([source(tmp_path, whole + bytes(5000))], tmp_path / "t.parquet")
    spoiled = bytearray(whole)
    for at in range(len(whole) // 2, len(whole) // 2 + 200):
        spoiled[at] ^= 0xA5
    refused(source(tmp_path, bytes(spoiled)), Damaged)


@pytest.mark.parametrize("packer", [gzip.GzipFile, zstandard.ZstdCompressor().stream_writer])
def test_a_small_file_that_unpacks_to_much_takes_little_memory(  # type: ignore[no-untyped-def]
    packer, tmp_path: Path
) -> None:
    path = tmp_path / "source"
    with path.open("wb") as file:
        made = packer(fileobj=file, mode="wb") if packer is gzip.GzipFile else packer(file)
        with made:
            for _ in range(512):
                made.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with opened(path) as source:
            assert len(source.sample) == SAMPLE_BYTES
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("forced", ["blkparse", "spc", "vscsi1", "fio2", "blktrace", "srt", "fiu"])
def test_the_wrong_format_forced(forced: str, tmp_path: Path) -> None:
    path = source(tmp_path, EXAMPLES["msr"].data * 40)
    found = refused(path, Damaged, forced, options=ReadOptions(format=forced))
    assert "looks like msr: omit --format" in found.hint or "middle" in str(found)


def test_an_unknown_format(tmp_path: Path) -> None:
    refused(source(tmp_path, b"hello\nworld\n"), Refused, "not known", "'hello'", "--columns")
    refused(source(tmp_path, bytes(range(256)) * 9), Refused, "binary", "00 01 02")
    path = source(tmp_path, EXAMPLES["msr"].data)
    refused(path, UsageError, "no format 'mrs'", "msr", options=ReadOptions(format="mrs"))
    refused(path, UsageError, "--only does not apply", options=ReadOptions(only="Q"))
    refused(path, UsageError, "not a unit of time", options=ReadOptions(time_unit="h"))
    refused(path, UsageError, "not a unit of size", options=ReadOptions(addr_unit="inch"))


def test_a_bad_line_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    lines = [f"{FILETIME + i},hm,0,Write,{4096 * i},4096,26" for i in range(200)]
    lines[150] = f"{FILETIME},hm,0,Write,many,4096,26"
    path = source(tmp_path, "\n".join(lines).encode())
    refused(path, Damaged, "line 151", "'many' is not a number", "--skip-bad")
    made = import_trace([path], tmp_path / "t.parquet", ReadOptions(skip_bad=True))
    assert made.records == 199
    assert "bad-records" in [each.name for each in made.findings]


@pytest.mark.parametrize(
    "offset", ["9223372036854775807", "9223372036854775808", "99999999999999999999999"]
)
def test_offsets_beyond_the_limit(offset: str, tmp_path: Path) -> None:
    path = source(tmp_path, f"{FILETIME},hm,0,Write,{offset},4096,26\n".encode())
    refused(path, Damaged, "beyond 2^63", options=ReadOptions(format="msr"))
    sector = source(tmp_path, b"  8,16 2 1 9.3 16766  Q   W 36028797018963968 + 8 [x]\n")
    refused(sector, Damaged, "beyond 2^63")


def test_negative_and_other_numbers(tmp_path: Path) -> None:
    for value in ("-4096", "0x10", "1e9", ""):
        path = source(tmp_path, f"{FILETIME},hm,0,Write,{value},4096,26\n".encode())
        refused(path, Damaged, "offset", options=ReadOptions(format="msr"))
    path = source(tmp_path, f"{FILETIME},hm,0,Erase,0,4096,26\n".encode())
    refused(path, Damaged, "'Erase' is not an operation", options=ReadOptions(format="msr"))


def test_places(tmp_path: Path) -> None:
    good = source(tmp_path, EXAMPLES["msr"].data)
    with pytest.raises(NotFound):
        open_trace(tmp_path / "nothing")
    with pytest.raises(Refused, match="folder"):
        open_trace([tmp_path, good])
    with pytest.raises(NotFound, match="no such folder"):
        import_trace([good], tmp_path / "no" / "t.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="folder"):
        import_trace([good], tmp_path / "folder")
    with pytest.raises(UsageError, match="that of the previous sources is msr"):
        import_trace([good, source(tmp_path, EXAMPLES["spc"].data, "2")], tmp_path / "t")
    assert sorted(os.listdir(tmp_path)) == ["2", "folder", "source"]


def test_a_volume_that_is_not_there(tmp_path: Path) -> None:
    path = source(tmp_path, EXAMPLES["msr"].data)
    refused(path, NotFound, "no volume 'usr-0'", "hm-0, hm-1", options=ReadOptions(volume="usr-0"))
    import_trace([path], tmp_path / "t.parquet")
    with pytest.raises(NotFound, match="no volume"):
        open_trace(tmp_path / "t.parquet", options=ReadOptions(volume="usr-0"))


def test_parquet_that_is_no_trace_or_broken(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(Damaged, match="is not a trace of mirrord"):
        open_trace(path)
    import_trace([source(tmp_path, EXAMPLES["msr"].data)], path)
    whole = path.read_bytes()
    for data in (whole[:-9], whole[:4], whole[: len(whole) // 2] + whole[-300:]):
        path.write_bytes(data)
        with pytest.raises(Damaged):
            list(open_trace(path).batches())


def test_a_stored_trace_is_in_order_or_not_stored(tmp_path: Path) -> None:
    with (
        pytest.raises(Refused, match="ordered by time"),
        TraceWriter(tmp_path / "t.parquet", Facts("t", "test", ("0",))) as writer,
    ):
        writer.write(make.make([5, 4], [0, 0], [0, 0], [1, 1]))
    assert not os.listdir(tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        if os.environ.get("MIRRORD_TEST_UNPRIVILEGED"):
            pytest.skip("needs root, to mount a small file system")
        pytest.fail("needs root, or MIRRORD_TEST_UNPRIVILEGED=1")
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        gc.collect()  # an error may hold a writer of pyarrow that could not begin, and its file
        subprocess.run(["umount", place], check=True)


@pytest.mark.platform
@pytest.mark.parametrize("pages", range(7))
def test_a_file_system_that_is_full_at_any_moment(tiny: Path, tmp_path: Path, pages: int) -> None:
    """With so many pages left, the first, a later or the last bytes of a trace fail."""
    whole = tmp_path / "whole.parquet"
    generated = Sequential(2000, 600, 7200)
    with TraceWriter(whole, generated.facts) as writer:
        for batch in generated.batches():
            writer.write(batch)
    (tiny / "fill").write_bytes(bytes((64 - pages) * 4096))
    few = source(tmp_path, b"0,0,w,4096\n" * 100)
    for name, *words in (
        ("a.parquet", "import", str(few), "-o"),
        ("a.parquet", "slice", str(whole), "--from", "1s", "-o"),
        ("a.csv", "convert", str(whole)),
        ("a.csv.zst", "convert", str(whole)),
        ("a.csv.gz", "convert", str(whole)),
        ("a.parquet", "merge", str(whole), str(whole), "--align", "start", "-o"),
        ("a.parquet", "generate", "sequential", "--records", "2000", "-o"),
    ):
        status = run(["trace", *words, str(tiny / name)])
        left = {path.name for path in tiny.iterdir()} - {"fill"}
        assert left == (set() if status else {name}), (words, left)
        (tiny / name).unlink(missing_ok=True)


@pytest.mark.platform
def test_a_full_file_system(tiny: Path, tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = [f"{i * 7919},{draw.randrange(1 << 33)},w,4096\n" for i in range(200_000)]
    path = source(tmp_path, "".join(lines).encode())
    for target in (tiny / "t.parquet", tiny / "t.csv"):
        target.write_bytes(b"before")
        with pytest.raises(NoSpace, match="full") as caught:
            if target.suffix == ".csv":
                with open_trace(path) as trace:
                    write_text(trace.batches(), trace.facts, target, "csv")
            else:
                import_trace([path], target)
        assert "Nothing was left behind" in caught.value.hint
        assert target.read_bytes() == b"before"
    assert sorted(os.listdir(tiny)) == ["t.csv", "t.parquet"]
    # So does a scratch folder that is too small for what has to be put in order.
    backwards = source(tmp_path, "".join(reversed(lines)).encode(), "2")
    with pytest.raises(NoSpace):
        import_trace(
            [backwards], tmp_path / "t.parquet", ReadOptions(scratch=str(tiny)), window_rows=10_000
        )
    with pytest.raises(NoSpace) as caught:
        open_trace(path, ReadOptions(scratch=str(tiny)))
    assert "--scratch" in caught.value.hint
    assert sorted(os.listdir(tiny)) == ["t.csv", "t.parquet"]
    assert not (tmp_path / "t.parquet").exists()


def test_what_the_system_says_is_told() -> None:
    with pytest.raises(NoSpace, match="the quota is exceeded"), trace_errors("x"):
        raise OSError(errno.EDQUOT, "quota")
    with pytest.raises(Damaged), trace_errors("x"):
        raise pa.ArrowInvalid("made no sense\nat all")


def test_the_facts_of_a_stored_trace_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    import_trace([source(tmp_path, EXAMPLES["msr"].data)], path)
    table = pq.read_table(path)
    kept = json.loads(pq.read_metadata(path).metadata[b"mirrord"])
    odd: list[dict[str, object]] = [
        {"epoch_ns": "x"},
        {"findings": "x"},
        {"findings": [{}]},
    ]
    malformed = [json.dumps({**kept, **each}).encode() for each in odd]
    malformed += [b"{", b"{}", b"[]", b'{"version": 1, "name": 1}', b"[" * 200_000]
    for facts in (b'{"version": 99}', *malformed):
        pq.write_table(table.replace_schema_metadata({b"mirrord": facts}), path)
        with pytest.raises(Damaged, match=r"malformed metadata of the trace|version 99"):
            TraceFile(path)


@pytest.mark.parametrize(
    ("column", "values", "kind", "told"),
    [
        ("offset", [0, None], pa.int64(), "the column offset is not of the type int64"),
        ("time_ns", [0, 1], pa.int32(), "the column time_ns is not of the type int64"),
        ("length", [0.5, 1], pa.float64(), "the column length is not of the type int64"),
        ("time_ns", [-(1 << 63), (1 << 63) - 1], pa.int64(), "too far apart"),
        ("time_ns", [5, 0], None, "no statistics"),
        ("op", [0, 7], pa.uint8(), "an operation that the trace does not have"),
        ("volume", [0, 9], pa.uint32(), "a volume or an operation"),
    ],
)
def test_the_columns_of_a_stored_trace_are_checked(
    column: str, values: list[int], kind: pa.DataType | None, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    import_trace([source(tmp_path, EXAMPLES["msr"].data)], path)
    table, kept = pq.read_table(path), pq.read_metadata(path).metadata[b"mirrord"]
    if kind is not None:
        place = table.column_names.index(column)
        table = table.set_column(place, column, pa.array(values, kind))
    table = table.replace_schema_metadata({b"mirrord": kept})
    pq.write_table(table, path, write_statistics=kind is not None)
    with pytest.raises(Damaged) as caught:
        first_records(path, ReadOptions(), 5)
    assert told in str(caught.value)


def test_a_time_unit_that_is_far_too_large_is_said_to_be_one(tmp_path: Path) -> None:
    # Microseconds, read as seconds: after 5000 years the hint must not be to drop the records.
    lines = b"".join(b"%d,w,%d,4096\n" % (i * 1_000_000, i * 4096) for i in range(6000))
    options = ReadOptions(columns="time=0,op=1,offset=2,length=3", time_unit="s")
    found = refused(
        source(tmp_path, lines),
        Damaged,
        "more than 146 years away",
        "--time-unit ms, us or ns",
        options=options,
    )
    assert "--skip-bad" not in found.hint


def test_one_is_not_called_many(tmp_path: Path) -> None:
    lines = b"5,w,0,4096\n3,w,4096,4096\nx,w,0,4096\n9,w,0,4096\n"
    options = ReadOptions(columns="time=0,op=1,offset=2,length=3", skip_bad=True)
    made = import_trace([source(tmp_path, lines)], tmp_path / "t.parquet", options)
    said = [each.text for each in made.findings]
    assert "1 bad line left out" in said
    assert any(each.startswith("time goes back once, by up to 2.0 s") for each in said)
