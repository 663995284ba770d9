"""Named schedules: the presets all parse, and what is wrong is said with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.config.schedules import Schedules
from mirrord.core.errors import ConfigError
from mirrord.core.model import Timing

PRESETS = sorted((Path(__file__).parents[2] / "schedules/presets").glob("*.toml"))


def test_the_presets_are_those_of_the_document() -> None:
    document = (Path(__file__).parents[2] / "docs/schedules.md").read_text()
    assert len(PRESETS) == 8
    for path in PRESETS:
        assert f"`{path.stem}`" in document


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_can_be_used_in_any_zone(path: Path, tmp_path: Path) -> None:
    assert Schedules(tmp_path).named(path.stem).description
    timing = Timing((path.stem,))
    there = Schedules(tmp_path, zone="America/New_York").parsed(timing)
    assert there.zone == "America/New_York"
    assert Schedules(tmp_path).parsed(timing).zone == "UTC"
    assert there.lag_s or there.next_after(0, seed="a")


def test_a_zone_of_its_own_stays(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('run = ["@daily"]\nzone = "Asia/Kathmandu"\n')
    assert Schedules(tmp_path, zone="UTC").parsed(Timing(("a",))).zone == "Asia/Kathmandu"


@pytest.mark.parametrize(
    ("name", "text", "part", "hint"),
    [
        ("a b", 'run = "@daily"', "is not a valid name for a schedule", ""),
        ("a", "", "'run' is missing", "every 15m"),
        ("a", 'run = "@daily"\nzne = "UTC"', "unknown key 'zne'", "'zone'"),
        ("a", "run = 5", "'run' is invalid: expected a string or a list", ""),
        ("a", 'run = ["@daily", 5]', "'run' is invalid: expected a string or a list", ""),
        ("a", 'run = "@daily"\njitter = 5', "'jitter' is invalid: expected a string", ""),
        ("a", 'run = "@daily"\nwindows = 5', "'windows' is invalid", ""),
        ("a", 'run = "every 0s"', "out of range", "366 d"),
        ("a", 'run = "@daily"\nzone = "UTX"', "time zone", ""),
    ],
)
def test_what_is_wrong_is_said_with_the_file(
    name: str, text: str, part: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Schedules(tmp_path).named(name)
    assert part in str(caught.value)
    assert caught.value.where.partition(".toml")[0] == str(file.with_suffix(""))
    assert hint in caught.value.hint
