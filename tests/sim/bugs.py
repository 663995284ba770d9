"""Bugs to put into the product, or into what stands for a file system: one for each rule, so that
it is known that the rule can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from mirrord.catalogue.store import Catalogue
from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, Staging
from mirrord.engine import failover_steps, recovery, update
from mirrord.engine.mirror import Mirror
from mirrord.engine.recovery import Recovered
from tests.sim.memory import MemoryDriver
from tests.sim.receiver import MemoryReceiver
from tests.sim.story import Story
from tests.sim.stream import Change
from tests.sim.volume import Body, Volume, digest_of


class Bug(NamedTuple):
    """A bug, by what a release note would say of it. rule: what the violation says. seed: of a
    story that meets it.
    """

    name: str
    rule: str
    put: Callable[[pytest.MonkeyPatch], None]
    seed: int = 0


def _always(value: object) -> Callable[..., Any]:
    return lambda *_arguments, **_options: value


def _ignores_writers(_driver: MemoryDriver, volume: Volume, body: Body, guid: str) -> bool:
    return body.blocks == volume.entries[guid].blocks


def _writes_go_on(patch: pytest.MonkeyPatch) -> None:
    def live(story: Story) -> list[Volume]:
        return [volume for volume in story.disk.volumes.values() if volume.role is Role.LIVE]

    def write(volume: Volume, changes: Iterable[Change]) -> None:
        volume.end_span()
        volume.body.write(changes)

    patch.setattr(Story, "_live", live)
    patch.setattr(Volume, "write", write)


def _freezes_only(mirror: Mirror, _operation: object) -> None:
    mirror.source.freeze()


def _fails(_driver: MemoryDriver, _guid: str) -> bool:
    raise MirrordError("something happened")


_finish = MemoryReceiver.finish


def _loses_a_block(receiver: MemoryReceiver) -> Staging:
    done = _finish(receiver)
    entry = receiver._staged.entry
    if entry is not None and entry.blocks:
        entry.blocks.popitem()
        entry.digest = digest_of(entry.blocks)
    return done


def _of(target: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(target, name, value)


BUGS = (
    Bug(
        "what was live is dropped unproven",
        "acknowledged lines are nowhere",
        _of(MemoryDriver, "_is_superfluous", _always(True)),
    ),
    Bug(
        "what somebody still writes to is dropped",
        "acknowledged lines are nowhere",
        _of(MemoryDriver, "_is_superfluous", _ignores_writers),
        16,
    ),
    Bug(
        "later work does not stop recovery",
        "later work",
        _of(MemoryDriver, "is_marked", _always(True)),
        3,
    ),
    Bug(
        "any volume at the source's place is mirrored",
        "copies of a volume",
        _of(update, "check_descent", _always(None)),
    ),
    Bug(
        "break needs the snapshot that is shown",
        "break does not work",
        _of(MemoryDriver, "_newest", _always(None)),
    ),
    Bug(
        "a freeze stops nobody",
        "a planned reverse left lines behind",
        _writes_go_on,
    ),
    Bug(
        "a reverse does not carry the last changes",
        "a planned reverse left lines behind",
        _of(failover_steps, "_freeze_and_ship", _freezes_only),
    ),
    Bug(
        "open files do not matter",
        "a planned reverse left lines behind",
        _of(failover_steps, "refuse_writers", _always(None)),
        3,
    ),
    Bug(
        "what was set aside is left",
        "something half done",
        _of(MemoryDriver, "_settle", _always(None)),
    ),
    Bug("a transfer loses a block", "", _of(MemoryReceiver, "finish", _loses_a_block)),
    Bug(
        "an interrupted switch is forgotten",
        "",
        _of(recovery, "_recover_switch", _always(Recovered())),
    ),
    Bug(
        "a reverse leaves the roles as they were",
        "",
        _of(Catalogue, "set_direction", _always(None)),
    ),
    Bug("a verb fails for no reason", "", _of(MemoryDriver, "changed_since", _fails)),
)
