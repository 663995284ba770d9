"""Restore files, or the whole volume, from a snapshot of the destination.

Panel: Failover and failback 4

With FILEs it copies files or directories from a snapshot of the destination into the source (btrfs,
and ZFS file systems that are not in a tree). FILE is a path in the volume, such as `etc/hosts`.
Each appears completely or not at all. `--overwrite` keeps replaced files as `FILE.before-restore`.

With `--all` it restores the whole source; later changes are kept as a `diverged` snapshot. A source
that no longer exists is recreated.

SNAPSHOT is a name, a guid, or a unique part of a name; by default it is the one shown, or the
newest intact one when that was deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mirrord.control.command import (
    Argument,
    Force,
    Lock,
    MirrorName,
    Option,
    Right,
    Service,
    Yes,
    command,
)
from mirrord.core.results import Result
from mirrord.core.states import Verb

_Snapshot = Annotated[
    str | None,
    Option("The snapshot; default: the one that the destination shows.", "SNAPSHOT"),
]


@command(Right.ACT, when="files")
def restore_files(
    service: Service,
    name: MirrorName,
    files: Annotated[
        tuple[str, ...], Argument("[FILE]...", "Files or folders, as paths inside the volume.")
    ],
    *,
    snapshot: _Snapshot = None,
    into: Annotated[
        Path | None, Option("Restore to this folder; default: the source.", "FOLDER", ("--to",))
    ] = None,
    overwrite: Annotated[
        bool, Option("Replace existing files; the old ones are kept next to them.")
    ] = False,
) -> Result:
    from mirrord.engine import restore

    return service.verb(
        Verb.RESTORE,
        name,
        lambda mirror: restore.restore_files(
            mirror, list(files), snapshot=snapshot, into=into, overwrite=overwrite
        ),
    )


@command(Right.ACT, Lock.QUEUED, when=Option("Restore the whole volume.", flags=("--all",)))
def restore_all(
    service: Service,
    name: MirrorName,
    *,
    snapshot: _Snapshot = None,
    yes: Yes = False,
    force: Force = False,
) -> Result:
    from mirrord.engine import restore

    return service.verb(
        Verb.RESTORE,
        name,
        lambda mirror: restore.restore_all(mirror, snapshot=snapshot, yes=yes, force=force),
    )
