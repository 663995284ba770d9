"""Several mirrors, or several hosts with the same mirror, that pause one application."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mirrord.core.errors import Busy, Fenced, MirrordError
from mirrord.system.paths import Paths
from tests.pausers.conftest import NAME, VOLUMES, Group
from tests.support.stripes import FILE, is_prefix, numbers
from tests.support.verbs import Service


def together(works: Sequence[Callable[[], object]]) -> list[MirrordError | None]:
    """Do all at the same time; the error of each."""
    failed = dict[int, MirrordError]()

    def work(number: int) -> None:
        try:
            works[number]()
        except MirrordError as error:
            failed[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return [failed.get(number) for number in range(len(works))]


def updating(paths: Paths, name: str) -> Callable[[], object]:
    """An update by a process of its own, as far as mirrord can tell."""

    def update() -> None:
        service = Service(paths)
        try:
            service.update(name)
        finally:
            service.close()

    return update


def test_two_groups_with_the_same_members(group: Group) -> None:
    """Each set is a prefix, and neither mirror deletes or resumes what is the other's."""
    pause = f"cgroup:{group.app.name}"
    group.create(pause=pause)
    ends = [f"btrfs:{group.here / one}=btrfs:{group.there}/other-{one}" for one in VOLUMES]
    group.service.create("other", members=tuple(reversed(ends)), pause=pause)
    group.settings('pause_max = "5s"')
    views = {
        NAME: group.views(),
        "other": [group.there / f"other-{one}/current" for one in VOLUMES],
    }
    group.write(1)
    counts = dict[str, list[int]]()
    for name in views:
        group.service.initialize(name)
    for _ in range(3):
        assert together([updating(group.paths, name) for name in views]) == [None, None]
        for name, folders in views.items():
            found = numbers(folders)
            assert is_prefix(found), name
            counts.setdefault(name, []).append(len(found))
    assert all(found == sorted(set(found)) for found in counts.values()), counts
    assert not group.app.asked() and not group.records()
    for one in VOLUMES:
        taken = [*group.here.glob(f".mirrord/{one}/snapshots/*")]
        assert len(taken) <= 2 * len(views), "the bases, and what is no longer needed"


def test_another_host_with_the_same_group_pauses_nothing(group: Group, tmp_path: Path) -> None:
    """A machine that was cloned: two daemons have one definition and one catalogue."""
    log = tmp_path / "log"
    program = tmp_path / "pause-db"
    program.write_text(f"#!/bin/sh\necho $1 >> {log}\n")
    program.chmod(0o755)
    group.create(pause=f"hook:{program}")
    group.service.initialize(NAME)
    group.service.close()
    shutil.copytree(group.home, tmp_path / "clone")
    clone = Paths(*(tmp_path / "clone" / one.name for one in group.paths))
    group.again().update(NAME)
    log.write_text("")
    other = Service(clone)
    (group.here / "a" / FILE).write_text("1")
    verbs: list[Callable[[str], object]] = [other.update, other.pause_once, other.recover]
    for verb in verbs:
        try:
            verb(NAME)
        except Fenced as error:
            assert "another host controls the mirror" in str(error)
    assert log.read_text() == "" and len(group.snapshots()) == 1
    other.close()
    for number in range(3):
        (group.here / "a" / FILE).write_text(f"again {number}")
        failed = together([updating(paths, NAME) for paths in (group.paths, clone)])
        assert isinstance(failed[0], Busy | None) and isinstance(failed[1], Busy | Fenced), failed
    group.again().update(NAME)
    assert (group.there / "a/current" / FILE).read_text() == "again 2"
    words = log.read_text().split()
    assert words == ["pause", "resume"] * (len(words) // 2), "one after the other"
