"""The driver contract, claim by claim: `Capability.RESUME`. A receive that may break off leaves a
checkpoint, and what was sent before it is not sent again.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrord.core.errors import CheckpointUseless, Damaged, LinkLost, MirrordError
from mirrord.core.model import Snapshot, Staging
from mirrord.drivers.contract import Capability, Driver
from tests.contract.flows import initialized, request, stage, whole_stream
from tests.contract.lab import Lab
from tests.contract.remote import RemoteLab
from tests.contract.zfs import ZfsLab
from tests.support.labs import MACHINE_LABS, open_lab

pytestmark = [pytest.mark.large, pytest.mark.one_volume]

#: What a cut may cost at most, and what it costs a receiver that is killed.
CUT_BYTES = 16 << 20
KILLED_BYTES = 8 << 20


def interrupt(destination: Driver, base: Snapshot, snapshot: Snapshot, stream: bytes) -> Staging:
    """Receive so much of the stream, in chunks of odd lengths; returns what is left of it."""
    chance = random.Random(len(stream))
    with destination.receive(request("t", base, snapshot, resumable=True)) as receiver:
        at = 0
        while at < len(stream):
            length = chance.choice([1, 77, 4096, 65_537, 1 << 20])
            receiver.write(stream[at : at + length])
            at += length
    [staging] = destination.stagings()
    assert not staging.complete
    return staging


def rest_of(source: Driver, base: Snapshot, snapshot: Snapshot, staging: Staging) -> bytes:
    """What is sent when it goes on from there."""
    assert staging.checkpoint
    checkpoint = dict(staging.checkpoint)
    with source.send(base.guid, snapshot.guid, checkpoint=checkpoint) as stream:
        rest = bytearray()
        while chunk := stream.read():
            rest += chunk
    return bytes(rest)


def changed(lab: Lab) -> tuple[Driver, Driver, Snapshot, Snapshot, bytes]:
    """Both ends, base and incremental, and the stream between them."""
    source, destination, base = initialized(lab)
    assert Capability.RESUME in destination.capabilities
    lab.change_much(source, 1)
    snapshot = source.take_snapshot("next")
    return source, destination, base, snapshot, whole_stream(source, base, snapshot)


def test_a_transfer_that_is_cut_again_and_again_sends_hardly_anything_twice(lab: Lab) -> None:
    """Cut at 10, 50 and 90 %, each time at an odd byte."""
    source, _there, base, snapshot, whole = changed(lab)
    before = lab.content(lab.destination())
    rest = whole
    for share in (0.1, 0.5, 0.9):
        cut = int(len(whole) * share) | 1
        begin = len(whole) - len(rest)
        staging = interrupt(lab.destination(), base, snapshot, rest[: cut - begin])
        assert lab.content(lab.destination()) == before
        rest = rest_of(lab.source(), base, snapshot, staging)
        resent = len(rest) - (len(whole) - cut)
        assert resent <= min(CUT_BYTES, cut), share
        if cut > CUT_BYTES:
            assert staging.received_bytes > 0 and len(rest) < len(whole)
    last = stage(source, lab.destination(), base, snapshot, "t", resumable=True)
    assert last.complete
    lab.destination().commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)
    assert lab.destination().stagings() == []
    lab.sound(lab.destination())


def test_a_checkpoint_can_be_discarded(lab: Lab) -> None:
    source, destination, base, snapshot, whole = changed(lab)
    interrupt(destination, base, snapshot, whole[: len(whole) // 2])
    lab.destination().discard("t")
    assert lab.destination().stagings() == []
    stage(source, lab.destination(), base, snapshot, "t", resumable=True)
    lab.destination().commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)


def test_what_was_kept_of_another_snapshot_is_not_gone_on_from(lab: Lab) -> None:
    """The same transfer, but another snapshot is announced: nothing of the first gets into it. To
    refuse it is right, too.
    """
    source, destination, base, snapshot, whole = changed(lab)
    interrupt(destination, base, snapshot, whole[: len(whole) // 2])
    lab.change(source, 2)
    other = source.take_snapshot("other")
    try:
        with (
            lab.destination().receive(request("t", base, other, resumable=True)) as receiver,
            source.send(base.guid, other.guid) as stream,
        ):
            while chunk := stream.read():
                receiver.write(chunk)
            receiver.finish()
    except Damaged:
        lab.destination().discard("t")
        stage(source, lab.destination(), base, other, "t", resumable=True)
    lab.destination().commit("t", show=True)
    assert lab.content(lab.destination()) == lab.content(source)


def test_a_forgotten_mirror_leaves_no_checkpoint(lab: Lab) -> None:
    _source, destination, base, snapshot, whole = changed(lab)
    interrupt(destination, base, snapshot, whole[: len(whole) // 2])
    lab.destination().forget()
    try:
        left = lab.destination().stagings()
    except MirrordError:
        left = []  # it is no place of a mirror any more
    assert left == []


def test_a_checkpoint_of_another_stream_is_refused_by_the_sender(lab: Lab) -> None:
    source, destination, base, snapshot, whole = changed(lab)
    staging = interrupt(destination, base, snapshot, whole[: len(whole) // 2])
    assert staging.checkpoint
    if "digest" not in staging.checkpoint:
        return  # blocks have an address each: what is here is verified block by block at the end
    wrong = {**staging.checkpoint, "digest": "00" * 32}
    longer = {**staging.checkpoint, "bytes": len(whole) + 1}
    odd: dict[str, int | str] = {"address": 12}
    for checkpoint in (wrong, longer, odd):
        with (
            pytest.raises(CheckpointUseless),
            source.send(base.guid, snapshot.guid, checkpoint=checkpoint) as stream,
        ):
            while stream.read():
                pass


KILLED = """
import os, sys
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.model import ReceiveRequest, Snapshot, SnapshotKind
from mirrord.drivers.registry import open_driver
place, base, guid, name, file = sys.argv[1:]
snapshot = Snapshot(guid, name, SnapshotKind.REFERENCE, 1, 1)
wanted = ReceiveRequest("t", "m1", base, snapshot, True)
receiver = open_driver(parse_endpoint(place)).receive(wanted)
with open(file, "rb") as stream:
    while chunk := stream.read(300_001):
        receiver.write(chunk)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("name", ["lab_block", "lab_btrfs"])
