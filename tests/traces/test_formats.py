"""Every format: told by its content, forced, cut in pieces, compressed; each record exactly."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from mirrord.core.errors import Damaged, MirrordError, Refused, Unsupported, UsageError
from mirrord.traces import parsing, sources
from mirrord.traces.formats import FORMATS
from mirrord.traces.formats.base import Sample
from mirrord.traces.options import ReadOptions
from mirrord.traces.parsing import Parsing
from mirrord.traces.reading import open_trace
from mirrord.traces.sniff import recognize
from tests.traces.samples import EXAMPLES, NEEDED, R, Record, W, blktrace


def read(path: Path, options: ReadOptions) -> tuple[list[Record], Parsing]:
    """All records as a parser gives them."""
    found = Parsing([path], options)
    records = []
    for batch in found.batches():
        rows = zip(
            batch.time_ns,
            batch.volume,
            batch.op,
            batch.offset,
            batch.length,
            batch.latency_ns,
            strict=True,
        )
        records += [
            Record(int(t), found.volumes[v], int(op), int(at), int(length), int(took))
            for t, v, op, at, length, took in rows
        ]
    return records, found


@pytest.fixture(params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_format_has_an_example() -> None:
    assert set(FORMATS) - {"oracleGeneral"} == set(EXAMPLES)


def test_every_format_and_finding_is_documented() -> None:
    root = Path(__file__).parents[2]
    documented = (root / "docs/traces.md").read_text(encoding="utf-8")
    for name in FORMATS:
        assert f"`{name}`" in documented
    code = (root / "traces/traps.py").read_text(encoding="utf-8")
    findings = set(re.findall(r'"([a-z]+-[a-z0-9-]+)"', code)) | {"bursts", "unsorted"}
    assert len(findings) > 12
    for name in findings:
        assert f"`{name}`" in documented, name


@pytest.mark.parametrize("compression", ["plain", "gz", "zst"])
@pytest.mark.parametrize("forced", [False, True])
def test_records_are_exact(name: str, compression: str, forced: bool, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    data = example.data
    if compression == "gz":
        data = gzip.compress(data[:40]) + gzip.compress(data[40:])  # members one after another
    elif compression == "zst":
        squeeze = zstandard.ZstdCompressor().compress
        data = squeeze(data[:40]) + squeeze(data[40:])
    path = tmp_path / "source"
    path.write_bytes(data)
    options = replace(NEEDED.get(name, ReadOptions()), format=name if forced else None)
    records, found = read(path, options)
    assert found.format is not None and found.format.name == name
    assert records == example.records
    assert found.epoch_ns == example.epoch_ns


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_pieces_may_be_cut_anywhere(
    name: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "source"
    path.write_bytes(EXAMPLES[name].data)
    # (The sample is what is read first; it stays large enough to tell the format.)
    monkeypatch.setattr(sources, "PIECE_BYTES", piece)
    monkeypatch.setattr(sources, "SAMPLE_BYTES", 450)
    monkeypatch.setattr(parsing, "SAMPLE_BYTES", 450)
    records, _ = read(path, replace(NEEDED.get(name, ReadOptions()), format=name))
    assert records == EXAMPLES[name].records


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each != "csv"])
def test_no_format_takes_another_for_its_own(name: str) -> None:
    found = recognize(Sample(EXAMPLES[name].data, whole=True))
    assert found is not None and found.name == name


def test_windows_line_ends_and_a_missing_last_one(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(EXAMPLES["msr"].data.replace(b"\n", b"\r\n").rstrip())
    assert read(path, ReadOptions())[0] == EXAMPLES["msr"].records


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("name", ["msr", "mirrord-csv", "systor17", "blkparse", "fio3"])
def test_a_mark_of_utf8_hides_no_record(name: str, header: bool, tmp_path: Path) -> None:
    path, options = tmp_path / "marked", ReadOptions(format=name)
    data = EXAMPLES[name].data
    if not header and name in ("mirrord-csv", "systor17"):
        data = data.partition(b"\n")[2]
    path.write_bytes(data)
    plain, _ = read(path, options)
    path.write_bytes(b"\xef\xbb\xbf" + data)
    assert read(path, options)[0] == plain


def test_a_mark_of_utf8_is_no_part_of_the_name_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbfwhen,what,where,size\n1,w,4096,512\n")
    found, _ = read(path, ReadOptions(columns="time=when,op=what,offset=where,length=size"))
    assert found == [Record(0, "0", W, 4096, 512)]


def test_one_action_of_blktrace_and_blkparse(tmp_path: Path) -> None:
    for name in ("blktrace", "blkparse"):
        path = tmp_path / name
        path.write_bytes(EXAMPLES[name].data)
        records, found = read(path, ReadOptions(only="c"))
        assert [each.op for each in records] == [W]
        assert found.counts["events of other actions left out"] >= 5
        with pytest.raises(Refused, match="has no event of action M"):
            open_trace(path, options=ReadOptions(only="M"))
        with pytest.raises(UsageError, match="not an action"):
            open_trace(path, options=ReadOptions(only="Y"))


def test_the_files_of_one_recording_are_one_trace(tmp_path: Path) -> None:
    for cpu in range(3):
        rows = [(1000 * i + cpu, 2 << 16 | 1, 8 * i, 4096, b"") for i in range(1, 4)]
        (tmp_path / f"sda.blktrace.{cpu}").write_bytes(blktrace(rows))
    (tmp_path / "sdb.blktrace.0").write_bytes(blktrace([(1, 2 << 16 | 1, 0, 512, b"")]))
    with open_trace(tmp_path / "sda.blktrace.1") as trace:
        assert (trace.facts.name, trace.records) == ("sda", 9)
        [batch] = trace.batches()
    assert batch.time_ns.tolist() == [0, 1, 2, 1000, 1001, 1002, 2000, 2001, 2002]


def test_units_of_five_columns(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"1 0 2 3 7\n3 0 4 5 9\n")
    options = ReadOptions(
        format="ssdsim", time_unit="us", addr_unit="4k", size_unit="100", write_flag="7"
    )
    with pytest.raises(MirrordError, match="not an operation"):
        read(path, options)
    path.write_bytes(b"1 0 2 3 1\n3 0 4 5 0\n")
    options = ReadOptions(
        format="ssdsim", time_unit="us", addr_unit="4k", size_unit="100", write_flag="1"
    )
    assert read(path, options)[0] == [
        Record(0, "0", W, 8192, 300),
        Record(2000, "0", R, 16384, 500),
    ]


def test_a_csv_without_operations_can_be_all_writes(tmp_path: Path) -> None:
    path = tmp_path / "source.csv"
    path.write_bytes(b"0.001\t7\t512\n0.002\t9\t1024\n")
    options = ReadOptions(
        columns="time=0,offset=1,length=2", addr_unit="sector", write_flag="all", time_unit="s"
    )
    assert read(path, options)[0] == [
        Record(0, "0", W, 3584, 512),
        Record(1_000_000, "0", W, 4608, 1024),
    ]
    path.write_bytes(b"1700000000.5 7 512\n1700000001 7 512\n")
    dated = ReadOptions(columns="time=0,offset=1,length=2", write_flag="all")
    assert read(path, dated)[1].epoch_ns == 1_700_000_000_500_000_000
    for columns, told in (
        ("time=0,offset=1,length=2", "op"),
        ("time=0,offset=1,length=9x", "no column '9x'"),
        ("time=0,where=1", "not a column of the map"),
        ("op=0", "time, offset, length"),
    ):
        with pytest.raises(UsageError, match=told):
            read(path, ReadOptions(columns=columns))


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["W,0.0,0,512", "R,1.0,4096,512"], "op=0,time=1,offset=2,length=3"),
        (["-1.0,W,0,512", "0.0,R,4096,512"], "time=0,op=1,offset=2,length=3"),
        (["host W .5 0 512", "host R 1.5 4096 512"], "op=1,time=2,offset=3,length=4"),
        (['"7","W","0","512"', '"8","R","4096","512"'], "time=0,op=1,offset=2,length=3"),
    ],
)
def test_the_first_line_of_a_csv_without_header_is_a_record(
    lines: list[str], columns: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    path.write_text("\n".join(lines))
    found, _ = read(path, ReadOptions(columns=columns))
    assert found == [Record(0, "0", W, 0, 512), Record(10**9, "0", R, 4096, 512)]


def test_a_delimiter_in_quotes_is_none(tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    options = ReadOptions(columns="time=when,op=what,offset=where,length=size")
    path.write_text('when,"process, name",what,where,size\n1,"a, b",w,"4096","512"\n')
    assert read(path, options)[0] == [Record(0, "0", W, 4096, 512)]
    path.write_text('when,what,where,size\n1,w,"4,096",512\n')
    with pytest.raises(Damaged, match="the offset '4,096' is not a number"):
        read(path, options)


def test_long_words_of_operations_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    path.write_text("1,TransferWrite,0,512\n2,TransferRead,0,512\n")
    options = ReadOptions(columns="time=0,op=1,offset=2,length=3", write_flag="transferwrite")
    with pytest.raises(Damaged, match="'TransferRead' is not an operation"):
        read(path, options)
    found, _ = read(path, replace(options, skip_bad=True))
    assert [each.op for each in found] == [W]


def test_a_header_is_only_in_the_first_of_several_pieces(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("xaa", "xab", "xac"))
    first.write_text("when,what,where,size\n0,W,0,512\n1,W,4096,512\n")
    second.write_text("2,W,8192,512\n3,W,12288,512\n")
    third.write_text("when,what,where,size\n4,W,16384,512\n")
    columns = "time=when,op=what,offset=where,length=size"
    parsing = Parsing([first, second, third], ReadOptions(columns=columns))
    offsets = [int(at) for batch in parsing.batches() for at in batch.offset]
    assert offsets == [0, 4096, 8192, 12288, 16384]


def test_a_damaged_first_record_of_a_csv_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("0x1,W,0,512\n1,W,4096,512\n")
    with pytest.raises(Damaged, match="the time '0x1' is not a number"):
        read(path, ReadOptions(columns="time=0,op=1,offset=2,length=3"))


def test_what_has_no_write_flag_is_refused(tmp_path: Path) -> None:
    import struct

    rows = [
        struct.pack("<IQIq", 10 + i, 1 << 40 | i, 4096, -1 if i % 3 else i + 9) for i in range(9)
    ]
    path = tmp_path / "cloud.oracleGeneral"
    path.write_bytes(b"".join(rows))
    for options in (ReadOptions(), ReadOptions(format="oracleGeneral")):
        with pytest.raises(Unsupported, match="no read/write flag") as caught:
            open_trace(path, options=options)
        assert "writes cannot be distinguished from reads" in caught.value.why
