"""The driver contract: the trees of digests of two copies, by which they are compared."""

from __future__ import annotations

import pytest

from mirrord.core.errors import NotFound, Refused, Unsupported
from mirrord.core.sets import parts_of
from mirrord.core.verification import VerifyMode, VerifyNode, VerifyProgress, VerifyRequest
from mirrord.drivers.contract import Capability, Driver
from mirrord.drivers.verification import Verification, verification_of
from tests.contract.flows import initialized, volumes
from tests.contract.lab import Lab


def ends(lab: Lab) -> list[tuple[Verification, Verification, str, str]]:
    """Source and destination of each member, with the snapshot that both have, and each of which
    that consists; [] for kinds that cannot be verified, which say so.
    """
    source, destination, base = initialized(lab)
    if Capability.VERIFY not in destination.capabilities:
        for one in volumes(destination):
            with pytest.raises(Unsupported):
                verification_of(one).verify_end()
        return []
    here, there = volumes(source), volumes(destination)
    parts = parts_of(base.guid, len(here))
    return [
        (verification_of(one), verification_of(other), part, guid)
        for one, other, part in zip(here, there, parts, strict=True)
        for guid in one.members(part)
    ]


def computed(end: Verification, request: VerifyRequest) -> VerifyProgress:
    while not (found := end.verify_step(request, 1.0)).done:
        pass
    return found


@pytest.mark.parametrize("mode", [VerifyMode.FULL, VerifyMode.SAMPLE])
def test_equal_copies_have_equal_trees(lab: Lab, mode: VerifyMode) -> None:
    for source, destination, _whole, guid in ends(lab):
        request = VerifyRequest(guid, mode, parts=500_000, seed=7)
        here, there = computed(source, request), computed(destination, request)
        assert here.root == there.root and len(here.root) == 64
        assert (here.files, here.blocks) == (there.files, there.blocks) != (0, 0)
        assert here.unreadable == there.unreadable == 0
        again = computed(destination, request)  # the same as the first time
        assert again == there
        _compare(source, destination, request, "")
        with pytest.raises(NotFound):
            destination.verify_nodes(request._replace(guid="other"), "", "", 9)


def _compare(one: Verification, other: Verification, request: VerifyRequest, folder: str) -> None:
    found = one.verify_nodes(request, folder, "", 1000)
    assert found == other.verify_nodes(request, folder, "", 1000)
    paged: list[VerifyNode] = []
    while page := other.verify_nodes(request, folder, paged[-1].path if paged else "", 1):
        assert len(page) == 1
        paged += page
    assert paged == found
    for each in found:
        if each.kind == "d":
            _compare(one, other, request, each.path)
        if each.kind == "f":
            blocks = one.verify_blocks(request, each.path, 0, 1000)
            assert blocks == other.verify_blocks(request, each.path, 0, 1000)
            assert other.verify_blocks(request, each.path, 1, 1) == blocks[32:64]


def test_a_snapshot_that_does_not_exist(lab: Lab) -> None:
    for source, *_others in ends(lab):
        with pytest.raises(NotFound):
            source.verify_step(VerifyRequest("nothing"), 1.0)


def test_a_snapshot_is_not_deleted_while_it_is_read(lab: Lab) -> None:
    deleted = set[str]()
    for source, _destination, whole, guid in reversed(ends(lab)):  # (an inner one first)
        assert isinstance(source, Driver)
        if whole in deleted or computed(source, VerifyRequest(guid)).read_bytes < 2:
            continue
        request = VerifyRequest(guid, rate=1)
        assert not source.verify_step(request, 0.01).done
        with pytest.raises(Refused, match=r"being verified|is pinned"):
            source.delete_snapshot(whole)
        source.verify_end()
        source.verify_end()
        source.delete_snapshot(whole)
        deleted.add(whole)
