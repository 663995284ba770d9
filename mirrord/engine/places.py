"""Where the ends of a mirror were mounted when it was initialized: to distinguish a missing end
from one whose file system is not mounted, and to create nothing below an unused mount point.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path

from mirrord.core.errors import MIRROR, Refused, Unreachable
from mirrord.core.model import Endpoint, Role, VolumeFacts
from mirrord.engine.mirror import Mirror

_FSTAB = Path("/etc/fstab")


def remember(mirror: Mirror) -> None:
    """Record where the volumes of both ends are."""
    pairs = mirror.definition.pairs
    ends = [
        *zip((pair.source for pair in pairs), mirror.source.drivers, strict=True),
        *zip((pair.destination for pair in pairs), mirror.destination.drivers, strict=True),
    ]
    for endpoint, driver in ends:
        facts = driver.facts()
        if facts.mount:
            mirror.catalogue.set_place(mirror.id, str(endpoint), facts.mount, facts.filesystem)


def check_mounted(mirror: Mirror, *, new_disk: bool = False) -> None:
    """`Refused` when a source is missing because its file system is not mounted, or another one is.
    new_disk: another file system is accepted at the same mount point.
    """
    for pair, driver in zip(mirror.definition.pairs, mirror.source.drivers, strict=True):
        facts = driver.facts()
        known = mirror.catalogue.place(mirror.id, str(pair.source))
        if not (new_disk and known is not None and known[0] == facts.mount):
            _check_mounted(pair.source, known, facts, str(driver))


def check_destination_mounted(mirror: Mirror) -> None:
    """`Unreachable` when a destination is missing because its file system is not mounted: what it
    has received is there.
    """
    for pair, driver in zip(mirror.definition.pairs, mirror.destination.drivers, strict=True):
        facts = driver.facts()
        if facts.role is not Role.ABSENT or not facts.mount:
            continue
        known = mirror.catalogue.place(mirror.id, str(pair.destination))
        mount = _expected_mount(pair.destination, known, facts)
        if mount and not _is_below((facts.mount,), mount):
            raise Unreachable(
                "the file system of the destination is not mounted",
                where=str(driver),
                why=_not_a_mount_point(mount, facts),
                hint=f"Mount it: mount {shlex.quote(mount)}.",
            )


def _check_mounted(
    endpoint: Endpoint, known: tuple[str, str] | None, facts: VolumeFacts, where: str
) -> None:
    """known: mount point and file system at the initialization."""
    if not facts.mount:
        return
    mount = _expected_mount(endpoint, known, facts)
    if mount and mount != facts.mount:
        raise Refused(
            "the file system of the source is not mounted",
            where=where,
            why=_not_a_mount_point(mount, facts),
            hint=f"Mount it: mount {shlex.quote(mount)}. If the source has moved to another file "
            "system, change its path in the definition.",
        )
    if known and known[0] == facts.mount and known[1] != facts.filesystem:
        raise Refused(
            "another file system is mounted at the mount point of the source",
            where=where,
            why=f"{facts.filesystem} is mounted at {facts.mount}, but the mirror was initialized "
            f"from {known[1]}",
            hint=f"Mount the right one at {facts.mount}. If its disk was lost, 'mirrord restore "
            f"{MIRROR} --all' creates the source again on this one.",
        )


def _expected_mount(endpoint: Endpoint, known: tuple[str, str] | None, facts: VolumeFacts) -> str:
    """The mount point above a volume, as recorded, or else by fstab(5); "" when none is known, or
    the volume is not below it any more.
    """
    # An endpoint may lead to the mount point by a link; a view is without links.
    paths = {facts.location, facts.view}
    if not endpoint.host:
        paths.add(os.path.realpath(facts.location))
    mount = known[0] if known else "" if endpoint.host else _fstab_mount(paths)
    return mount if _is_below(paths, mount) else ""


def _not_a_mount_point(mount: str, facts: VolumeFacts) -> str:
    return f"{mount} is not a mount point: the path is on the file system at {facts.mount}"


def _is_below(paths: Collection[str], mount: str) -> bool:
    return any(Path(path).is_relative_to(mount) for path in paths)


def _fstab_mount(paths: Collection[str]) -> str:
    """The mount point that fstab(5) has nearest above a location; "" for none. paths: all by which
    it is known.
    """
    try:
        lines = _FSTAB.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found = [fields[1] for line in lines if len(fields := line.split()) > 1 and line[0] != "#"]
    above = [mount for mount in found if mount != "/" and _is_below(paths, mount)]
    return max(above, key=len, default="")
