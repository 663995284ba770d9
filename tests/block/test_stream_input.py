"""Properties of the block stream: whatever arrives, and however it is cut, the receiver has the
announced snapshot in the end, or raises an error of its own and has nothing.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrord.core.errors import (
    CheckpointUseless,
    Damaged,
    MirrordError,
    Refused,
    TransferFailed,
)
from mirrord.core.model import Snapshot
from mirrord.drivers.block import receive
from mirrord.drivers.block.driver import BlockDriver
from mirrord.drivers.block.volume import Volume
from tests.contract.flows import MIRROR, request

MIB = 1 << 20
SIZE = 6 * MIB


class Sent:
    """A volume, its one snapshot, and the stream of it from any address on."""

    def __init__(self, path: Path) -> None:
        volume = Volume.create(path, SIZE)
        volume.write(0, random.Random(1).randbytes(3 * MIB))
        volume.write(5 * MIB, random.Random(2).randbytes(MIB // 2))
        volume.close()
        self.driver = BlockDriver(str(path))
        self.snapshot: Snapshot = self.driver.take_snapshot("s1")
        self.stream = self.from_address(0)

    def from_address(self, address: int) -> bytes:
        checkpoint: dict[str, int | str] | None = {"address": address} if address else None
        with self.driver.send(None, self.snapshot.guid, checkpoint=checkpoint) as stream:
            return b"".join(bytes(piece) for piece in iter(stream.read, b""))


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return Sent(tmp_path_factory.mktemp("source") / "v")


def fresh(place: Path) -> BlockDriver:
    driver = BlockDriver(tempfile.mkdtemp(dir=place) + "/v")
    driver.prepare(MIRROR)
    return driver


def pieces_of(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted(cut % (len(data) + 1) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        yield data[start:end]


CUTS = st.lists(st.integers(0, 1 << 30), max_size=8)


@settings(max_examples=25, deadline=None)
@given(cuts=CUTS, stops=st.lists(st.integers(0, 1 << 30), max_size=6), resumable=st.booleans())
def test_a_stream_arrives_in_any_pieces_and_with_any_interruptions(
    sent: Sent, cuts: list[int], stops: list[int], resumable: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        driver = fresh(Path(folder))
        wanted = request("t", None, sent.snapshot, resumable=resumable)
        data = sent.stream
        for stop in stops:
            with driver.receive(wanted) as receiver:
                receiver.write(data[: stop % len(data)])
            [staging] = driver.stagings()
            data = sent.from_address(int((staging.checkpoint or {"address": 0})["address"]))
        with driver.receive(wanted) as receiver:
            for piece in pieces_of(data, cuts):
                receiver.write(piece)
            receiver.finish()
        driver.commit("t", show=True)
        [snapshot] = driver.snapshots()
        assert snapshot.guid == sent.snapshot.guid and snapshot.intact


@settings(max_examples=60, deadline=None)
@given(
    how=st.sampled_from(["flip", "remove", "insert", "cut", "repeat"]),
    near=st.sampled_from([0, 24, 1000, MIB, 3 * MIB]) | st.integers(0, 1 << 30),
    count=st.integers(1, 5000),
    bit=st.integers(0, 7),
    cuts=CUTS,
)
def test_a_damaged_stream_is_an_error_and_nothing_else(
    sent: Sent, how: str, near: int, count: int, bit: int, cuts: list[int]
) -> None:
    bad = bytearray(sent.stream)
    at = near % len(bad)
    if how == "flip":
        bad[at] ^= 1 << bit
    elif how == "remove":
        del bad[at : at + count]
    elif how == "insert":
        bad[at:at] = random.Random(count).randbytes(count)
    elif how == "cut":
        del bad[at:]
    else:
        bad[at:at] = sent.stream[max(0, at - count) : at] or b"HEAD"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        driver = fresh(Path(folder))
        with (
            pytest.raises((Damaged, TransferFailed, Refused)),
            driver.receive(request("t", None, sent.snapshot)) as receiver,
        ):
            for piece in pieces_of(bytes(bad), cuts):
                receiver.write(piece)
            receiver.finish()
        with pytest.raises(MirrordError):
            driver.commit("t", show=True)
        assert driver.snapshots() == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"HEAD", b"RUNS", b"DONE"]), max_size=8))
def test_any_bytes_are_an_error(sent: Sent, pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        driver = fresh(Path(folder))
        with (
            pytest.raises((Damaged, TransferFailed)),
            driver.receive(request("t", None, sent.snapshot)) as receiver,
        ):
            for piece in pieces:
                receiver.write(piece)
            receiver.finish()


def test_blocks_are_counted_when_a_receiver_is_killed_at_a_checkpoint(
    sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot has no more blocks than its stream: also when that came in two parts."""
    monkeypatch.setattr(receive, "_CHECKPOINT_BYTES", MIB)
    driver = fresh(tmp_path)
    receiver = driver.receive(request("t", None, sent.snapshot))
    receiver.write(sent.stream[: 2 * MIB])
    monkeypatch.setattr(receiver, "_checkpoint", lambda: None)
    receiver.close()  # without another one
    [staging] = driver.stagings()
    assert staging.checkpoint is not None
    with driver.receive(request("t", None, sent.snapshot)) as receiver:
        receiver.write(sent.from_address(int(staging.checkpoint["address"])))
        receiver.finish()
    driver.commit("t", show=True)


def test_a_checkpoint_of_another_host_that_is_no_address_cannot_be_resumed(sent: Sent) -> None:
    with pytest.raises(CheckpointUseless, match="'elsewhere' is not an address"):
        sent.driver.send(None, sent.snapshot.guid, checkpoint={"address": "elsewhere"})
