"""Frames: what is written is read, and whatever else comes is an error, never more than that."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrord.core.errors import ProtocolError
from mirrord.wire.frames import (
    BODY_BYTES_MAX,
    HEADER,
    MAGIC,
    PART_BYTES_LEAST,
    Budget,
    Frame,
    FrameReader,
    Type,
    control,
    header,
    value_of,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def hello() -> bytes:
    return b"".join(control(Type.HELLO, 0, {"versions": [1]}))


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), VALUES)), st.randoms(use_true_random=False))
def test_what_is_written_is_read_however_it_is_cut(
    said: list[tuple[int, object]], chance: random.Random
) -> None:
    data = hello() + b"".join(
        part for stream, value in said for part in control(Type.CALL, stream, value)
    )
    reader, found = FrameReader(), []
    while data:
        count = chance.randint(1, 40)
        found += reader.feed(data[:count])
        data = data[count:]
    assert [(frame.stream, value_of(frame.body)) for frame in found[1:]] == said


def test_a_large_value_goes_in_parts_and_comes_whole() -> None:
    value = ["x" * 1000] * 3000
    reader = FrameReader()
    reader.feed(hello())
    data = b"".join(control(Type.RETURN, 7, value))
    found = [
        frame for at in range(0, len(data), 70_000) for frame in reader.feed(data[at : at + 70_000])
    ]
    assert [frame.type for frame in found] == [Type.RETURN] and value_of(found[0].body) == value


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_changed_byte_is_found(body: bytes, data: st.DataObject) -> None:
    frame = bytearray(header(Type.DATA, 3, body) + body)
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    reader = FrameReader()
    reader.feed(hello())
    try:
        # A longer length waits for more, which is wrong then.
        found = reader.feed(bytes(frame)) + reader.feed(bytes(BODY_BYTES_MAX + HEADER.size))
    except ProtocolError:
        return
    assert found == [], "a damaged frame was taken for a sound one"


def in_parts(stream: int, value: object, sizes: list[int]) -> list[bytes]:
    """The frames of a call whose body is split into parts of these sizes."""
    [_, body] = control(Type.CALL, stream, value)
    frames = []
    for size in sizes:
        part, body = body[:size], body[size:]
        frames.append(header(Type.PART, stream, part) + part)
    return [*frames, header(Type.CALL, stream, body) + body]


@given(
    st.lists(st.tuples(VALUES, st.lists(st.integers(0, 30), max_size=4)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_parts_of_several_streams_may_be_mixed(
    said: list[tuple[object, list[int]]], chance: random.Random
) -> None:
    waiting = [in_parts(number, *one) for number, one in enumerate(said)]
    data = b""
    while any(waiting):
        frames = chance.choice([one for one in waiting if one])
        data += frames.pop(0)
    reader, budget, found = FrameReader(), Budget(1 << 20), []
    reader.feed(hello())
    reader.bound(budget, 1 << 20)
    while data:
        count = chance.randint(1, 40)
        found += reader.feed(data[:count])
        data = data[count:]
    values = {frame.stream: value_of(frame.body) for frame in found}
    assert values == dict(enumerate(value for value, _ in said))
    budget.take(1 << 20)  # all of it is there again


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=2000)), max_size=40),
    st.integers(1, 10_000),
)
def test_parts_are_held_up_to_the_limit(parts: list[tuple[int, bytes]], most: int) -> None:
    """Whatever their streams and sizes; an empty one counts, too."""
    reader, budget, held = FrameReader(), Budget(1 << 20), 0
    reader.feed(hello())
    reader.bound(budget, most)
    for stream, part in parts:
        held += max(len(part), PART_BYTES_LEAST)
        frame = header(Type.PART, stream, part) + part
        if held > most:
            with pytest.raises(ProtocolError, match="exceeds the limit"):
                reader.feed(frame)
            return
        assert reader.feed(frame) == []


@given(
    st.lists(st.tuples(VALUES, st.lists(st.integers(0, 30), max_size=3)), min_size=1, max_size=4),
    st.data(),
)
def test_damaged_frames_are_errors_or_wait_for_more(
    said: list[tuple[object, list[int]]], data: st.DataObject
) -> None:
    whole = b"".join(frame for number, one in enumerate(said) for frame in in_parts(number, *one))
    bad = bytearray(whole)
    at = data.draw(st.integers(0, len(bad) - 1))
    flip = data.draw(st.booleans())
    if flip:
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del bad[at : at + data.draw(st.integers(1, 50))]
    reader, found = FrameReader(), []
    reader.feed(hello())
    try:
        while bad:
            count = data.draw(st.integers(1, 200))
            found += reader.feed(bytes(bad[:count]))
            del bad[:count]
        for frame in found:
            value_of(frame.body)
    except ProtocolError:
        return
    assert len(found) < len(said) or not flip  # a whole frame may be missing


@given(st.binary(max_size=4096))
def test_garbage_is_an_error_or_nothing(garbage: bytes) -> None:
    for begun in (False, True):
        reader = FrameReader()
        if begun:
            reader.feed(hello())
        try:
            frames = reader.feed(garbage)
        except ProtocolError:
            continue
        assert frames == []


@pytest.mark.parametrize("length", [BODY_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_huge_length_is_refused_before_anything_is_held(length: int) -> None:
    reader = FrameReader()
    reader.feed(hello())
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        reader.feed(HEADER.pack(MAGIC, 1, Type.DATA, 1, length, 0))


def test_parts_without_an_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrord.wire.frames.CONTROL_BYTES_MAX", 1 << 20)
    reader = FrameReader()
    reader.feed(hello())
    part = bytes(100_000)
    with pytest.raises(ProtocolError, match="a frame in parts exceeds the limit"):
        for stream in range(20):
            reader.feed(header(Type.PART, stream, part) + part)


def test_what_a_login_shell_prints_is_passed_over() -> None:
    reader = FrameReader(stray_bytes_max=1000)
    assert reader.feed(b"Welcome to mRoot!\r\n") == []
    said = control(Type.HELLO, 0, {"versions": [1]})[1]
    assert reader.feed(hello()) == [Frame(Type.HELLO, 0, said)]
    assert reader.stray == b"Welcome to mRoot!\r\n"
    with pytest.raises(ProtocolError, match="does not use mirrord's protocol"):
        FrameReader(stray_bytes_max=100).feed(b"x" * 200)


def test_another_format_says_so() -> None:
    reader = FrameReader()
    reader.feed(hello())
    with pytest.raises(ProtocolError, match="format 9"):
        reader.feed(HEADER.pack(MAGIC, 9, Type.DATA, 1, 0, 0))


@given(st.binary(max_size=64))
def test_a_body_that_is_no_value_is_an_error(body: bytes) -> None:
    try:
        value_of(body)
    except ProtocolError:
        return
