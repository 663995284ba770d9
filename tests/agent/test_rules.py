"""What a peer may do: each rule, and each way around it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.agent.rules import Rules, parse_rules, rights_at
from mirrord.config.peers import check_allowed
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import (
    Diverged,
    MirrordError,
    NotFound,
    ProtocolError,
    Refused,
    Unsupported,
    Untrusted,
    UsageError,
)
from mirrord.core.model import Endpoint, ReceiveRequest
from mirrord.drivers.block.owner import Volume
from mirrord.drivers.live import live_of
from mirrord.drivers.registry import open_driver
from mirrord.link.driver import RemoteDriver
from mirrord.wire.methods import Right
from tests.support.agents import Agents, agents
from tests.support.service import PATIENCE_S


def test_without_rules_a_peer_has_the_rights_of_its_user() -> None:
    assert rights_at(parse_rules([], append_only=False), "/x") == (
        Right.SEND | Right.RECEIVE | Right.REMOVE
    )
    assert rights_at(parse_rules([], append_only=True), "/x") == Right.SEND | Right.RECEIVE


@pytest.mark.parametrize(
    "word", ["receive", "recieve=/a", "=/a", "receive=a", "send=/a/../b", "delete=/a", ""]
)
def test_a_rule_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        parse_rules([word], append_only=False)


def test_a_misspelt_rule_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules(["recieve=/backup"], append_only=False)
    assert caught.value.hint == "Did you mean receive=/backup?"


def test_a_subtree_ends_at_its_border(tmp_path: Path) -> None:
    root, beside = tmp_path / "a", tmp_path / "ab"
    for folder in (root / "deep", beside):
        folder.mkdir(parents=True)
    (root / "out").symlink_to(beside)
    (root / "up").symlink_to("..")
    (root / "in").symlink_to(root / "deep")
    (tmp_path / "alias").symlink_to(root)
    rules = Rules(receive=(str(root),))
    given = Right.RECEIVE | Right.REMOVE
    for inside in ("", "/x", "/deep/x/y", "/in", "/in/new"):
        assert rights_at(rules, f"{root}{inside}") == given
    # A root that is named by a link is the folder it leads to.
    assert rights_at(Rules(receive=(str(tmp_path / "alias"),)), str(root / "x")) == given
    for outside in ("out", "out/x", "up", "up/ab", "deep/../../ab", "in/../../ab/x"):
        with pytest.raises(Untrusted):
            rights_at(rules, f"{root}/{outside}")
    for outside in (str(beside), str(tmp_path), "/", "/etc", f"{root}x", "relative", ""):
        with pytest.raises(Untrusted):
            rights_at(rules, outside)


@pytest.mark.parametrize("location", ["/a/.mirrord/current", "/a/.mirrord", "/a/x\0y", "/a/.."])
def test_no_rule_permits_a_location_inside_the_store(location: str) -> None:
    for rules in (Rules(receive=("/a",)), Rules(free=True)):
        with pytest.raises(Untrusted):
            rights_at(rules, location)


def volume(path: Path) -> Path:
    with Volume.create(path, 1 << 20) as made:
        made.write(0, b"x" * 8192)
    return path


def driver(others: Agents, path: Path) -> RemoteDriver:
    return RemoteDriver.of(Endpoint("block", str(path), "there"), others)


def test_who_may_send_cannot_write(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with agents(tmp_path / "home", "--allow", f"send={data}") as others:
        source = driver(others, volume(data / "v"))
        snapshot = source.take_snapshot("s1")
        source.delta(None, snapshot.guid)
        with source.send(None, snapshot.guid) as stream:
            while stream.read():
                pass
        request = ReceiveRequest("t", "m", None, snapshot)
        for attempt in (
            lambda: source.prepare("m"),
            lambda: source.receive(request),
            lambda: source.commit("t", show=True),
            lambda: source.discard("t"),
            lambda: source.promote(),
            lambda: source.rollback(snapshot.guid, mirror_id="m", keep_as="lost"),
            lambda: source.forget(),
            lambda: driver(others, tmp_path / "elsewhere").facts(),
            lambda: driver(others, Path("/etc")).facts(),
        ):
            with pytest.raises(Untrusted):
                attempt()
        source.delete_snapshot(snapshot.guid)
        assert source.snapshots() == []


def test_who_may_receive_cannot_read_what_is_there(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    with agents(tmp_path / "home", "--allow", f"receive={backup}") as others:
        there = driver(others, volume(backup / "v"))
        guid = open_driver(Endpoint("block", str(backup / "v"))).take_snapshot("s").guid
        for attempt in (
            lambda: there.send(None, guid),
            lambda: there.delta(None, guid),
            lambda: there.take_snapshot("mine"),
            lambda: there.own_snapshots(("*",)),
        ):
            with pytest.raises(Untrusted):
                attempt()


@pytest.mark.parametrize("right", ["send", "receive"])
def test_who_may_send_lets_no_client_of_another_host_write(tmp_path: Path, right: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    image = data / "db.img"
    image.write_bytes(bytes(1 << 20))
    with agents(tmp_path / "home", "--allow", f"{right}={data}") as others:
        end = live_of(RemoteDriver.of(Endpoint("image", str(image), "there"), others))
        attempts: tuple[Callable[[], str], ...] = (
            lambda: end.live_serve("127.0.0.1:10809"),
            lambda: end.live_serve("[::1]:10809"),
            lambda: end.live_serve("localhost/10809"),
            lambda: end.live_serve("", ("0.0.0.0/0",)),
            lambda: end.live_serve(f"unix:{data}/s", ("0.0.0.0/0",)),
        )
        for attempt in attempts:
            with pytest.raises(Refused if right == "receive" else Untrusted) as caught:
                attempt()
            if right != "receive":
                assert "serve an image over TCP" in str(caught.value)
        with pytest.raises(Refused, match="not mirrored yet"):
            end.live_serve(f"unix:{data}/s")


def test_who_may_append_cannot_delete_or_turn_back(tmp_path: Path) -> None:
    allow = ["--allow", f"receive={tmp_path}", "--append-only"]
    with (
        agents(tmp_path / "home", *allow) as others,
        pytest.raises(Untrusted, match="may only append"),
    ):
        driver(others, tmp_path / "copy").facts()  # a block volume drops what is in the way


def test_a_peer_cannot_invent_methods_or_words(tmp_path: Path) -> None:
    with agents(tmp_path / "home") as others:
        session = others.session()
        number, _capabilities, _keeps = session.call("open", "block", str(volume(tmp_path / "v")))
        for method, words, kind in (
            ("__init__", [number], ProtocolError),
            ("_exclusive", [number, "x"], ProtocolError),
            ("facts", [], ProtocolError),
            ("facts", ["1"], ProtocolError),
            ("facts", [number + 7], NotFound),
            ("facts", [number, "more"], ProtocolError),
            ("delete_snapshot", [number, 5], ProtocolError),
            ("send", [number, None, "no such", {"x": []}], ProtocolError),
            ("receive", [number, ["t"]], ProtocolError),
            ("open", ["zfs-on-mars", "/x"], Unsupported),
            ("open", ["block", "x"], Untrusted),
            ("open", [5, None], ProtocolError),
        ):
            with pytest.raises(kind):
                session.call(method, *words, timeout_s=PATIENCE_S)
        assert session.alive


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "..", ".", "", "x\0y", "n" * 300])
def test_a_peer_cannot_leave_the_volume_by_a_name(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    source = open_driver(parse_endpoint(f"block:{volume(tmp_path / 'v')}"))
    snapshot = source.take_snapshot("s")
    with agents(tmp_path / "home", "--allow", f"receive={inside}") as others:
        there = driver(others, inside / "copy")
        there.prepare("m")
        before = sorted(os.walk(tmp_path))
        with pytest.raises(MirrordError) as caught:
            there.receive(ReceiveRequest(name, "m", None, snapshot)).close()
        assert not isinstance(caught.value, Diverged)
        with pytest.raises(MirrordError):
            there.commit(name, show=True)
        for action in (there.discard,):
            try:
                action(name)
            except MirrordError:
                pass
        assert sorted(os.walk(tmp_path)) == before


def test_a_pause_is_granted_by_the_unit_or_as_in_a_definition() -> None:
    words = ["send=/data", "pause=db@1.service", "pause=hook:/bin/pause x"]
    found = parse_rules(words, append_only=False)
    assert found.pause == ("cgroup:db@1.service", "hook:/bin/pause x") and not found.free
    assert str(found) == "send=/data, pause=cgroup:db@1.service, pause=hook:/bin/pause x"
    assert check_allowed(words) == tuple(words)
    for word in ("pause=", "pause=none:x", "pause=hook:x", "pause=../x"):
        with pytest.raises(UsageError):
            parse_rules([word], append_only=False)
        with pytest.raises(UsageError):
            check_allowed([word])
