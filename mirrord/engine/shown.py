"""What the destination shows, and what is wrong with the two ends: as observed, not as recorded.
Each fault is a problem in `status` and an alarm of the daemon; docs/alarms.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mirrord.catalogue.store import MirrorRow
from mirrord.core.errors import MirrordError
from mirrord.core.model import Role, Snapshot, VolumeFacts
from mirrord.core.records import AlarmKind, Finding, Level
from mirrord.core.relationship import Intent
from mirrord.core.states import State
from mirrord.core.units import format_size
from mirrord.drivers.contract import Driver
from mirrord.engine import relation
from mirrord.engine.mirror import Mirror, is_half_restored, one_line
from mirrord.system import clock, locks
from mirrord.system.waiting import LOOK_S

T = TypeVar("T")

#: Less than this is a full file system: not even the records of a transfer fit.
_FULL_BYTES = 1 << 20


class Shown(NamedTuple):
    """What the destination shows. name: of the snapshot, or "". confirmed_ns: until when (wall
    time) it is known to equal the source; 0 when nothing is shown.
    """

    name: str
    confirmed_ns: int
    faults: tuple[Finding, ...] = ()


def look(
    mirror: Mirror,
    row: MirrorRow,
    facts: VolumeFacts | None,
    trouble: str,
    *,
    commits: bool = False,
) -> Shown:
    """What the destination shows now. facts: of the destination, None when it cannot be reached,
    because of `trouble`. Behind a link that is down it still shows what it showed; on this host it
    shows nothing usable. commits: a commit is running, between whose members it shows no set.
    """
    if facts is None:
        fault = _fault(f"the destination cannot be reached: {trouble}")
        return Shown("", row.confirmed_ns if mirror.destination.remote else 0, (fault,))
    record = mirror.relation.known
    other = relation.other_kind(mirror, record) if record is not None else ""
    if other:
        fault = _fault(f"the definition has another kind of endpoint: {other}")
        return Shown("", row.confirmed_ns, (fault,))
    full = (*_full(mirror, facts), *_incomplete(mirror, facts))
    absent = _absent(mirror, facts)
    if row.state is not State.MIRRORED:
        # A promoted destination is changed independently; it began as what it showed last.
        gone = row.state is State.BROKEN_OFF and facts.role is Role.ABSENT
        faults = (absent,) if absent and gone else full
        if row.state is State.BROKEN_OFF and facts.role is Role.MIRROR and not facts.shown:
            missing = f"its writable volume is missing: nothing is at {facts.view}"
            faults = (_fault(f"the destination {mirror.destination} is broken off, but {missing}"),)
        return Shown("", row.confirmed_ns, faults)
    if absent is not None:
        return Shown("", 0, (absent,))
    if facts.role is Role.LIVE:
        fault = _fault(_taken_over(mirror) or _why_live(mirror))
        return Shown("", row.confirmed_ns, (fault, *full))
    faults = (*_read_only(mirror), *full)
    if not facts.shown and commits:
        return Shown("", row.confirmed_ns, faults)
    if not facts.shown:
        fault = _fault(f"{mirror.destination} {_shows_nothing(mirror)}")
        return Shown("", 0, (fault, *faults))
    if facts.shown == row.confirmed_guid:
        return Shown(_name(mirror, facts.shown, None), row.confirmed_ns, faults)
    there = _snapshot(mirror, facts.shown)
    taken_ns = there.taken_at_ns if there else 0
    name = _name(mirror, facts.shown, there)
    if row.confirmed_guid and _is_another(mirror, facts.shown):
        why = _taken_over(mirror)
        faults = (_fault(why) if why else _another(mirror, row, name, taken_ns), *faults)
    return Shown(name, taken_ns, faults)


def look_at_source(mirror: Mirror) -> tuple[Finding, ...]:
    """Whether there is a volume at the source. One that cannot be reached is not reported here: it
    is a risk for the base.
    """
    facts = _answer(mirror, mirror.source.facts)
    if facts is None:
        return ()
    text = ""
    if facts.frozen:
        text = f"the source {mirror.source} is frozen; 'mirrord abort {mirror.name}' thaws it"
    elif is_half_restored(facts, mirror.id):
        text = (
            f"the source {mirror.source} is read-only: a 'restore --all' was interrupted; 'mirrord "
            f"restore {mirror.name} --all' finishes it"
        )
    if text and mirror.catalogue.operation(mirror.id) is None:
        return (Finding(AlarmKind.SOURCE, Level.ERROR, text),)
    if facts.role not in (Role.ABSENT, Role.FOREIGN):
        texts = [f"{mirror.source}: {note}" for note in facts.data_missing]
        return tuple(Finding(AlarmKind.SOURCE, Level.ERROR, text) for text in texts)
    note = facts.notes[0] if facts.notes else "nothing is at that path"
    what = "missing" if facts.role is Role.ABSENT else "not a volume that can be mirrored"
    text = f"the source {mirror.source} is {what}: {note}; check that it is mounted"
    return (Finding(AlarmKind.SOURCE, Level.ERROR, text),)


def _answer(mirror: Mirror, ask: Callable[[], T]) -> T | None:
    """What an end says; None when it cannot be reached, or does not answer soon."""
    try:
        with mirror.waiting.hurried(LOOK_S):
            return ask()
    except (MirrordError, OSError):
        return None


def _fault(text: str) -> Finding:
    return Finding(AlarmKind.DESTINATION, Level.ERROR, text)


def _incomplete(mirror: Mirror, facts: VolumeFacts) -> tuple[Finding, ...]:
    """Data that the destination has lost, and the way to a new copy."""
    name = mirror.name
    way = (
        f"for a complete new copy, run 'mirrord break {name}' and 'mirrord release {name}', move "
        f"the volume away, then run 'mirrord initialize {name}'"
    )
    notes = [note.rstrip(".") for note in facts.data_missing]
    return tuple(_fault(f"{mirror.destination}: {note}; {way}") for note in notes)


def _taken_over(mirror: Mirror) -> str:
    """That another host controls the mirror, and may have changed the destination; "" otherwise."""
    record = _answer(mirror, lambda: mirror.destination.drivers[0].relationship(mirror.id))
    why = relation.other_controller(mirror, record) if record is not None else ""
    return f"{relation.CONTROLLED}: {why}" if why else ""


def _why_live(mirror: Mirror) -> str:
    """Why the destination is live, although the mirror was not broken off."""
    record = mirror.relation.known
    if record is not None and relation.is_exchanged(mirror, record):
        return f"{relation.EXCHANGED}: restore the previous endpoints"
    driver = replaced(mirror)
    if driver is not None:
        return f"another volume has taken the place of the destination {driver}; move the copy back"
    record = _answer(mirror, lambda: mirror.destination.drivers[0].relationship(mirror.id))
    if record is not None and record.intent is Intent.BROKEN_OFF:
        return "it was broken off, but the catalogue could not record that; the next command will"
    return "the destination was made writable outside of this mirror"


def replaced(mirror: Mirror) -> Driver | None:
    """See `Mirror.replaced`."""
    with mirror.waiting.hurried(LOOK_S):
        return mirror.replaced()


def _shows_nothing(mirror: Mirror) -> str:
    """Why an existing end shows no set."""
    try:
        if all(driver.facts().shown for driver in mirror.destination.drivers):
            return "shows different sets at its members: the next update makes them show one set"
    except (MirrordError, OSError) as error:
        return f"cannot be read: {one_line(error)}"
    return "shows nothing: its view is missing"


def _absent(mirror: Mirror, facts: VolumeFacts) -> Finding | None:
    where, note = str(mirror.destination), facts.notes[0] if facts.notes else ""
    if facts.role is Role.ABSENT:
        why = note or "nothing is at that path"
        return _fault(f"the destination {where} is missing: {why}; check that it is mounted")
    if facts.role is Role.FOREIGN or (facts.role is Role.MIRROR and facts.mirror_id != mirror.id):
        tail = f": {note}" if note else ""
        return _fault(f"the destination {where} no longer belongs to this mirror{tail}")
    return None


def _is_another(mirror: Mirror, guid: str) -> bool:
    """Whether it is not what was committed last, no verb is committing it now, and none was
    interrupted between the commit and its record.
    """
    operation = mirror.catalogue.operation(mirror.id)
    if operation is not None and operation.arguments.guid == guid:
        return False
    row = mirror.catalogue.mirror(mirror.id)
    if row is None or row.confirmed_guid == guid or locks.holder_of(mirror.run.lock) is not None:
        return False
    facts = _answer(mirror, mirror.destination.facts)
    return facts is not None and facts.shown == guid


def _another(mirror: Mirror, row: MirrorRow, name: str, taken_ns: int) -> Finding:
    """Both ends are valid, but the destination does not show what was committed last."""
    taken = f" (taken {clock.format_moment(taken_ns)})" if taken_ns else ""
    committed = _name(mirror, row.confirmed_guid, None)
    return _fault(
        f"the destination {mirror.destination} shows {name}{taken}, but {committed} was committed "
        "last: an older disk or image is mounted there, or it was rolled back"
    )


def _name(mirror: Mirror, guid: str, snapshot: Snapshot | None) -> str:
    known = mirror.catalogue.snapshot_name(mirror.id, guid)
    if known:
        return known
    snapshot = snapshot or _snapshot(mirror, guid)
    return snapshot.name if snapshot else guid


def _snapshot(mirror: Mirror, guid: str) -> Snapshot | None:
    listed = _answer(mirror, mirror.destination.snapshots) or ()
    return next((snapshot for snapshot in listed if snapshot.guid == guid), None)


def _full(mirror: Mirror, facts: VolumeFacts) -> tuple[Finding, ...]:
    if not facts.used_bytes or facts.free_bytes >= _FULL_BYTES:
        return ()
    free = format_size(facts.free_bytes)
    return (_fault(f"no space is left at the destination {mirror.destination}: {free} free"),)


def _read_only(mirror: Mirror) -> tuple[Finding, ...]:
    """Whether the file system that holds the destination is read-only, where that can be seen.

    Not for a dataset: the dataset of a mirror is always mounted read-only.
    """
    found = []
    for driver in mirror.destination.drivers:
        if not driver.remote and _is_read_only(driver.location):
            text = f"the file system of the destination {driver} is read-only"
            found.append(_fault(f"{text}: check 'dmesg', then mount it writable"))
    return tuple(found)


def _is_read_only(location: str) -> bool:
    if not location.startswith("/"):
        return False
    try:
        return bool(os.statvfs(location).f_flag & os.ST_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return _is_read_only(os.path.dirname(location))
    except OSError:
        return False
