"""The folder of definitions: its names, and copies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.config.definitions import Definitions
from mirrord.core.errors import ConfigError
from tests.unit.test_definitions import GOOD


def test_names_are_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("home-2", "home", "a"):
        (tmp_path / f"{name}.toml").write_text(GOOD)
    assert Definitions(tmp_path).names() == ["a", "home", "home-2"]


def test_a_copy_that_gets_its_own_id_in_place_is_none_any_more(tmp_path: Path) -> None:
    folder, copy = Definitions(tmp_path), tmp_path / "work.toml"
    for path in (tmp_path / "home.toml", copy):
        path.write_text(GOOD)
    with pytest.raises(ConfigError, match="have the same id"):
        folder.check_id(folder.load("home"))
    copy.write_text(GOOD.replace("ab12", "cd34"))  # the folder does not change
    folder.check_id(folder.load("home"))
