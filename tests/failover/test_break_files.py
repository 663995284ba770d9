"""break works although the files around it are invalid or lost: definition, settings, catalogue."""

from __future__ import annotations

import shutil

import pytest

from mirrord.core.errors import ConfigError
from mirrord.core.model import Role
from tests.support.world import NAME, World


@pytest.mark.parametrize("wrong", ['schedule = "evry 5s"', "not TOML"])
def test_with_an_invalid_definition_that_names_the_mirror(world: World, wrong: str) -> None:
    """The relationship record has the volumes; it did not work, and a schedule was the reason."""
    world.initialized()
    content = world.view_content()
    file = world.paths.mirrors / f"{NAME}.toml"
    valid = file.read_text()
    file.write_text(f"{wrong}\n{valid}")
    with pytest.raises(ConfigError, match=f"{NAME}.toml:1"):
        world.service.update(NAME)
    result = world.again().break_off(NAME)
    [warning] = result.data["warnings"]
    assert f"{NAME}.toml:1" in warning and warning in result.text
    assert world.view_content() == content
    with pytest.raises(ConfigError):
        world.service.status(NAME)
    file.write_text("\n".join(line for line in valid.splitlines() if "id = " not in line))
    with pytest.raises(ConfigError):
        world.service.break_off(NAME)
    file.write_text(valid)
    assert world.status()["state"] == "broken-off"
    world.service.resync(NAME, yes=True)
    assert world.in_step()


def test_with_the_state_folder_on_a_disk_that_is_lost(world: World) -> None:
    world.initialized()
    world.service.close()
    shutil.rmtree(world.paths.state)
    world.paths.state.symlink_to("/nonexistent/mirrord")
    [warning] = world.again().break_off(NAME).data["warnings"]
    assert "a link to /nonexistent/mirrord, where no folder is" in warning
    assert world.lab.destination().facts().role is Role.LIVE
    world.paths.state.unlink()


def test_with_invalid_settings_of_this_host(world: World) -> None:
    world.initialized()
    world.paths.host.write_text("zoone = 3")
    [warning] = world.again().break_off(NAME).data["warnings"]
    assert "unknown key 'zoone'" in warning
    assert world.lab.destination().facts().role is Role.LIVE
