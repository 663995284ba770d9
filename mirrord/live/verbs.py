"""The verbs on live mirrors. Each may be run again after an interruption, and does what is left."""

from __future__ import annotations

import uuid
from contextlib import suppress

from mirrord.core.errors import (
    Damaged,
    LinkLost,
    MirrordError,
    Refused,
    Unreachable,
    Unsupported,
)
from mirrord.core.live import LiveReading, LiveSetup, LiveStatus, Mode
from mirrord.core.results import Result
from mirrord.core.states import Activity, Already, State, Verb
from mirrord.core.units import format_duration, format_size
from mirrord.drivers.live import Live
from mirrord.drivers.refusals import (
    image_in_use,
    image_not_empty,
    images_differ_in_size,
    live_definition_by_hand,
)
from mirrord.engine import preempt, rights
from mirrord.engine.mirror import one_line
from mirrord.live.mirror import LiveMirror
from mirrord.system import clock

#: How long roles take to change while both ends reach each other.
_ROLES_S = 20.0
#: How long a break waits for the former primary to notice.
_FENCE_S = 3.0


def check_ends(mirror: LiveMirror) -> tuple[str, ...]:
    """Check both images of a new mirror; returns notes for the administrator."""
    source, destination = mirror.source.facts(), mirror.destination.facts()
    here = mirror.source.image_facts()
    if here.size_bytes is None:
        raise Refused(
            "the image does not exist",
            where=str(mirror.source),
            hint="Give the path of an existing file or block device.",
        )
    if source.mirror_id not in ("", mirror.id):
        raise Refused(
            "the image belongs to another mirror",
            where=str(mirror.source),
            why=f"the mirror {source.mirror_id}",
            hint=live_definition_by_hand(source.mirror_id),
        )
    there = mirror.destination.image_facts()
    if destination.identity and destination.identity == source.identity:
        raise Refused("source and destination are the same image", where=str(mirror.destination))
    if there.size_bytes is not None and there.size_bytes != here.size_bytes:
        raise images_differ_in_size(str(mirror.destination), there.size_bytes, here.size_bytes)
    if there.size_bytes is not None and not there.blank:
        raise image_not_empty(str(mirror.destination))
    for end, found in ((mirror.source, here), (mirror.destination, there)):
        if found.in_use:
            raise image_in_use(str(end), found.in_use)
    if source.filesystem and source.filesystem == destination.filesystem:
        return (
            "Both images are on one file system: this copy does not survive the loss of that disk.",
        )
    return ()


def initialize(mirror: LiveMirror) -> Result:
    """Create both ends and copy the image, which may be served meanwhile."""
    with mirror.hold(Verb.INITIALIZE):
        mirror.permit(Verb.INITIALIZE)
        known, there = mirror.source.live_status(), mirror.destination.live_status()
        if not known.volume or known.volume != there.volume:
            check_ends(mirror)
            _check_uncopied(mirror, known)
            _create(mirror, known.volume, there.volume)
        mirror.set_copy_rate(mirror.source, mirror.source.live_status())
        mirror.start()
        _check_roles(mirror)
        mirror.permit(Verb.INITIALIZE)  # again, now that both ends report their roles
        mirror.catalogue.set_direction(mirror.id, mirror.definition.source_site)
        mirror.set_traffic(mirror.source.live_status())
        began_s = clock.monotonic_s()
        mirror.set_mode(mirror.source, mirror.first_mode)
        # (A new primary begins to copy when it is started.)
        status = mirror.copy(mirror.source, mirror.destination, known)
        spent = format_duration(clock.monotonic_s() - began_s)
        mirror.record(State.MIRRORED, f"initialized: {format_size(status.copied_bytes)} copied")
    text = (
        f"'{mirror.name}' is initialized: {format_size(status.copied_bytes)} copied in {spent}; "
        f"{_condition(status)}."
    )
    if not known.served:
        text += f"\nNext: 'mirrord serve {mirror.name}', for clients by NBD."
    return Result("done", text, {"copied_bytes": status.copied_bytes, "in_sync": status.in_sync})


