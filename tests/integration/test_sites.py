"""Sites and their roles: what a reverse leaves alone, and where the direction is found again."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from mirrord.control.documents import of_status
from mirrord.core.errors import ConfigError, Refused, UsageError
from tests.support.definitions import two_sites
from tests.support.verbs import Service
from tests.support.world import NAME, World


def status_of(service: Service) -> dict[str, Any]:
    return of_status(service.status(NAME)[0])


def test_a_reverse_leaves_the_definition_alone_and_what_is_kept_stays_with_the_place(
    world: World,
) -> None:
    world.initialized(keep_source=2, keep_destination=4)
    file = world.paths.mirrors / f"{NAME}.toml"
    file.write_text(file.read_text() + "[from.secondary]\nschedule = 'every 7 h'\n")
    text = file.read_text()
    status = status_of(world.again())
    assert status["reversed_since_ns"] is None and status["schedule"] == []
    before_ns = time.time_ns()
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert file.read_text() == text
    status = status_of(world.again())
    assert (status["source"], status["destination"]) == (
        world.end("destination"),
        world.end("source"),
    )
    assert before_ns < status["reversed_since_ns"] < time.time_ns()
    shown = world.cli("status", NAME).stdout.splitlines()[0]
    assert re.search(r"mirrored, idle, reversed since \d{4}-\d\d-\d\d \d\d:\d\d$", shown)
    for seed in range(6):
        world.lab.change(world.lab.destination(), seed)
        world.service.update(NAME)
    kept = {end: len(getattr(world.lab, end)().snapshots()) for end in ("source", "destination")}
    assert kept["destination"] == 4, "at the secondary site, though it is the source"
    assert world.lab.kind == "block" or kept["source"] == 2
    assert status_of(world.service)["schedule"] == ["every 7 h"]
    assert world.service.reverse(NAME, yes=True).status == "done"
    assert file.read_text() == text
    assert status_of(world.again())["reversed_since_ns"] is None


@pytest.mark.in_process
def test_a_reverse_that_would_collide_with_another_mirror_is_refused(world: World) -> None:
    world.initialized()
    lines = two_sites(f"{world.end('source')}2", world.end("source"), mirror_id="b2")
    (world.paths.mirrors / "other.toml").write_text(lines)
    with pytest.raises(Refused, match="it is the destination of 'other'") as caught:
        world.service.reverse(NAME, yes=True)
    assert "'mirrord delete other'" in caught.value.hint
    assert world.service.update(NAME).status == "unchanged"
    assert status_of(world.service)["source"] == world.end("source")
    world.service.delete("other", yes=True, keep_snapshots=False)
    assert world.service.reverse(NAME, yes=True).status == "done"


@pytest.mark.in_process
def test_exchanged_endpoints_are_refused_before_anything_is_recorded(world: World) -> None:
    """Otherwise the live source is taken for a destination that was broken off."""
    world.initialized()
    file = world.paths.mirrors / f"{NAME}.toml"
    before = file.read_text()
    ends = {f'"{world.end("source")}"': "destination", f'"{world.end("destination")}"': "source"}
    pattern = "|".join(map(re.escape, ends))
    file.write_text(re.sub(pattern, lambda found: f'"{world.end(ends[found[0]])}"', before))
    world.lab.change(world.lab.source(), 1)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: world.service.update(NAME),
        lambda: world.service.break_off(NAME),
        lambda: world.service.resync(NAME, yes=True),
        lambda: world.service.reverse(NAME, yes=True),
        lambda: world.service.restore_all(NAME, snapshot=None, yes=True),
    )
    for verb in verbs:
        with pytest.raises(Refused, match="sites are exchanged in the definition"):
            verb()
    faults = world.service.status(NAME)[0].reading.faults
    assert "are exchanged in the definition" in faults[0].text
    file.write_text(before)
    assert world.service.update(NAME).status == "done"
    assert status_of(world.service)["state"] == "mirrored"


@pytest.mark.in_process
def test_settings_of_the_other_direction_are_checked_too(world: World) -> None:
    world.create()
    file = world.paths.mirrors / f"{NAME}.toml"
    text = file.read_text()
    for line, says in (
        ("link = 'lnie'", "no link is called 'lnie'"),
        ("schedule = 'huorly'", "no schedule is called 'huorly'"),
    ):
        file.write_text(f"{text}[from.secondary]\n{line}\n")
        with pytest.raises(ConfigError, match=says):
            world.service.check()
    file.write_text(text)
    assert world.service.check().status == "done"


@pytest.mark.in_process
def test_a_lost_catalogue_does_not_turn_a_reversed_mirror_back(world: World) -> None:
    """With the tables in either order."""
    world.initialized()
    world.service.reverse(NAME, yes=True)
    source = status_of(world.service)["source"]
    for _ in range(2):
        world.service.close()
        shutil.rmtree(world.paths.state)
        assert status_of(world.again())["source"] == source
        world.lab.change(world.lab.destination(), 7)
        assert world.service.update(NAME).status == "done"
        file = world.paths.mirrors / f"{NAME}.toml"
        top, first, second = re.split(r"(?m)^(?=\[site)", file.read_text())
        file.write_text(top + second + first)
        assert status_of(world.again())["source"] == source, "the order decides nothing any more"
    assert status_of(world.service)["reversed_since_ns"] == 0, "since when is not known"
    assert ", reversed\n" in world.cli("status", NAME).stdout


@pytest.mark.in_process
def test_the_order_of_the_sites_decides_nothing_after_create(world: World) -> None:
    world.create()
    file = world.paths.mirrors / f"{NAME}.toml"
    top, first, second = re.split(r"(?m)^(?=\[site)", file.read_text())
    file.write_text(top + second + first)
    assert world.again().initialize(NAME).status == "done"
    assert status_of(world.service)["source"] == world.end("source")
    assert world.in_step()


@pytest.mark.in_process
def test_a_catalogue_of_before_a_reverse_is_brought_up_to_the_volumes(world: World) -> None:
    world.initialized()
    world.service.close()
    state = world.paths.state
    shutil.copytree(state, state.with_name("older"))
    world.again().reverse(NAME, yes=True)
    world.lab.change(world.lab.destination(), 3)
    world.service.update(NAME)
    content, source = world.view_content(), status_of(world.service)["source"]
    world.service.close()
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    world.lab.change(world.lab.destination(), 4)
    content = world.lab.content(world.lab.destination())
    assert world.again().update(NAME).status == "done"
    assert status_of(world.service)["source"] == source
    assert world.source_content() == content == world.view_content()


@pytest.mark.in_process
def test_the_owner_says_which_site_is_the_source_where_nothing_else_does(world: World) -> None:
    """Both ends were promoted once, so none of them shows which was the source last; and they have
    no relationship record, as an older mirrord left them.
    """
    world.initialized()
    world.service.reverse(NAME, yes=True)
    world.service.reverse(NAME, yes=True)
    world.service.break_off(NAME)
    world.service.close()
    for end in (world.lab.source(), world.lab.destination()):
        [mirror_id] = end.relationships()
        end.unrelate(mirror_id)
    shutil.rmtree(world.paths.state)
    status = status_of(world.again())
    assert status["state"] == "unknown" and not status["healthy"]
    assert f"mirrord takeover {NAME} --source primary" in status["problems"][0]
    with pytest.raises(Refused, match="not known which site") as caught:
        world.service.resync(NAME, yes=True)
    assert "--source secondary" in caught.value.hint
    with pytest.raises(UsageError, match="no site 'berlin'"):
        world.service.takeover(NAME, source="berlin", yes=True)
    assert world.service.takeover(NAME, source="primary", yes=True).status == "done"
    assert world.service.takeover(NAME, source="primary", yes=True).status == "already_source"
    status = status_of(world.again())
    assert (status["state"], status["source"]) == ("broken-off", world.end("source"))
    world.service.resync(NAME, yes=True)
    assert world.in_step()
    with pytest.raises(Refused, match="is not the source") as refused:
        world.service.takeover(NAME, source="secondary", yes=True)
    assert "If 'primary' is lost, 'mirrord break home' makes 'secondary' writable" in (
        refused.value.hint
    )
