"""Which site is the source, from what both ends have."""

from __future__ import annotations

import pytest

from mirrord.core.errors import Refused
from mirrord.core.model import Role, Snapshot, SnapshotKind, VolumeFacts
from mirrord.engine.direction import End, direction_from_ends

ID = "a1b2c3d4"


def end(role: Role, *, mirror_id: str = "", origin: str | None = None, ours: bool = True) -> End:
    kind = SnapshotKind.REFERENCE
    owner = ID if ours else "ffffffff"
    taken = [Snapshot("g1", f"mirrord.{owner}.20260101T000000Z.1", kind, 1, 1)]
    facts = VolumeFacts("block", "/x", role, "", "", "", mirror_id=mirror_id, origin=origin)
    return End(facts, () if role is Role.ABSENT else taken)


COPY = end(Role.MIRROR, mirror_id=ID)
DAMAGED = end(Role.MIRROR)
UNKNOWN = end(Role.FOREIGN)
ORIGINAL = end(Role.LIVE)
PROMOTED = end(Role.LIVE, origin="g1")
#: It was promoted when it was the destination of another mirror.
OF_OTHERS = end(Role.LIVE, origin="g0")
FRESH = end(Role.LIVE, ours=False)
OTHERS_COPY = end(Role.MIRROR, mirror_id="ffffffff", ours=False)
#: The source of a cascade: it has our snapshots and shows another mirror's.
MIDDLE = end(Role.MIRROR, mirror_id="ffffffff")
ABSENT = end(Role.ABSENT)
AWAY = End(None)


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        (ORIGINAL, COPY),
        (PROMOTED, COPY),  # reversed once
        (ORIGINAL, DAMAGED),
        (ORIGINAL, UNKNOWN),
        (PROMOTED, UNKNOWN),
        (ABSENT, UNKNOWN),
        (AWAY, DAMAGED),
        (ABSENT, COPY),
        (AWAY, COPY),
        (FRESH, COPY),
        (MIDDLE, COPY),
        (ORIGINAL, PROMOTED),  # broken off
        (OF_OTHERS, PROMOTED),
        (ORIGINAL, ABSENT),
        (ORIGINAL, AWAY),
        (ORIGINAL, FRESH),
        (ORIGINAL, OTHERS_COPY),
    ],
)
def test_the_ends_tell_in_either_order(source: End, destination: End) -> None:
    assert direction_from_ends("m", ID, {"a": source, "b": destination}) == "a"
    assert direction_from_ends("m", ID, {"b": destination, "a": source}) == "a"


@pytest.mark.parametrize("first", [FRESH, ABSENT, AWAY, OTHERS_COPY])
@pytest.mark.parametrize("second", [FRESH, ABSENT, AWAY])
def test_ends_without_this_mirror_give_no_direction(first: End, second: End) -> None:
    assert direction_from_ends("m", ID, {"a": first, "b": second}) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COPY, COPY),  # in the middle of a restore --all
        (PROMOTED, PROMOTED),
        (ORIGINAL, ORIGINAL),
        (PROMOTED, AWAY),  # broken off, or reversed, and its copy is away
        (PROMOTED, ABSENT),
        (PROMOTED, FRESH),
    ],
)
def test_when_either_site_could_be_the_source_the_user_must_choose(first: End, second: End) -> None:
    with pytest.raises(Refused) as caught:
        direction_from_ends("m", ID, {"a": first, "b": second})
    for site in "ab":
        assert f"mirrord takeover m --source {site}" in caught.value.hint
    assert "a is live" in caught.value.why or first is COPY