def _check_uncopied(mirror: LiveMirror, known: LiveStatus) -> None:
    """`Refused` when the source has a copy, or is one, that the destination has no records of: they
    may be at another image, which the definition of another host names.
    """
    if known.volume and not known.running:
        known = mirror.source.live_start("", "")
    if not known.volume or (known.is_primary and not known.generation):
        return
    raise Refused(
        "the image is mirrored already",
        where=str(mirror.source),
        why=f"{mirror.destination} has no records of that copy",
        hint="If the copy is another image, correct the endpoint in the definition. If it or its "
        f"records were lost: 'mirrord delete {mirror.name} --yes' (both images are kept), then "
        "create the mirror again, from the image that has the data.",
    )


def _create(mirror: LiveMirror, *replaced: str) -> None:
    """Create both ends. Between hosts each trusts exactly the other's certificate. replaced: the
    volumes of incomplete records at source and destination.
    """
    definition, volume = mirror.definition, uuid.uuid4().hex
    size = mirror.source.image_facts().size_bytes or 0
    sites = (definition.source_site, definition.destination_site)
    setups = [
        LiveSetup(mirror.id, mirror.name, site, volume, site is sites[0], size, replaces=old)
        for site, old in zip(sites, replaced, strict=True)
    ]
    if definition.source.host != definition.destination.host:
        from mirrord.transport.tls import OneTime

        keys = (OneTime.make(), OneTime.make())
        setups = [
            setup._replace(certificate=own.certificate, key=own.key, trusted=other.certificate)
            for setup, own, other in zip(setups, keys, reversed(keys), strict=True)
        ]
    mirror.source.live_create(setups[0])
    mirror.destination.live_create(setups[1])


def _condition(status: LiveStatus) -> str:
    if status.in_sync:
        return "both ends are in sync"
    if status.is_semi_sync:
        return "the replica follows in semi-sync"
    return "the ends are out of sync, as the policy async says"


def break_off(mirror: LiveMirror, *, snapshot: str | None = None) -> Result:
    """Make the destination a primary of its own, without the source."""
    if snapshot is not None:
        raise Unsupported(
            "a live mirror has no snapshots",
            where=f"mirror '{mirror.name}'",
            hint="Run the command without --snapshot.",
        )
    # The end knows better than the catalogue, which a command that was interrupted has not updated.
    try:
        there = mirror.status_of(mirror.destination)
    except (LinkLost, Unreachable):
        _check_roles(mirror)
        raise
    if not there.volume or there.state == "empty":
        mirror.permit(Verb.BREAK)
    elif (
        there.is_primary
        and mirror.state is not State.MIRRORED  # another host has broken it off: it is recorded
        and isinstance(verdict := mirror.permit(Verb.BREAK), Already)
    ):
        return Result(verdict.status, f"'{mirror.name}' is broken off already.")
    with preempt.first(mirror, Verb.BREAK), mirror.hold(Verb.BREAK):
        before = mirror.read()
        there = mirror.destination.live_status()
        if not there.running:
            there = mirror.destination.live_start("", "")
        if there.is_primary:
            _check_roles(mirror)
        elif there.role == "fenced":  # a resync was interrupted
            mirror.destination.live_reclaim()
        else:
            mirror.break_off(mirror.destination)
        now = mirror.destination.live_status()
        mirror.take_control(mirror.destination)
        mirror.record(State.BROKEN_OFF, f"broken off, epoch {now.epoch}")
        notes = _about_image(before, there)
        fence, is_fenced = _about_fence(mirror, before.source)
        notes.append(fence)
        if there.lost_memory:
            notes.append(
                f"The host of {mirror.destination} was restarted: writes that were not flushed may "
                "be missing, and it is not known until when the ends were in sync."
            )
        elif not is_fenced and now.since:
            until = clock.format_moment(now.since * 10**9)
            notes.append(
                f"In sync until {until}: {mirror.destination} has every write that the source had "
                "acknowledged by then; later ones may be missing."
            )
        elif not now.since and not _is_known(before.source):
            notes.append(
                "It is not known until when the ends were in sync: writes that the source has "
                "acknowledged may be missing."
            )
    text = f"'{mirror.name}' is broken off: {mirror.destination} is a primary of its own."
    text += "".join(f"\n{note}" for note in notes)
    text += f"\nNext: 'mirrord serve {mirror.name}' serves it to clients there."
    data = {
        "view": mirror.destination.location,
        "epoch": now.epoch,
        "fenced": is_fenced,
        "in_sync_until": now.since or None,
        "warnings": notes,
    }
    return Result("done", text, data)