def test_a_receiver_that_is_killed_loses_little(name: str, tmp_path: Path) -> None:
    with open_lab(name, tmp_path, large=True) as lab:
        source, destination, base, snapshot, whole = changed(lab)
        file, cut = tmp_path / "stream", int(len(whole) * 0.7) | 1
        file.write_bytes(whole[:cut])
        words = [str(destination), base.guid, snapshot.guid, snapshot.name, str(file)]
        done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, timeout=200)
        assert done.returncode == -signal.SIGKILL
        [staging] = lab.destination().stagings()
        rest = rest_of(source, base, snapshot, staging)
        assert len(rest) - (len(whole) - cut) <= KILLED_BYTES
        stage(source, lab.destination(), base, snapshot, "t", resumable=True)
        lab.destination().commit("t", show=True)
        assert lab.content(lab.destination()) == lab.content(source)


@pytest.mark.parametrize("name", ["lab_remote_block", "lab_remote_btrfs", *MACHINE_LABS])
def test_an_agent_that_is_killed_in_mid_transfer_costs_little(name: str, tmp_path: Path) -> None:
    """What was on its way over the link is counted, too."""
    with open_lab(name, tmp_path, large=True) as lab:
        assert isinstance(lab, RemoteLab | ZfsLab)
        source, destination, base, snapshot, whole = changed(lab)
        cut, sent = int(len(whole) * 0.8) | 1, 0
        with (
            pytest.raises(LinkLost),
            destination.receive(request("t", base, snapshot, resumable=True)) as receiver,
        ):
            while True:  # until it is noticed
                if sent >= cut:
                    lab.others.kill()
                receiver.write(whole[sent : sent + 100_003])
                sent = min(sent + 100_003, len(whole))
        [staging] = lab.destination().stagings()
        rest = rest_of(lab.source(), base, snapshot, staging)
        assert len(rest) - (len(whole) - sent) <= CUT_BYTES
        assert len(rest) < len(whole)
        stage(lab.source(), lab.destination(), base, snapshot, "t", resumable=True)
        lab.destination().commit("t", show=True)
        assert lab.content(lab.destination()) == lab.content(source)
