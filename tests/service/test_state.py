"""What a daemon does when the folders around it are taken away, or are other ones."""

from __future__ import annotations

import pytest

from mirrord.core.errors import ConfigError, IoFailed, NotFound
from tests.service.conftest import Served
from tests.support.service import ServiceProcess, until
from tests.support.world import NAME


@pytest.mark.parametrize("replaced", [False, True])
def test_a_state_folder_that_is_moved_or_replaced_is_not_begun_again(
    served: Served, replaced: bool
) -> None:
    """In a new catalogue no mirror would be quiesced."""
    served.initialized(schedule="every 1s")
    served.service.quiesce(NAME)
    state, elsewhere = served.paths.state, served.home / "elsewhere"
    before = served.view_content()
    served.lab.change(served.lab.source(), 1)
    state.rename(elsewhere)
    if replaced:
        state.mkdir()
    for work in (served.service.update, served.service.resume, served.service.status):
        with pytest.raises(IoFailed, match="the state folder is not the one that"):
            work(NAME)
    until(lambda: "ALARM state: the catalogue cannot be written" in served.daemon.text())
    assert not list(state.glob("*")) and state.is_dir() == replaced
    assert served.view_content() == before
    served.service.break_off(NAME)  # an emergency: it does without
    assert not list(state.glob("*")) and state.is_dir() == replaced
    if replaced:
        state.rmdir()
    elsewhere.rename(state)
    found = served.status()
    assert found["quiesced"] and found["state"] == "broken-off"


def test_a_daemon_whose_lock_was_removed_leaves_all_to_the_one_that_has_it(served: Served) -> None:
    served.initialized(schedule="every 1s")
    served.paths.daemon_lock.unlink()
    second = ServiceProcess(served.home / "second", environment={"MIRRORD_HOME": str(served.home)})
    second.paths = served.paths
    second.start()
    try:
        until(lambda: "ALARM state: the catalogue cannot be written" in served.daemon.text())
        begun = served.daemon.text().count("update (schedule) done")
        served.lab.change(served.lab.source(), 1)
        until(lambda: "update (schedule) done" in second.text())
        assert served.daemon.text().count("update (schedule) done") == begun
        served.daemon.stop()
        assert served.in_step() and served.service.status(NAME), "its sockets are there"
    finally:
        second.stop()
    served.daemon.start()


def test_a_break_by_an_invalid_definition_is_seen_by_the_daemon(served: Served) -> None:
    """It had the mirror as mirrored until the file was valid again."""
    served.initialized(schedule="every 1s")
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text(f"not TOML\n{file.read_text()}")
    [warning] = served.service.break_off(NAME).data["warnings"]
    assert f"{NAME}.toml:1" in warning
    assert served.row()["state"] == "broken-off"
    assert f"{NAME}.toml:1" in served.row()["problems"][0]


def test_a_lost_definition_is_rebuilt_as_the_message_says(served: Served) -> None:
    served.initialized()
    (served.paths.mirrors / f"{NAME}.toml").unlink()
    served.lab.change(served.lab.source(), 1)
    with pytest.raises(NotFound) as caught:
        served.service.update(NAME)
    assert "If its definition was lost, 'mirrord adopt ENDPOINT' rebuilds it." in caught.value.hint
    served.service.adopt(served.end("destination"), yes=True)
    served.service.update(NAME)
    assert served.in_step()


def test_a_copied_definition_with_the_same_id_does_not_act_on_the_mirror(served: Served) -> None:
    """To delete it deleted what was recorded of the mirror, and its base at the source."""
    served.initialized()
    copy = served.paths.mirrors / "work.toml"
    copy.write_text((served.paths.mirrors / f"{NAME}.toml").read_text())
    for name in ("work", NAME):
        with pytest.raises(ConfigError, match="have the same id") as caught:
            served.service.delete(name, yes=True, keep_snapshots=False)
        assert "needs its own id" in caught.value.hint
    assert served.service.break_off(NAME).status == "done"
    copy.unlink()
    served.service.resync(NAME, yes=True)
    assert served.service.status(NAME)[0].reading.last_transfer is not None and served.in_step()
    served.service.delete(NAME, yes=True, keep_snapshots=False)
    assert f"{NAME}: it is no longer defined" in served.daemon.text()


def test_definitions_that_cannot_be_listed_are_not_taken_for_none(served: Served) -> None:
    """For a monitoring system: status 3 and a line, not 1 without one."""
    served.daemon.stop()
    served.paths.mirrors.parent.mkdir(parents=True, exist_ok=True)
    if served.paths.mirrors.is_dir():
        served.paths.mirrors.rmdir()
    served.paths.mirrors.write_text("")
    for words in (["status"], ["config", "check"]):
        found = served.cli(*words)
        assert found.returncode == 1 and "Not a directory" in found.stderr
    found = served.cli("monitor")
    assert found.returncode == 3 and found.stdout.startswith("MIRRORD UNKNOWN - ")
    assert "Not a directory" in found.stdout
    served.paths.mirrors.unlink()
    served.daemon.start()


def test_scheduled_updates_by_the_definition_that_was_read_are_no_errors(served: Served) -> None:
    """The file is invalid since; what is shown is of the update all the same."""
    served.initialized(schedule="every 1s")
    file = served.paths.mirrors / f"{NAME}.toml"
    file.write_text("not TOML")
    served.lab.change(served.lab.source(), 1)
    until(lambda: "update (schedule) done: " in served.daemon.text(), 30)
    until(lambda: served.row()["shown"].endswith(".2"), 30)
    assert " error " not in served.daemon.text()