def _check_roles(mirror: LiveMirror) -> None:
    """`Refused` when the source is the secondary: the catalogue is older than a change of roles, or
    was lost. It is recorded then.
    """
    reading = mirror.read()
    here, there = reading.source, reading.destination
    if here is not None and here.volume and not here.running:
        with suppress(MirrordError, OSError):
            here = mirror.source.live_start("", "")
    is_copy = there is not None and there.role == "secondary"  # so one of them is an older copy
    if here is None or here.role != "secondary" or is_copy:
        return
    mirror.turned()
    mirror.record(State.MIRRORED, "the source is the secondary: the roles were changed")
    raise Refused(
        "the roles were changed",
        where=f"mirror '{mirror.name}'",
        why=f"{mirror.source} is the secondary, which the catalogue did not have",
        hint=f"It is recorded now: {mirror.destination} is the source. Run the command again if it "
        "is still wanted.",
    )


def _about_image(before: LiveReading, there: LiveStatus) -> list[str]:
    """What is known of the image at the destination."""
    notes = []
    if there.state == "resync" and there.since:
        age = format_duration(max(0.0, before.read_ns / 1e9 - there.since))
        notes.append(f"It went back to its last consistent image, which is {age} old.")
    source = before.source
    if source is not None and source.is_semi_sync:
        size = format_size(source.lag_bytes)
        notes.append(
            f"Of the writes that the source has acknowledged, the last {size} are not in it."
        )
    elif source is not None and source.is_primary and not source.in_sync and source.since:
        since = clock.format_moment(source.since * 10**9)
        notes.append(f"The ends were out of sync since {since}: later writes are not in it.")
    return notes


def _is_known(source: LiveStatus | None) -> bool:
    """Whether a source reports since when the other end lacks what it has acknowledged, or that it
    lacks nothing.
    """
    if source is None or not source.running:
        return False
    return not source.is_primary or source.in_sync or source.is_semi_sync or source.since > 0


def _about_fence(mirror: LiveMirror, source: LiveStatus | None) -> tuple[str, bool]:
    """Whether the former primary knows of the break, as a sentence too."""
    if source is None or not source.running:
        return (
            f"Warning: {mirror.source} does not answer. If its clients still write there, they do "
            "so until it reaches this end: stop them."
        ), False
    try:
        mirror.wait(mirror.source, "the fence", lambda one: one.role == "fenced", _FENCE_S)
    except MirrordError:
        with suppress(MirrordError):
            mirror.source.live_unserve()
            return (
                f"Warning: {mirror.source} does not reach this end and has not noticed yet. Its "
                "clients are disconnected."
            ), False
        return (
            f"Warning: {mirror.source} has not noticed yet: it serves its clients until it "
            "reaches this end."
        ), False
    return f"{mirror.source} is fenced: its clients are disconnected.", True


def abort(mirror: LiveMirror) -> Result:
    """End a command that waits for a copy. The copy itself continues."""
    with preempt.first(mirror, Verb.ABORT) as stopped:
        pass
    if not stopped:
        return Result("already_idle", f"No command on '{mirror.name}' is running.")
    text = f"The command on '{mirror.name}' was ended; what it began to copy is still copied."
    return Result("done", text, {"stopped": True})


