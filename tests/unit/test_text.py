"""How names are shown, and what may name things."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Refused, UsageError
from mirrord.core.model import FileChange, OpenWriter
from mirrord.core.text import ESCAPING, can_name, escaped, harmless
from mirrord.wire.frames import control, value_of
from mirrord.wire.values import pack, printable, unpack

NAMES = st.binary(min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"plain name", "plain name"),
        ("日本 ümläut".encode(), "日本 ümläut"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"a\nb\tc\rd", r"a\nb\tc\rd"),
        (b"\x1b[31m\x07\x7f\0", r"\x1b[31m\x07\x7f\x00"),
        ("\x9b31m".encode(), r"\xc2\x9b31m"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}x".encode(), r"\xe2\x80\xaex"),
        (rb"a\nb", r"a\\nb"),
    ],
)
def test_what_a_terminal_shows(name: bytes, shown: str) -> None:
    assert escaped(os.fsdecode(name)) == shown


@given(NAMES, NAMES)
def test_no_two_names_are_shown_alike_and_none_commands_a_terminal(one: bytes, two: bytes) -> None:
    shown = escaped(os.fsdecode(one))
    assert shown.isprintable()
    assert harmless(shown) == shown
    assert (escaped(os.fsdecode(two)) == shown) == (one == two)


def test_a_stream_escapes_what_its_encoding_does_not_have() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1", errors=ESCAPING)
    stream.write("ü 日 \udcff\ud800")
    stream.flush()
    assert raw.getvalue() == rb"\xfc \xe6\x97\xa5 \xff\xed\xa0\x80".replace(rb"\xfc", b"\xfc")


def test_an_error_is_one_harmless_line_and_exact_in_json() -> None:
    error = Refused("no", where="/a\n\udcff", why="\x1b[31m")
    assert str(error) == r"/a\n\xff: no: \x1b[31m"
    assert error.as_dict()["where"] == "/a\n\udcff"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "\x1b", "\udcff", "\x9b"])
def test_what_can_name_nothing(name: str) -> None:
    assert not can_name(name)


@pytest.mark.parametrize("path", ["/a\nb", "/a\x1b[31m", "/a\udcff", "/a\x9b"])
def test_an_endpoint_with_control_characters_is_one_clear_error(path: str) -> None:
    with pytest.raises(UsageError, match="control characters") as found:
        parse_endpoint(f"btrfs:{path}")
    assert str(found.value).isprintable()


@given(NAMES)
def test_a_users_path_travels_as_it_is_and_nothing_else_does(name: bytes) -> None:
    path = os.fsdecode(name)
    change, writer = FileChange(path, "added\x1b", 7), OpenWriter(1, "bad\x1b", path)
    for kind, sent in ((FileChange, change), (OpenWriter, writer)):
        body = b"".join(control(1, 1, pack(sent))[1:])  # type: ignore[arg-type]
        got = unpack(kind, printable(value_of(body)))
        assert got.path == path
        assert "\x1b" not in str(got[1])


def test_any_name_travels_as_a_word_of_a_call() -> None:
    body = b"".join(control(1, 1, ["a\udcff"])[1:])  # type: ignore[arg-type]
    assert value_of(body) == ["a\udcff"]
