"""Proves that the destination's copy of a snapshot equals the source's, or names what differs
(docs/verify.md). No lock is held: updates go on meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from mirrord.core.errors import Busy, Refused
from mirrord.core.model import Role, Snapshot
from mirrord.core.results import Document, Result
from mirrord.core.states import Activity, Verb
from mirrord.core.text import escaped
from mirrord.core.units import format_duration, format_size
from mirrord.core.verification import (
    NAMED_MAX,
    PIECE_BYTES,
    Difference,
    PoolState,
    Verified,
    VerifyMode,
    VerifyRequest,
)
from mirrord.drivers.contract import Capability
from mirrord.drivers.verification import repair_unsupported
from mirrord.engine import recovery
from mirrord.engine.compare import (
    WHOLE,
    Comparison,
    Part,
    compare,
    ends_of,
    line,
    mode_of,
)
from mirrord.engine.mirror import Mirror
from mirrord.system import clock, locks

_LISTED = 20


def verify(
    mirror: Mirror,
    mode: VerifyMode,
    *,
    parts: int = 0,
    snapshot: str | None = None,
    repair: bool = False,
) -> Result:
    """Compare the snapshot that the destination shows, or a named one, with the source's. parts: of
    a million blocks, for a sample. repair: replace it by a corrected copy when it differs.
    """
    with ExitStack() as stack:
        try:
            alone = locks.exclusive(mirror.run.verifying, "verify", what="the verification")
            stack.enter_context(alone)
        except Busy as error:
            raise Busy(
                "the mirror is being verified",
                where=f"mirror '{mirror.name}'",
                why=error.what,
                hint="Try again when that is done.",
            ) from error
        return _verify(mirror, mode, parts, snapshot, repair)


def _verify(
    mirror: Mirror, mode: VerifyMode, parts: int, snapshot: str | None, repair: bool
) -> Result:
    started_s = clock.monotonic_s()
    if repair:
        _demand_repair(mirror)
    chosen = _chosen(mirror, snapshot)
    base = _base(mirror, chosen) if mode is VerifyMode.CHANGED else ""
    seed = secrets.randbits(32) if mode is VerifyMode.SAMPLE else 0
    rate = mirror.definition.verify.rate
    found, elsewhere = [], []
    for part in _parts(mirror, chosen.guid, base):
        if isinstance(part, Difference):
            elsewhere.append(part)
        else:
            request = VerifyRequest(part.guid, mode, part.base, rate, seed, parts)
            found.append(compare(part, request))
    done = Verified(
        chosen.guid,
        chosen.name,
        clock.now_ns(),
        mode_of(found),
        len(elsewhere) + sum(len(one.differences) for one in found),
        "+".join(one.source.root for one in found),
    )
    repaired = 0
    if repair and done.differences:
        repaired = _repaired(mirror, chosen, found)
        done = done._replace(at_ns=clock.now_ns(), differences=0)
    unproven = any(True for one in found for _ in one.unproven())
    if done.differences or not unproven:
        mirror.catalogue.add_verification(mirror.id, done)
    level = "warning" if done.differences or unproven else "info"
    text = f"verified {done.name} ({done.mode.value}): {_verdict(done, unproven=unproven)}"
    mirror.catalogue.add_event(mirror.id, level, text)
    seconds = clock.monotonic_s() - started_s
    result = _result(mirror, done, found, elsewhere, seconds, (seed, parts))
    if not repaired:
        return result
    text = f"{format_size(repaired)} were repaired; the copy now equals the source"
    mirror.catalogue.add_event(mirror.id, "warning", f"{done.name}: {text}")
    data = {**result.data, "repaired_bytes": repaired}
    return Result("repaired", f"{result.text}\n  {text}", data)


def _repaired(mirror: Mirror, chosen: Snapshot, found: Sequence[Comparison]) -> int:
    """Replace the members' copies that differ by corrected ones; returns the bytes written."""
    for one in found:
        _check_repairable(mirror, one)
    written = 0
    with mirror.hold(Verb.UPDATE, activity=Activity.TRANSFERRING):
        recovery.recover(mirror)
        if mirror.destination.facts().shown != chosen.guid:
            raise Refused(
                "the destination shows another snapshot now",
                where=str(mirror.destination),
                why="it was updated while it was verified",
                hint="Run the same command again.",
            )
        for one in found:
            if one.differences:
                written += _copied(one)
    return written


