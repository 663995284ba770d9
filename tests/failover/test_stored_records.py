"""Relationship records as files that something spoiled, or that a newer mirrord wrote; and names of
snapshots that nobody can have assigned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrord.core import names
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Fenced, NotFound, Refused
from mirrord.core.relationship import EPOCH_MAX
from mirrord.core.sealed import unsealed
from mirrord.drivers.block.volume import Volume
from mirrord.drivers.registry import open_driver
from mirrord.system.paths import Paths
from tests.support.verbs import Service

NAME = "home"


class Pair(NamedTuple):
    """A mirror of two block volumes that is up to date; files: its record at both ends."""

    service: Service
    folder: Path
    files: tuple[Path, Path]

    def endpoint(self, name: str) -> str:
        return f"block:{self.folder / name}"

    def write(self, text: str, *files: Path) -> None:
        for file in files or self.files:
            file.write_text(text)

    def document(self, **changes: object) -> str:
        return json.dumps({**unsealed(self.files[0].read_text()), **changes})

    def elsewhere(self) -> Service:
        """Another host, which defines nothing."""
        home = self.folder / "other"
        return Service(Paths(home / "etc", home / "state", home / "run"))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    home = tmp_path / "this"
    service = Service(Paths(home / "etc", home / "state", home / "run"))
    with Volume.create(tmp_path / "v", 8 << 20) as volume:
        volume.write(0, b"first")
    service.create(NAME, f"block:{tmp_path}/v", f"block:{tmp_path}/copy")
    service.initialize(NAME)
    files = [next((tmp_path / name / "relationships").iterdir()) for name in ("v", "copy")]
    yield Pair(service, tmp_path, (files[0], files[1]))
    service.close()


VERBS: dict[str, Callable[[Service], object]] = {
    "update": lambda service: service.update(NAME),
    "break": lambda service: service.break_off(NAME),
    "resync": lambda service: service.resync(NAME, yes=True),
    "reverse": lambda service: service.reverse(NAME, yes=True),
    "restore": lambda service: service.restore_all(NAME, snapshot=None, yes=True),
    "takeover": lambda service: service.takeover(NAME, yes=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_record_of_a_newer_mirrord_stops_every_verb(pair: Pair, verb: str) -> None:
    newer = pair.document(format=2, epoch=7, controller="somebody", sites="in another form")
    pair.write(newer)
    with Volume.open(str(pair.folder / "v"), writable=True) as volume:
        volume.write(0, b"second")
    with pytest.raises(Fenced, match="written by a newer mirrord"):
        VERBS[verb](pair.service)
    assert [file.read_text() for file in pair.files] == [newer, newer]
    with Volume.open(str(pair.folder / "copy")) as copy:
        assert copy.read(0, 5) == b"first"


def test_the_record_of_a_newer_mirrord_is_not_adopted(pair: Pair) -> None:
    pair.write(pair.document(format=2))
    other = pair.elsewhere()
    with pytest.raises(Fenced, match="its format is 2, this mirrord supports 1"):
        other.adopt(pair.endpoint("copy"), yes=True)
    assert not list(other.paths.mirrors.iterdir())
    other.close()


def test_the_record_of_another_mirror_by_a_newer_mirrord_is_no_obstacle(pair: Pair) -> None:
    newer = pair.document(format=2, mirror_id="ffff")
    for file in pair.files:
        (file.parent / "ffff").write_text(newer)
    assert pair.service.break_off(NAME).status == "done"
    assert pair.service.resync(NAME, yes=True).status == "done"
    assert [(file.parent / "ffff").read_text() for file in pair.files] == [newer, newer]


DAMAGED = {"nested too deep": "[" * 6000, "another mirror's": '{"mirror_id": "ffff"}', "cut": "{"}


def damage(pair: Pair, how: str) -> str:
    return pair.document(mirror_id="ffff") if how == "another mirror's" else DAMAGED[how]


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_record_is_replaced(pair: Pair, how: str) -> None:
    pair.write(damage(pair, how))
    assert pair.service.break_off(NAME).status == "done"
    assert pair.service.resync(NAME, yes=True).status == "done"
    found = [json.loads(file.read_text()) for file in pair.files]
    assert found[0] == found[1]
    assert (found[0]["mirror_id"], found[0]["epoch"]) == (pair.files[0].name, 3)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_record_is_not_adopted_but_that_of_the_other_end_is(pair: Pair, how: str) -> None:
    pair.write(damage(pair, how), pair.files[1])
    other = pair.elsewhere()
    with pytest.raises(NotFound, match="is damaged") as raised:
        other.adopt(pair.endpoint("copy"), yes=True)
    assert "the mirror's other end" in raised.value.hint
    other.adopt(pair.endpoint("v"), yes=True)
    other.update(NAME)
    assert json.loads(pair.files[1].read_text())["epoch"] == 2
    other.close()


@pytest.mark.parametrize("spoiled", ["both", "source", "destination"])
@pytest.mark.parametrize("verb", [*VERBS, "delete"])
def test_an_impossible_epoch_is_a_damaged_record(pair: Pair, verb: str, spoiled: str) -> None:
    """It could not be raised, so no command could be told from an earlier one."""
    files = {"both": pair.files, "source": pair.files[:1], "destination": pair.files[1:]}[spoiled]
    pair.write(pair.document(epoch=2**63 - 1), *files)
    if verb == "delete":
        pair.service.break_off(NAME)
        pair.write(pair.document(epoch=2**63 - 1), *files)
        assert pair.service.delete(NAME, yes=False, keep_snapshots=False).status == "done"
        assert not any(file.exists() for file in pair.files)
        return
    if verb == "resync":
        pair.service.break_off(NAME)
        pair.write(pair.document(epoch=2**63 - 1), *files)
    if (verb, spoiled) == ("takeover", "both"):
        with pytest.raises(Refused, match="neither end has an intact relationship record"):
            VERBS[verb](pair.service)
    else:
        VERBS[verb](pair.service)
    pair.service.break_off(NAME)
    pair.service.resync(NAME, yes=True)
    found = [json.loads(file.read_text()) for file in pair.files]
    assert found[0] == found[1] and 2 < found[0]["epoch"] < 10


def test_the_last_possible_epoch_prevents_no_break(pair: Pair) -> None:
    pair.write(pair.document(epoch=EPOCH_MAX))
    pair.service.update(NAME)
    assert pair.service.break_off(NAME).status == "done"
    with pytest.raises(Refused, match="cannot be raised any further") as raised:
        pair.service.resync(NAME, yes=True)
    assert "Remove its record at both ends" in raised.value.hint
    for file in pair.files:
        file.unlink()
    assert pair.service.resync(NAME, yes=True).status == "done"
    assert json.loads(pair.files[0].read_text())["epoch"] == 2


def test_at_the_last_possible_epoch_a_reverse_does_not_begin(pair: Pair) -> None:
    pair.write(pair.document(epoch=EPOCH_MAX))
    pair.service.update(NAME)
    with pytest.raises(Refused, match="cannot be raised any further"):
        pair.service.reverse(NAME, yes=True)
    assert pair.service.update(NAME).status == "unchanged"


def test_a_number_that_cannot_have_been_reached_is_not_continued(pair: Pair) -> None:
    """A peer may give any name to a snapshot; the next name would not be recognized as one."""
    mirror_id = pair.service.definitions.load(NAME).id
    source = open_driver(parse_endpoint(pair.endpoint("v")))
    forged = names.snapshot_name(mirror_id, 1_700_000_000 * 10**9, 10**18 - 1)
    assert names.sequence_of(forged, mirror_id)
    with source.lock("a peer"):
        source.take_snapshot(forged)
    for number in range(3):
        with Volume.open(str(pair.folder / "v"), writable=True) as volume:
            volume.write(0, str(number).encode())
        pair.service.update(NAME)
        if number == 1:
            pair.service.close()
            (pair.folder / "this/state/catalogue.sqlite").unlink()
    newest = source.snapshots()[-1]
    assert newest.name != forged and 3 < names.sequence_of(newest.name, mirror_id) < 10
