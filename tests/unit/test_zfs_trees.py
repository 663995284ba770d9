"""The pure parts of trees of datasets: which renames make one of another, and the stream."""

from __future__ import annotations

import json
import random

import pytest

from mirrord.core.errors import Refused
from mirrord.drivers.memberstreams import MAGIC, Manifest, Member, TreeParser
from mirrord.drivers.zfs.dataset import names
from mirrord.drivers.zfs.tree import layout
from mirrord.drivers.zfs.tree.renames import Wanted, plan
from mirrord.drivers.zfs.tree.stream import parse_manifest, paths

ROOT = "pool/backup/home"


def tree(chance: random.Random, guids: list[str]) -> dict[str, str]:
    """Paths by guid: the root and others below it, anywhere."""
    paths = {"1": ""}
    for guid in guids:
        above = chance.choice(list(paths.values()))
        name = chance.choice("abcd")
        path = f"{above}/{name}".lstrip("/")
        if path not in paths.values():
            paths[guid] = path
    return paths


def full(path: str) -> str:
    return f"{ROOT}/{path}" if path else ROOT


@pytest.mark.parametrize("seed", range(300))
def test_renames_lead_from_any_tree_to_any_other_and_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    before = tree(chance, [str(number) for number in range(2, 12)])
    after = tree(chance, chance.sample([str(number) for number in range(2, 15)], 10))
    here = {full(path): guid for guid, path in before.items()}
    # New members wait beside the root.
    here |= {f"{ROOT}.mirrord-tree-n{guid}": guid for guid in after if guid not in before}
    moves = plan(ROOT, here, Wanted(after, set(before), lambda guid: f"{ROOT}.mirrord-tree-{guid}"))
    now = dict(here)
    for move in moves:
        assert move.new not in now, "a rename never meets what is there"
        assert move.old in now
        assert names.parent_of(move.new) in now or not move.new.startswith(f"{ROOT}/")
        assert not f"{move.new}/".startswith(f"{move.old}/"), "nothing goes below itself"
        moved = [name for name in now if f"{name}/".startswith(f"{move.old}/")]
        now |= {move.new + name[len(move.old) :]: now.pop(name) for name in moved}
    assert sorted(now.values()) == sorted(here.values()), "all are somewhere"
    inside = {name: guid for name, guid in now.items() if layout.is_inside(ROOT, name)}
    assert inside == {full(path): guid for guid, path in after.items()}
    assert plan(ROOT, now, Wanted(after, set(before), str)) == [], "done is done"


def test_what_is_somebody_elses_stays_and_is_named_when_in_the_way() -> None:
    here = {ROOT: "1", f"{ROOT}/theirs": "7", f"{ROOT}.mirrord-tree-2": "2"}
    wanted = Wanted({"1": "", "2": "new"}, {"1"}, str)
    assert [move.new for move in plan(ROOT, here, wanted)] == [f"{ROOT}/new"]
    with pytest.raises(Refused, match="that mirrord did not create is at"):
        plan(ROOT, here, wanted._replace(paths={"1": "", "2": "theirs"}))


def manifest(*rows: tuple[str, str]) -> str:
    return Manifest(tuple(Member(path, guid, "s", None) for path, guid in rows)).text()


def test_a_manifest_says_only_what_can_be_below_the_root() -> None:
    good = manifest(("", "1"), ("a", "2"), ("a/b", "3"))
    assert [one.path for one in parse_manifest(good, ROOT).members] == ["", "a", "a/b"]
    for rows in (
        [("a", "1")],
        [("", "1"), ("..", "2")],
        [("", "1"), ("a/../../other", "2")],
        [("", "1"), ("/other", "2")],
        [("", "1"), ("a@snapshot", "2")],
        [("", "1"), ("a/b", "2"), ("a", "3")],
        [("", "1"), ("a", "1")],
        [("", "1"), ("a", "2"), ("a", "3")],
        [("", "1"), ("a.mirrord-new", "2")],
        [("", "1"), ("a", "-2")],
        [("", "1"), *((f"d{number}", str(number)) for number in range(2, 500))],
    ):
        with pytest.raises(ValueError):
            parse_manifest(manifest(*rows), ROOT)
    for text in ("", "[]", "{}", '{"v":1,"members":[[1]]}', '{"v":2,"members":[]}', "null"):
        with pytest.raises(ValueError):
            parse_manifest(text, ROOT)


def test_a_member_whose_parent_is_newer_than_the_snapshot_finds_a_place() -> None:
    assert paths(["", "a", "a/b"]) == {"": "", "a": "a", "a/b": "a/b"}
    found = paths(["", "a", "n/b", "a/m/k/c", "n.b"])
    assert found == {"": "", "a": "a", "n/b": "n.b", "a/m/k/c": "a/m.k.c", "n.b": "n.b_"}


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_a_stream_in_any_pieces_is_taken_apart(piece: int) -> None:
    text = manifest(("", "1"), ("a", "2"))
    whole = MAGIC + len(text).to_bytes(4, "little") + text.encode()
    for part in (b"hello", b"w" * 300):
        whole += len(part).to_bytes(4, "little") + part
    whole += bytes(4) + (2).to_bytes(4, "little") + b"xy" + bytes(4) + b"\xff" * 4
    parser, found, parts = TreeParser(), "", [b""]
    for start in range(0, len(whole), piece):
        assert not parser.ended
        came = parser.feed(whole[start : start + piece])
        found = came.manifest or found
        for each in came.pieces:
            if each is None:
                parts.append(b"")
            else:
                parts[-1] += bytes(each)
    assert parser.ended and json.loads(found) == json.loads(text)
    assert parts == [b"hello" + b"w" * 300, b"xy", b""]
    with pytest.raises(ValueError, match="after its end"):
        parser.feed(b"x")


def test_a_stream_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not the stream"):
        TreeParser().feed(b"x" * 100)
    with pytest.raises(ValueError, match="list of members"):
        TreeParser().feed(MAGIC + b"\xff" * 4)
    parser = TreeParser()
    text = manifest(("", "1")).encode()
    parser.feed(MAGIC + len(text).to_bytes(4, "little") + text)
    with pytest.raises(ValueError, match="a piece"):
        parser.feed((1 << 30).to_bytes(4, "little"))