def _copied(found: Comparison) -> int:
    _name, source, destination, guid, _base = found.part
    written = 0
    destination.repair_begin(guid)
    for one in found.differences:
        for first, length in one.ranges:
            for offset in range(first, first + length, PIECE_BYTES):
                size = min(PIECE_BYTES, first + length - offset)
                data = source.verify_read(guid, one.path, offset, size)
                destination.repair_write(guid, one.path, offset, data)
                written += len(data)
    destination.repair_finish(guid, found.source.root)
    return written


def _demand_repair(mirror: Mirror) -> None:
    for one in mirror.destination.drivers:
        if Capability.REPAIR not in one.capabilities:
            raise repair_unsupported(one)


def _check_repairable(mirror: Mirror, found: Comparison) -> None:
    """`Refused` unless only contents differ, which the source has."""
    name = found.part.name
    for one in found.differences:
        content = one.what == "content" or (one.what == "unreadable" and one.ranges)
        if not content or one.end == "source" or len(found.differences) >= NAMED_MAX:
            raise Refused(
                "the destination cannot be repaired in this way",
                where=f"mirror '{mirror.name}'" + (f", member {name}" if name else ""),
                why=f"{one.what} at the {one.end or 'destination'}: {escaped(one.path) or WHOLE}",
                hint="Only contents of files that the source can read are repaired, and less than "
                f"{NAMED_MAX} files. For a complete new copy: 'mirrord break {mirror.name}', "
                f"'mirrord release {mirror.name}', move {mirror.destination} away, then 'mirrord "
                f"initialize {mirror.name}'.",
            )


def _parts(mirror: Mirror, guid: str, base: str) -> Iterator[Part | Difference]:
    """What is to be compared; a dataset that not both ends have is a difference."""
    ends = ends_of(mirror.source.drivers), ends_of(mirror.destination.drivers)
    guids = mirror.source.parts(guid)
    bases = mirror.source.parts(base) if base else [""] * len(guids)
    names = mirror.destination.names
    for name, source, destination, one, older in zip(names, *ends, guids, bases, strict=True):
        here, there = (
            {path: each for each, path in end.members(one).items()} for end in (source, destination)
        )
        before = {path: each for each, path in source.members(older).items()} if older else {}
        for path in sorted(here.keys() | there.keys()):
            full = "/".join(filter(None, (name, path)))
            if here.get(path) == there.get(path):
                yield Part(full, source, destination, here[path], before.get(path, ""))
            else:
                yield Difference(full, "missing" if path in here else "extra")


def _chosen(mirror: Mirror, wanted: str | None) -> Snapshot:
    """The snapshot to verify, which both ends have."""
    facts = mirror.destination.facts()
    if wanted is None and (facts.role is not Role.MIRROR or facts.shown is None):
        raise Refused(
            "there is nothing to verify",
            where=str(mirror.destination),
            why="the destination shows no snapshot"
            if facts.role is Role.MIRROR
            else f"the destination is {facts.role.value}",
            hint=f"'mirrord verify {mirror.name} --snapshot NAME' verifies an older snapshot that "
            "both ends have.",
        )
    there = {one.guid: one for one in mirror.destination.snapshots() if one.guid}
    here = {one.guid: one for one in mirror.source.snapshots() if one.guid}
    for guid, one in there.items():
        if (guid == facts.shown if wanted is None else wanted in (one.name, guid)) and guid in here:
            return here[guid]
    what = f"'{wanted}'" if wanted else "the snapshot that the destination shows"
    raise Refused(
        f"{what} cannot be verified",
        where=f"mirror '{mirror.name}'",
        why="not both ends have it",
        hint=f"'mirrord snapshots {mirror.name}' lists what each end has.",
    )


