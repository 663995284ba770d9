"""Resume tokens: what they say, and that a damaged or made-up one is refused."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrord.core.errors import CheckpointUseless
from mirrord.drivers.zfs.stream import tokens
from mirrord.drivers.zfs.stream.send import Sending, check_token

#: As OpenZFS 2.3.9 gave it.
REAL = (
    "1-f8f550eba-118-789c636064000310a500c4ec50360710e72765a526973030b0409460caa7a515"
    "a79630c001489e0d493ea9b224b5184807f062d75f929f5e9a99c2c0f0e14620734798668c01923c"
    "27583e2f313795812123b52855bfb8a4283531573fadd8213f2f15611ed468b09e9cc4a2f4d4a49c"
    "fce4ecfc6c909804d41e987c6a6e526a0a500aa48f1b493c393fb7a028b5b818a20b0200f8422489"
)


def made_up(packed: bytes, *, length: int | None = None, checksum: int | None = None) -> str:
    compressed = zlib.compress(packed)
    whole = compressed[: len(compressed) & ~3]
    right = sum(struct.unpack(f"<{len(whole) // 4}I", whole))
    said = right if checksum is None else checksum
    return f"1-{said:x}-{len(packed) if length is None else length:x}-{compressed.hex()}"


def packed_of(token: str) -> bytes:
    return zlib.decompress(bytes.fromhex(token.split("-")[3]))


def test_a_real_token_is_understood() -> None:
    found = tokens.decode(REAL)
    assert found == tokens.Token(
        toguid=6640934267705743600,
        fromguid=0,
        toname="here/stream/fs@one",
        object=4,
        offset=0,
        bytes=3408,
        raw=False,
    )
    assert tokens.decode(made_up(packed_of(REAL))) == found


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "not a resume token"),
        ("hello", "not a resume token"),
        ("2" + REAL[1:], "unknown version '2'"),
        (REAL[:-8] + "00000000", "checksum"),
        (REAL[:-1] + "x", "hexadecimal"),
        (made_up(packed_of(REAL), length=5), "not the stated one"),
        (made_up(packed_of(REAL), length=2**40), "stated length of .* is too large"),
        (made_up(packed_of(REAL), checksum=1), "checksum"),
        (made_up(b"\1" + packed_of(REAL)[1:]), "unknown encoding"),
        (made_up(packed_of(REAL)[:40]), "length of an item is not valid"),
        (made_up(packed_of(REAL)[:-2]), "content is malformed"),
        (made_up(packed_of(REAL).replace(b"toguid", b"toguix")), "has no number 'toguid'"),
        (made_up(packed_of(REAL).replace(b"fs@one", b"fs_one")), "names no snapshot"),
        (
            made_up(b"\0\1" + bytes(10) + struct.pack("<i", 2**30) + bytes(60)),
            "length of an item is not valid",
        ),
    ],
)
def test_what_is_wrong_with_a_token_is_said(token: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tokens.decode(token)


@given(at=st.integers(0, len(REAL) - 1), letter=st.characters())
def test_no_changed_token_says_something_else(at: int, letter: str) -> None:
    changed = REAL[:at] + letter + REAL[at + 1 :]
    try:
        assert tokens.decode(changed) == tokens.decode(REAL)
    except ValueError as error:
        assert str(error)


@given(st.binary(max_size=400))
def test_made_up_content_never_breaks_the_reader(content: bytes) -> None:
    for packed in (content, b"\0\1" + bytes(10) + content):
        with pytest.raises(ValueError):
            tokens.decode(made_up(packed))


THIS = Sending(None, None, "here/stream/fs@one", "6640934267705743600", False)


def test_the_token_of_this_transfer_is_sent_from() -> None:
    assert check_token({"token": REAL}, THIS, "zfs:X") == REAL
    assert check_token(None, THIS, "zfs:X") is None


@pytest.mark.parametrize(
    "wanted",
    [
        THIS._replace(guid="1"),
        THIS._replace(base="here/stream/fs@zero", base_guid="5"),
        THIS._replace(raw=True),
    ],
)
def test_a_token_for_something_else_is_never_sent_from(wanted: Sending) -> None:
    """A destination that was taken over could name any snapshot of the source's pool."""
    with pytest.raises(CheckpointUseless):
        check_token({"token": REAL}, wanted, "zfs:X")


def test_a_forged_name_in_a_token_is_never_sent_from() -> None:
    forged = made_up(
        packed_of(REAL).replace(b"here/stream/fs@one", b"here/secret/f@one"[:17] + b"x")
    )
    with pytest.raises(CheckpointUseless):
        check_token({"token": forged}, THIS, "zfs:X")


def test_a_token_that_we_make_has_the_form_of_openzfs() -> None:
    wanted = tokens.Token(toguid=7 << 60, toname="tank/vol@one", object=1, offset=3 << 40)
    made = tokens.encode(wanted)
    assert tokens.decode(made) == wanted
    real = tokens.decode(REAL)._replace(bytes=0)
    ours, theirs = packed_of(tokens.encode(real)), packed_of(REAL)
    assert ours[:12] == theirs[:12]
    for name in ("object", "offset", "toguid", "toname"):
        assert _item(ours, name) == _item(theirs, name)


def _item(packed: bytes, name: str) -> bytes:
    """The bytes of an item, with its length."""
    at = packed.index(name.encode() + b"\0") - 16
    (size,) = struct.unpack_from("=i", packed, at)
    return packed[at : at + size]
