"""Units, names and endpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import (
    MirrordError,
    UsageError,
)
from mirrord.core.names import MIRROR_NAME, check_mirror_name, snapshot_name
from mirrord.core.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1K", 1024), ("1.5GiB", 3 << 29), ("64 MiB", 64 << 20)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1..5G", "G", "9" * 400])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert "10G" in caught.value.hint


@given(st.integers(0, 1 << 60))
def test_a_size_written_is_read_again_to_three_digits(size: int) -> None:
    again = parse_size(format_size(size))
    assert abs(again - size) <= max(1, size * 0.006)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.004, "4 ms"),
        (0.4, "0.4 s"),
        (12, "12 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (3600, "1 h"),
        (273600, "3 d 4 h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations_are_written_for_people(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("90s", 90),
        ("5 s", 5),
        ("15 min", 900),
        ("2 hours", 7200),
        ("1h30m", 5400),
        ("1 d", 86400),
        ("3 min 20 s", 200),
        ("0s", 0),
        ("1.5h", 5400),
        ("2w", 1209600),
        ("4 ms", 0.004),
    ],
)
def test_durations_are_read(text: str, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5M", "30m1h", "1h1h", "1h x", "1..5s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert "1h30m" in caught.value.hint


@given(st.floats(0, 1e8))
def test_a_duration_written_is_read_again_to_two_parts(duration_s: float) -> None:
    again = parse_duration(format_duration(duration_s))
    assert abs(again - duration_s) <= max(0.06, duration_s * 0.05)


@given(st.text(max_size=80))
def test_a_mirror_name_can_always_name_a_file(name: str) -> None:
    if MIRROR_NAME.fullmatch(name):
        assert check_mirror_name(name) == name
        assert "/" not in name and not name.startswith(".") and name.isprintable()
    else:
        with pytest.raises(UsageError):
            check_mirror_name(name)


def test_snapshot_names_are_as_the_design_says() -> None:
    assert snapshot_name("ab12", 1_700_000_000 * 10**9, 7) == "mirrord.ab12.20231114T221320Z.7"


@pytest.mark.parametrize("text", ["btrfs:/data/home", "block:/srv/v"])
def test_endpoints_are_read_as_they_are_written(text: str) -> None:
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize("ident", ["ab12cd34", "zebra7", "0", "z" * 32])
def test_snapshots_of_any_valid_id_are_recognized(ident: str) -> None:
    """An owner may choose the id: 1 to 32 digits and lower-case letters (docs/config.md)."""
    for diverged in (False, True):
        name = names.snapshot_name(ident, 1_700_000_000 * 10**9, 5, diverged=diverged)
        assert name.startswith("diverged." if diverged else "mirrord.")
        assert names.sequence_of(name, ident) == 5
        assert names.sequence_of(name, "other") == 0
        made_up = names.snapshot_name(ident, 0, 10**17, diverged=diverged)
        assert names.last_sequence([made_up, name, "other"], ident) == 5
        assert names.last_sequence([made_up, name], "other") == 0


def test_an_endpoint_is_tidied() -> None:
    assert str(parse_endpoint("block:/srv/./v/")) == "block:/srv/v"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("/data/home", "btrfs:/data/home"),
        ("btrf:/data", "btrfs:/data"),
        ("ext4:/data", "Known kinds: block, btrfs, image, zfs."),
        ("btrfs:data", "btrfs:/srv/data"),
        ("btrfs:/a/../b", "without '..'"),
        ("btrfs://root@host", "/PATH"),
        ("btrfs://ro ot@host/x", "USER@HOST"),
        ("btrfs://host:99999/x", "USER@HOST"),
        ("", "KIND:PATH"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_right_form(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)
    assert part in caught.value.hint


def all_errors() -> list[type[MirrordError]]:
    found, todo = [], [MirrordError]
    while todo:
        each = todo.pop()
        found.append(each)
        todo.extend(each.__subclasses__())
    return found


def test_error_codes_are_unique() -> None:
    codes = [each.code for each in all_errors()]
    assert len(codes) == len(set(codes))