def _base(mirror: Mirror, chosen: Snapshot) -> str:
    """The newest other snapshot that was found equal by more than a sample, and that the source
    still has; "" for none.
    """
    here = {one.guid for one in mirror.source.snapshots()}
    for one in mirror.catalogue.verifications(mirror.id):
        equal = not one.differences and one.mode is not VerifyMode.SAMPLE
        if equal and one.guid != chosen.guid and one.guid in here:
            return one.guid
    return ""


# The result


def _verdict(done: Verified, *, unproven: bool) -> str:
    return "not proven" if unproven and not done.differences else done.verdict


def _result(
    mirror: Mirror,
    done: Verified,
    found: Sequence[Comparison],
    elsewhere: Sequence[Difference],
    seconds: float,
    sample: tuple[int, int],
) -> Result:
    """elsewhere: the datasets that not both ends have."""
    read = [sum(getattr(one, end).read_bytes for one in found) for end in ("source", "destination")]
    named = [*elsewhere, *(_named(one, each) for one in found for each in one.differences)]
    unproven = [(one, end, why) for one in found for end, why in one.unproven()]
    pools = _pools(found)
    data: Document = {
        "snapshot": done.name,
        "guid": done.guid,
        "mode": done.mode.value,
        "equal": not done.differences and not unproven,
        "root": done.root,
        "differences": [
            one._asdict() | {"ranges": [list(each) for each in one.ranges]} for one in named
        ],
        "unproven": [{"path": one.part.name, "end": end, "why": why} for one, end, why in unproven],
        "pools": [{"end": end, **pool._asdict()} for end, pool in pools],
        "files": sum(one.source.files for one in found),
        "blocks": sum(one.source.blocks for one in found),
        "read_bytes": {"source": read[0], "destination": read[1]},
        "duration_s": round(seconds, 3),
        "seed": sample[0],
        "sample_percent": sample[1] / 10_000,
    }
    verdict = _verdict(done, unproven=bool(unproven))
    lines = [f"{mirror.name}: {done.name}: {verdict} ({_how(done, read, seconds)})"]
    lines += dict.fromkeys(_notes(found, done, sample[1]))
    lines += [
        f"  not compared: {one.part.name or WHOLE}: at the {end} {why}"
        for one, end, why in unproven
    ]
    lines += [f"  {line(one)}" for one in named[:_LISTED]]
    if len(named) > _LISTED:
        lines.append(f"  … and {len(named) - _LISTED} more (--json lists all)")
    lines += [f"  pool of the {end}: {_pool(pool)}" for end, pool in pools]
    status = "unproven" if unproven else "verified"
    return Result("different" if done.differences else status, "\n".join(lines), data)


def _named(found: Comparison, one: Difference) -> Difference:
    return one._replace(path="/".join(filter(None, (found.part.name, one.path))))


def _pools(found: Sequence[Comparison]) -> list[tuple[str, PoolState]]:
    """The pools of both ends, as they were at last."""
    last = {
        (end, each.pool.name): each.pool
        for one in found
        for end, each in one.ends()
        if each.pool is not None
    }
    return [(end, pool) for (end, _name), pool in sorted(last.items(), reverse=True)]


def _pool(pool: PoolState) -> str:
    if pool.data_errors is None:
        errors = "data errors unknown"
    else:
        errors = f"{pool.data_errors or 'no'} known data errors"
    return f"{pool.name}: {pool.health}; {pool.scan or 'never scrubbed'}; {errors}"


def _how(done: Verified, read: Sequence[int], seconds: float) -> str:
    size = " and ".join(map(format_size, read))
    return f"{done.mode.value}, {size} read in {format_duration(seconds)}"


def _notes(found: Sequence[Comparison], done: Verified, parts: int) -> Iterator[str]:
    for one in found:
        for end, each in one.ends():
            if each.why and each.root:
                yield f"  everything was read at the {end}: {each.why}"
    if done.mode is VerifyMode.SAMPLE and not done.differences:
        shares = ", ".join(f"{n}: {chance(parts, n):.0%}" for n in (1, 10, 100, 1000))
        yield f"  chance that damaged blocks would have been found, by their number: {shares}"


def chance(parts: int, damaged: int) -> float:
    """The probability that a sample of `parts` of a million blocks has one of `damaged` blocks."""
    return 1 - (1 - parts / 1_000_000) ** damaged
