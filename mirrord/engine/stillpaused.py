"""Applications that may still be paused: they are recorded until they are known to run again.

The record is that of the pause on this host (mirrord.pausers.record), and is found by the mirror's
id, as its name may change. It also lists applications of other hosts that did not confirm the end
of their pause; the agents there have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirrord.core.errors import LinkLost, MirrordError, Unreachable
from mirrord.core.pause import LeftPaused
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.system import files
from mirrord.system.waiting import LOOK_S

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror
    from mirrord.link.driver import RemoteDriver

#: In the run folder: the records of all mirrors.
FOLDER = "paused"
_AT_WORK = "a process is at work with it"
#: A look at a record holds it for less.
_LOOKED_AT_S = 1.0


def record_of(mirror: Mirror) -> Path:
    """The file that exists while one of its applications is paused, or may be."""
    return record_in(mirror.run.folder, mirror.id)


def record_in(folder: Path, mirror_id: str) -> Path:
    """The same, for one of that id."""
    return folder.joinpath(FOLDER, mirror_id)


def forsaken(folder: Path, known: Collection[str]) -> list[Path]:
    """The records of mirrors that are not defined any more, or not in this way. known: the ids of
    those that are. Each update looks for them: in a folder of their own, which is mostly empty.
    """
    return [record_in(folder, name) for name in _names(folder) if name not in known]


def _names(folder: Path) -> list[str]:
    return files.names_in(f"{folder}/{FOLDER}")


def resume_forsaken(
    paths: Sequence[Path], tell: Callable[[str], None]
) -> dict[str, list[LeftPaused]]:
    """Resume what these records list, unless a process is at work with it; returns what may still
    be paused afterwards, by the name of the record. tell: is given a text for each that is not.
    """
    from mirrord.pausers import record

    every = dict[str, list[LeftPaused]]()
    for path in paths:
        before = record.left_in(path)
        left = record.resume_left(path, _LOOKED_AT_S, at_work=_AT_WORK)
        known = {one[:3] for one in before}
        # What that process has paused itself is not left.
        left = [one for one in left if one.why != _AT_WORK or one[:3] in known]
        every[path.name] = left
        still = {one[:3] for one in left}
        for one in before:
            if one[:3] not in still:
                tell(f"{one.pauser}, which was left paused, is not paused any more")
    return every


def findings(mirror: Mirror) -> list[Finding]:
    """What may still be paused, as an alarm. Changes nothing, and asks no other host."""
    text = "; ".join(one.line() for one in listed(mirror))
    return [Finding(AlarmKind.PAUSE, Level.ERROR, text)] if text else []


def listed(mirror: Mirror) -> list[LeftPaused]:
    """What may still be paused, and why."""
    if mirror.id not in _names(mirror.run.folder):
        return []
    from mirrord.pausers import record

    return record.left_in(record_of(mirror))


def resume(mirror: Mirror) -> None:
    """Resume what a killed process has left paused, or could not resume. Each failure, and the end
    of it, is an event once. What a mirror that is not defined any more has left is resumed too.
    """
    found = _names(mirror.run.folder)
    if any(name != mirror.id for name in found):
        tell = partial(mirror.catalogue.add_event, mirror.id, "warning")
        resume_forsaken(forsaken(mirror.run.folder, {mirror.id, *_ids(mirror)}), tell)
    if mirror.id not in found:
        return
    from mirrord.pausers import record

    path, before = record_of(mirror), listed(mirror)
    left = record.resume_left(path, elsewhere=partial(_resumed_at, mirror))
    for one in left:
        if one not in before:
            mirror.catalogue.add_event(mirror.id, "error", one.line())
    if before and not left and not path.exists():
        text = "the application that an interrupted command had left paused is not paused any more"
        mirror.catalogue.add_event(mirror.id, "warning", text)


def _ids(mirror: Mirror) -> set[str]:
    """Those of all mirrors whose definitions can be read."""
    definitions, ids = mirror.relation.definitions, set[str]()
    for name in definitions.names():
        with suppress(MirrordError):
            ids.add(definitions.load(name).id)
    return ids


def note(mirror: Mirror, left: Sequence[LeftPaused]) -> None:
    """Record applications of other hosts that may still be paused."""
    if left:
        from mirrord.pausers import record

        record.add(record_of(mirror), left)


def ask(driver: RemoteDriver, host: str, pausers: Sequence[str]) -> list[LeftPaused]:
    """Those of these applications on another host that may still be paused; that host resumes what
    it can.
    """
    from mirrord.link.pausing import left_at

    try:
        with driver.waiting.hurried():
            found = left_at(driver, pausers)
    except (MirrordError, OSError) as error:
        why = f"the host has not confirmed that it runs: {error}"
        return [LeftPaused(text, host=host, why=why) for text in pausers]
    return [LeftPaused(one.pauser, host=host, why=one.why) for one in found]


def _resumed_at(mirror: Mirror, one: LeftPaused) -> str:
    """Have it resumed by its host; returns why that failed, or ""."""
    from mirrord.link.driver import RemoteDriver
    from mirrord.link.pausing import left_at
    from mirrord.pausers.record import UNKNOWN

    # A peer may ask for what it may pause; what a damaged record leaves unknown is told anyway.
    asked = [one.pauser] if one.pauser != UNKNOWN else []
    pairs = mirror.definition.pairs
    hosts = [*(pair.source.host for pair in pairs), *(pair.destination.host for pair in pairs)]
    drivers = [*mirror.source.drivers, *mirror.destination.drivers]
    for host, driver in zip(hosts, drivers, strict=True):
        if host == one.host and isinstance(driver, RemoteDriver):
            try:
                with driver.waiting.hurried(LOOK_S):
                    return "; ".join(left.why for left in left_at(driver, asked))
            except (LinkLost, Unreachable):
                return one.why  # still not known
            except (MirrordError, OSError) as error:
                return str(error)
    path = record_of(mirror)
    return f"the mirror has no volume on that host any more; resume it there, then delete {path}"
