"""ZFS streams are read record by record, and what is wrong with one is said before it is used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.drivers.zfs.stream.records import ZfsScanner
from tests.zfs.streams import RECORD, WRITE, Writer, sample

#: Features in a BEGIN record, by OpenZFS' numbers.
_RESUMING, _RAW = 1 << 20, 1 << 24
STREAMS = {order: sample(order) for order in "<>"}


def feed(scanner: ZfsScanner, stream: bytes, cuts: list[int]) -> bytes:
    passed, start = b"", 0
    for cut in [*sorted(cuts), len(stream)]:
        for piece in scanner.feed(stream[start:cut]):
            passed += bytes(piece)
        start = max(cut, start)
    return passed


@given(order=st.sampled_from("<>"), cuts=st.lists(st.integers(0, len(STREAMS["<"])), max_size=30))
def test_the_end_is_held_back_however_the_stream_is_cut(order: str, cuts: list[int]) -> None:
    stream, scanner = STREAMS[order], ZfsScanner(collect=True)
    assert feed(scanner, stream, cuts) == stream[:-RECORD]
    assert scanner.ended and scanner.end_record == stream[-RECORD:]
    assert scanner.stream_bytes == len(stream)
    begin = scanner.begin
    assert begin is not None
    assert (begin.toguid, begin.fromguid, begin.toname) == (77, 55, "tank/a@two")
    assert begin.swapped == (order == ">") and not begin.volume and not begin.resuming
    [file] = scanner.objects()
    assert (file.number, file.added) == (7, [(0, 1536)])
    assert file.freed == [(4096, 2**64 - 1)]
    assert scanner.freed_objects() == [(9, 32)]


def test_nothing_of_an_end_record_is_passed_even_byte_by_byte() -> None:
    stream, scanner, passed = STREAMS["<"], ZfsScanner(), 0
    for at in range(len(stream)):
        assert not scanner.ended
        passed += sum(len(piece) for piece in scanner.feed(stream[at : at + 1]))
        assert passed <= len(stream) - RECORD
    assert scanner.ended


@given(length=st.integers(0, len(STREAMS["<"]) - 1))
def test_a_truncated_stream_is_never_complete(length: int) -> None:
    scanner = ZfsScanner()
    feed(scanner, STREAMS["<"][:length], [])
    assert not scanner.ended and scanner.end_record == b""


@settings(max_examples=400)
@given(
    order=st.sampled_from("<>"),
    changes=st.dictionaries(
        st.integers(0, len(STREAMS["<"]) - 1), st.integers(1, 255), min_size=1, max_size=8
    ),
    cuts=st.lists(st.integers(0, len(STREAMS["<"])), max_size=4),
)
def test_a_changed_stream_never_ends_well(
    order: str, changes: dict[int, int], cuts: list[int]
) -> None:
    damaged = bytearray(STREAMS[order])
    for at, mask in changes.items():
        damaged[at] ^= mask
    scanner = ZfsScanner()
    try:
        feed(scanner, bytes(damaged), cuts)
    except ValueError as error:
        assert str(error)
        with pytest.raises(ValueError, match="damaged"):
            scanner.feed(STREAMS["<"])
    assert not scanner.ended


@given(garbage=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_garbage_is_refused_or_waited_for(garbage: bytes, cuts: list[int]) -> None:
    scanner = ZfsScanner(collect=True)
    try:
        feed(scanner, garbage, cuts)
    except ValueError as error:
        assert "does not begin as a ZFS stream" in str(error)
    assert not scanner.ended


@pytest.mark.parametrize("length", [2**24 + 4, 2**40, 2**63, 2**64 - 4])
def test_a_length_is_not_believed_although_its_checksum_is_right(length: int) -> None:
    made = Writer()
    made.record(WRITE, (8, "Q", 1), (32, "Q", length))
    with pytest.raises(ValueError, match=r"claims|beyond"):
        ZfsScanner().feed(made.stream)


def test_a_package_and_what_follows_an_end_are_refused() -> None:
    package = bytearray(STREAMS["<"])
    package[16] ^= 3
    with pytest.raises(ValueError, match="package"):
        ZfsScanner().feed(bytes(package))
    with pytest.raises(ValueError, match="follows its end"):
        ZfsScanner().feed(STREAMS["<"] + STREAMS["<"])


def test_the_features_of_a_stream_are_told() -> None:
    made = Writer(features=_RAW | _RESUMING | 1 << 45)
    scanner = ZfsScanner()
    scanner.feed(made.stream)
    assert scanner.begin is not None
    assert scanner.begin.resuming
    assert scanner.begin.features == _RAW | _RESUMING | 1 << 45