def resync(mirror: LiveMirror, *, yes: bool) -> Result:
    """Mirror again; the source wins."""
    with mirror.hold(Verb.RESYNC):
        mirror.permit(Verb.RESYNC)
        mirror.run.enter(Activity.RESYNCING)
        mirror.start()
        # The ends know better than a catalogue that was restored.
        ends = (mirror.source.live_status(), mirror.destination.live_status())
        if ends[0].role == "secondary" and ends[1].is_primary:
            raise Refused(
                "the destination is mirrored to the source",
                where=f"mirror '{mirror.name}'",
                why="the roles were changed, and the catalogue is an older one",
                hint=f"'mirrord reverse {mirror.name}' records the roles; what is at "
                f"{mirror.destination} stays.",
            )
        is_copy = ends[0].is_primary and ends[1].role == "secondary"
        if mirror.state is State.BROKEN_OFF or not is_copy:
            if not yes:
                return _plan(mirror, "resync", mirror.source, mirror.destination)
            _take_back(mirror)
        before = _set_limits(mirror, mirror.source)
        mirror.set_mode(mirror.source, mirror.first_mode)  # which may begin the copy
        status = mirror.copy(mirror.source, mirror.destination, before)
        mirror.record(State.MIRRORED, f"resynchronized, epoch {status.epoch}")
    return _mirrors_again(mirror, mirror.source, mirror.destination, status)


def _take_back(mirror: LiveMirror) -> None:
    """The source becomes the primary of the next epoch, and the destination its secondary."""
    source, destination = mirror.source, mirror.destination
    if destination.live_status().is_primary:
        one = source.live_status()
        if one.is_primary and one.epoch <= destination.live_status().epoch:
            _wait_fenced(mirror, source)
        if not source.live_status().is_primary:
            source.live_reclaim()
        _wait_fenced(mirror, destination)
    _rejoin(destination)


def _wait_fenced(mirror: LiveMirror, end: Live) -> None:
    mirror.wait(end, "the change of roles", lambda one: one.role == "fenced", _ROLES_S)


def _rejoin(end: Live) -> None:
    if end.live_status().role == "fenced":
        end.live_rejoin()


def reverse(mirror: LiveMirror, *, yes: bool) -> Result:
    """Swap the roles: after a break the destination wins; otherwise a planned switchover."""
    with mirror.hold(Verb.REVERSE):
        mirror.permit(Verb.REVERSE)
        mirror.run.enter(Activity.RESYNCING)
        mirror.start()
        source, destination = mirror.source, mirror.destination
        broken = mirror.known_state() is State.BROKEN_OFF
        rights.check_live_turn(source, destination)
        if destination.live_status().role == "secondary":
            _demand_in_sync(mirror)
        if not yes:
            return _plan(mirror, "reverse", destination, source, lost=broken)
        source.live_unserve()
        if destination.live_status().role == "fenced":
            destination.live_reclaim()
        if not destination.live_status().is_primary:
            # Again, now that no client writes: what was written since may be at the source only.
            if source.live_status().is_semi_sync:
                mirror.set_mode(source, Mode.SYNC)
                mirror.wait(source, "sync", lambda one: one.in_sync, _ROLES_S)
            _demand_in_sync(mirror)
            mirror.break_off(destination)
            mirror.record(State.BROKEN_OFF, "reverse: the destination is a primary")
        if source.live_status().is_primary:
            _wait_fenced(mirror, source)
        _rejoin(source)
        before = _set_limits(mirror, destination)
        mirror.set_mode(destination, mirror.first_mode)  # which may begin the copy
        status = mirror.copy(destination, source, before)
        mirror.turned()
        mirror.record(State.MIRRORED, f"reversed, epoch {status.epoch}")
    return _mirrors_again(mirror, destination, source, status)


