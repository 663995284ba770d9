"""Named schedules: the presets all parse, and what is wrong is said with the file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mirrord.core.errors import ConfigError
from mirrord.schedules.named import parse_named

PRESETS = sorted((Path(__file__).parents[2] / "schedules/presets").glob("*.toml"))


def test_the_presets_are_those_of_the_document() -> None:
    document = (Path(__file__).parents[2] / "docs/schedules.md").read_text()
    assert len(PRESETS) == 8
    for path in PRESETS:
        assert f"`{path.stem}`" in document


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_can_be_used_in_any_zone(path: Path) -> None:
    named = parse_named(path.stem, tomllib.loads(path.read_text()), str(path))
    assert named.description
    there = named.in_zone("America/New_York")
    assert there.zone == "America/New_York" and named.schedule.zone == "UTC"
    assert there.lag_s or there.next_after(0, seed="a")


def test_a_zone_of_its_own_stays() -> None:
    named = parse_named("a", {"run": ["@daily"], "zone": "Asia/Kathmandu"}, "a.toml")
    assert named.in_zone("UTC").zone == "Asia/Kathmandu"


@pytest.mark.parametrize(
    ("name", "raw", "part", "hint"),
    [
        ("a/b", {"run": "@daily"}, "is not a valid name for a schedule", ""),
        ("a", {}, "'run' is missing", "every 15m"),
        ("a", {"run": "@daily", "zne": "UTC"}, "unknown key 'zne'", "'zone'"),
        ("a", {"run": 5}, "'run' is not a list", "run ="),
        ("a", {"run": ["@daily", 5]}, "'run' is not a list", "run ="),
        ("a", {"run": "@daily", "jitter": 5}, "'jitter' is not a string", "jitter ="),
        ("a", {"run": "@daily", "windows": "Mon"}, "'windows' is not a list", "windows ="),
        ("a", {"run": "every 0s"}, "out of range", "366 d"),
        ("a", {"run": "@daily", "zone": "UTX"}, "time zone", ""),
    ],
)
def test_what_is_wrong_is_said_with_the_file(
    name: str, raw: dict[str, object], part: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_named(name, raw, "schedules.d/a.toml")
    assert part in str(caught.value) and caught.value.where == "schedules.d/a.toml"
    assert hint in caught.value.hint
