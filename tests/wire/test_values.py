"""Model values travel whole, and what is not one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrord.core.errors import ProtocolError
from mirrord.core.model import (
    BlockStates,
    Delta,
    Divergence,
    FileChange,
    ReceiveRequest,
    Role,
    Snapshot,
    SnapshotKind,
    Staging,
    VolumeFacts,
)
from mirrord.wire.values import pack, unpack

SNAPSHOT = Snapshot("u:1", "n", SnapshotKind.OWN, 3, 1_700_000_000_000_000_000, "/x", False, ("a",))
EVERY: list[Any] = [
    SNAPSHOT,
    VolumeFacts(
        "btrfs",
        "/a",
        Role.ABSENT,
        "",
        "f",
        "/a/current",
        None,
        "m",
        None,
        1,
        2,
        "",
        ("n",),
        parent_missing=True,
    ),
    Delta("b", "i", 4096, BlockStates(1, 2, 3, 4), 5, 6, True, (FileChange("p", "added", 7),)),
    Delta(None, "i", 4096, None, 5, 6),
    Divergence("b", 1, None, 0, ("x",)),
    ReceiveRequest("t", "m", None, SNAPSHOT),
    Staging("t", "b", SNAPSHOT, False, {"bytes": 5, "digest": "ff"}, 9),
]


@pytest.mark.parametrize("value", EVERY, ids=lambda value: type(value).__name__)
def test_a_value_travels_whole(value: Any) -> None:
    packed = msgpack.unpackb(msgpack.packb(pack(value)))
    assert unpack(type(value), packed) == value


def test_an_older_and_a_newer_peer_are_understood() -> None:
    packed = pack(SNAPSHOT)
    assert unpack(Snapshot, packed[:5]) == (*SNAPSHOT[:5], "", True, (), False, False, 0)
    assert unpack(Snapshot, [*packed, "something new"]) == SNAPSHOT
    with pytest.raises(ProtocolError):
        unpack(Snapshot, packed[:4])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JUNK, st.sampled_from([type(value) for value in EVERY]))
def test_anything_else_is_refused(junk: Any, kind: type) -> None:
    with pytest.raises(ProtocolError):
        unpack(kind, junk)


def test_a_number_that_is_too_large_is_refused() -> None:
    """JSON has no limit."""
    with pytest.raises(ProtocolError):
        unpack(float, 10**400)


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values within a value."""
    yield path
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else inner:
        yield from places_of(one, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


@given(st.sampled_from(EVERY), JUNK, st.data())
def test_a_value_with_something_else_in_it_is_refused_or_of_its_types(
    value: Any, junk: Any, data: st.DataObject
) -> None:
    packed = pack(value)
    bad = replaced(packed, data.draw(st.sampled_from(list(places_of(packed)))), junk)
    try:
        found = unpack(type(value), bad)
    except ProtocolError:
        return
    assert type(found) is type(value)
    assert repr(unpack(type(value), pack(found))) == repr(found)