def _set_limits(mirror: LiveMirror, primary: Live) -> LiveStatus:
    """Let a new primary have what the definition says before it copies. Returns its status then."""
    status = primary.live_status()
    mirror.set_copy_rate(primary, status)
    mirror.set_traffic(status)
    return status


def _demand_in_sync(mirror: LiveMirror) -> None:
    status = mirror.source.live_status()
    if status.in_sync or (status.is_semi_sync and status.connected):
        return
    why, way = mirror.out_of_sync(status)
    raise Refused(
        "the roles cannot be swapped now",
        where=f"mirror '{mirror.name}'",
        why=f"the ends are out of sync ({why})",
        hint=f"{way} until 'mirrord status {mirror.name}' says in sync; "
        f"without the source: 'mirrord break {mirror.name}'.",
    )


def _plan(mirror: LiveMirror, verb: str, winner: Live, loser: Live, *, lost: bool = True) -> Result:
    lines = [f"{verb} '{mirror.name}': {winner} will be mirrored to {loser}."]
    lines.append(f"   Clients that are connected to {loser} are disconnected.")
    if lost:
        dirty = loser.live_status().dirty_bytes
        size = f" (up to {format_size(dirty)})" if dirty else ""
        lines.append(f"   What was written at {loser} since the break is lost{size}.")
    return Result("confirmation-required", "\n".join(lines), {"plan": lines})


def _mirrors_again(mirror: LiveMirror, first: Live, second: Live, status: LiveStatus) -> Result:
    text = (
        f"{first} is mirrored to {second}: {format_size(status.copied_bytes)} copied; "
        f"{_condition(status)}.\nNext: 'mirrord serve {mirror.name}', unless it is served already."
    )
    return Result("done", text, {"copied_bytes": status.copied_bytes, "epoch": status.epoch})


def release(mirror: LiveMirror) -> Result:
    """Forget the source end of a mirror that is broken off."""
    with mirror.hold(Verb.RELEASE):
        mirror.permit(Verb.RELEASE)
        mirror.status_of(mirror.source)
        mirror.source.live_remove()
        mirror.record(State.UNINITIALIZED, "released: the records at the source were removed")
    text = (
        f"'{mirror.name}' is released: the source is an ordinary image again. The destination is "
        f"not changed.\nTo start over: 'mirrord delete {mirror.name}', then create a mirror."
    )
    return Result("done", text, {"deleted": 0})


def delete(mirror: LiveMirror, *, yes: bool) -> Result:
    """Remove the mirror: processes, records, definition. Both images are kept."""
    with mirror.hold(Verb.DELETE):
        if not yes:
            mirror.permit(Verb.DELETE)
        last, trouble = _last_primary(mirror), ""
        for end in (mirror.source, mirror.destination):
            try:
                trouble += _remove(mirror, end)
            except (MirrordError, OSError) as error:
                if not yes:
                    if isinstance(error, MirrordError):
                        error.prepend_hint("With --yes the mirror is deleted anyway.")
                    raise
                trouble += f" {end} was not cleaned up: {one_line(error)}."
        mirror.book.definitions.remove(mirror.name)
        with suppress(MirrordError):
            mirror.catalogue.remove_mirror(mirror.id)
    text = f"'{mirror.name}' was deleted. Both images are kept.{last}{trouble}"
    return Result("done", text, {"deleted": 0})


def _remove(mirror: LiveMirror, end: Live) -> str:
    """Remove the records of an end. Those of another mirror are kept: a sentence that says so."""
    other = ""
    with suppress(Damaged):
        other = end.live_status().mirror_id
    if other not in ("", mirror.id):
        return f" {end} belongs to the mirror {other}: its records are kept."
    end.live_remove()
    return ""


def _last_primary(mirror: LiveMirror) -> str:
    """Which image clients were served from, as a sentence: a new mirror begins with it."""
    reading = mirror.read()
    if reading.primary is None:
        return ""
    end = mirror.source if reading.primary is reading.source else mirror.destination
    return f" The primary was {end}."
