"""restore: single files from any snapshot, or the whole volume, from the destination."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from mirrord.catalogue.arguments import Arguments
from mirrord.core.errors import (
    MIRROR,
    IoFailed,
    MirrordError,
    NoSpace,
    NotFound,
    Refused,
    Unsupported,
    UsageError,
)
from mirrord.core.model import Role, Snapshot, SnapshotKind
from mirrord.core.results import Result
from mirrord.core.states import Activity, Verb
from mirrord.core.text import escaped
from mirrord.core.units import counted, format_few
from mirrord.drivers.contract import Capability, Driver
from mirrord.engine import failover_steps, pinning, places, plan, recovery
from mirrord.engine.failover import (
    FailbackPlan,
    begin_failback,
    carry_out,
)
from mirrord.engine.mirror import Mirror, pick_snapshot
from mirrord.engine.planlines import loss_lines, nested_lines, writer_lines
from mirrord.system import command, files, steps

_NAME_BYTES_MAX = 255
_COPY_TIMEOUT_S = 24 * 3600.0


def restore_files(
    mirror: Mirror, paths: list[str], *, snapshot: str | None, into: Path | None, overwrite: bool
) -> Result:
    """Copy files or folders out of a snapshot: into the source volume, or into a folder.

    Each appears completely or not at all (copied next to its place, then renamed). An existing file
    is refused, or with `overwrite` renamed to `NAME.before-restore`.
    """
    mirror.permit(Verb.RESTORE)
    if mirror.destination.remote or (into is None and mirror.source.remote):
        raise Unsupported(
            "single files can be restored only where both volumes are on this host",
            where=str(mirror.destination if mirror.destination.remote else mirror.source),
            hint=f"'mirrord snapshots {mirror.name}' shows where each can be read: copy the files "
            f"from there (scp, rsync). 'mirrord restore {mirror.name} --all' restores the whole "
            "volume.",
        )
    if Capability.FILES not in mirror.destination.capabilities:
        _refuse_several(mirror, snapshot)
        raise Unsupported(
            f"single files cannot be restored from a {mirror.destination.kind} volume",
            where=str(mirror.destination),
            why="it holds blocks, not files, or several file systems",
            hint=f"'mirrord restore {mirror.name} --all' restores the whole volume. (Each dataset "
            "of a tree has its files in .zfs/snapshot.)",
        )
    chosen = pick_snapshot(mirror, snapshot)
    if not chosen.path:
        raise Unsupported(
            "the files of that snapshot cannot be read here",
            where=str(mirror.destination),
            why="; ".join(mirror.destination.facts().notes) or "it holds blocks, not files",
            hint=f"'mirrord restore {mirror.name} --all' restores the whole volume.",
        )
    if into is None:
        facts = mirror.source.facts()
        if facts.role is not Role.LIVE:
            raise Refused(
                "there is no live source to restore into",
                where=str(mirror.source),
                hint="Specify a folder: --to FOLDER.",
            )
        into_root, keep_parents = Path(facts.view), True
    else:
        if not into.is_dir():
            raise UsageError(f"'{into}' is not a folder", hint="Create it first, or check --to.")
        into_root, keep_parents = into, False
    jobs = [
        _job(Path(chosen.path), into_root, _inside(mirror, path), keep_parents=keep_parents)
        for path in paths
    ]
    _check_targets([new for _old, new in jobs])
    for _old, new in jobs:
        if os.path.lexists(new) and not overwrite:
            raise Refused(
                "a file of that name already exists",
                where=str(new),
                hint="Add --overwrite (the existing one is kept as NAME.before-restore), or give "
                "another folder with --to.",
            )
    for old, new in jobs:
        _copy(old, new)
    return Result(
        "done",
        "\n".join(f"restored {escaped(str(new))} from {chosen.name}" for _old, new in jobs),
        {"snapshot": chosen.name, "files": [str(new) for _old, new in jobs]},
    )


def _refuse_several(mirror: Mirror, wanted: str | None) -> None:
    """`Unsupported` where each member has files: the hint says where they can be read."""
    drivers = mirror.destination.drivers
    if not all(Capability.FILES in driver.capabilities for driver in drivers):
        return
    parts = mirror.destination.parts(pick_snapshot(mirror, wanted).guid)
    paths = [
        one.path
        for driver, part in zip(drivers, parts, strict=True)
        for one in driver.snapshots()
        if one.guid == part
    ]
    raise Unsupported(
        "single files cannot be restored from a mirror with several members",
        where=str(mirror.destination),
        hint=f"Copy them from the member that has them: {', '.join(paths)}.",
    )


def _inside(mirror: Mirror, path: str) -> PurePosixPath:
    """A path as the user gave it, made relative to the volume."""
    pure = PurePosixPath(path)
    if pure.is_absolute():
        views = mirror.source.facts().view, mirror.destination.facts().view
        for base in (mirror.source.location, mirror.destination.location, *views):
            if base.startswith("/") and pure.is_relative_to(base):
                pure = pure.relative_to(base)
                break
        else:
            pure = pure.relative_to("/")
    if ".." in pure.parts or not pure.parts:
        raise UsageError(
            f"'{path}' does not name a file in the volume",
            hint="Give the path inside the volume, for example etc/hosts; --all restores it all.",
        )
    return pure


def _job(
    old_root: Path, new_root: Path, inside: PurePosixPath, *, keep_parents: bool
) -> tuple[Path, Path]:
    old = _no_links(old_root, inside)
    if not os.path.lexists(old):
        raise NotFound(
            "no such file in the snapshot",
            where=str(old),
            hint=f"Try an older one: 'mirrord snapshots {MIRROR}' lists them, --snapshot selects "
            "one.",
        )
    if not keep_parents:
        return old, new_root / inside.name
    new = _no_links(new_root, inside)
    if not new.parent.is_dir():
        raise NotFound(
            "the folder of the file no longer exists",
            where=str(new.parent),
            hint="Restore the folder itself, or give another one with --to.",
        )
    return old, new


def _check_targets(targets: list[Path]) -> None:
    """Raise `UsageError` when one file would be put over, or into, another one of the command."""
    for before, new in itertools.pairwise(sorted(targets)):  # sorted: what is inside comes next
        if new.is_relative_to(before):
            raise UsageError(
                f"two of the files would be restored to the same place: {new}",
                hint="Restore them one at a time, each to its own folder (--to FOLDER).",
            )


def _no_links(root: Path, inside: PurePosixPath) -> Path:
    """`root / inside`, refusing a symbolic link in the path: it could lead out of the volume."""
    path = root
    for part in inside.parts[:-1]:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            break
        if stat.S_ISLNK(mode):
            raise Refused(
                "a folder in the path is a symbolic link",
                where=str(path),
                hint="Give the path that it points to.",
            )
    return root / inside


def _copy(old: Path, new: Path) -> None:
    staged = _beside(new, ".mirrord-restore")
    copy = command.find("cp", hint="Install coreutils.")
    steps.reached("RESTORE:COPY")
    _remove(staged)
    done = command.run(
        [copy, "--archive", "--reflink=auto", "--no-target-directory", "--", str(old), str(staged)],
        timeout_s=_COPY_TIMEOUT_S,
        environment={**os.environ, "LC_ALL": "C.UTF-8"},  # for `_not_restored`
    )
    if done.status != 0:
        _remove(staged)
        raise _not_restored(new, done.errors.strip().splitlines() or ["cp failed"])
    files.sync_filesystem("RESTORE:SYNC", staged.parent)
    if os.path.lexists(new):
        kept = _beside(new, ".before-restore")
        if os.path.lexists(kept):
            _remove(staged)
            raise Refused(
                "a file kept by an earlier restore already exists",
                where=str(kept),
                hint="Check it, then remove or rename it.",
            )
        steps.reached("RESTORE:ASIDE")
        os.rename(new, kept)
    files.rename("RESTORE:RENAME", staged, new)


def _not_restored(new: Path, said: Sequence[str]) -> MirrordError:
    """said: by cp, which has a line for each file of a folder."""
    more = f" (and {counted(len(said) - 1, 'more error')})" if said[1:] else ""
    full = any(os.strerror(number) in said[0] for number in (errno.ENOSPC, errno.EDQUOT))
    return (NoSpace if full else IoFailed)(
        "the file was not restored",
        where=str(new),
        why=f"{said[0]}{more}",
        hint=f"{'Free space there' if full else 'Correct that'} and run the same command again; "
        "nothing was replaced.",
    )


def _beside(path: Path, suffix: str) -> Path:
    """The path with the suffix appended; a name that would be too long is truncated."""
    name = os.fsencode(path.name)[: _NAME_BYTES_MAX - len(suffix)]
    return path.with_name(f"{os.fsdecode(name)}{suffix}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def restore_all(mirror: Mirror, *, snapshot: str | None, yes: bool, force: bool = False) -> Result:
    """Bring the whole source volume back to a snapshot of the destination.

    A source that is lost (absent) is created again; an existing one is rolled back to the newest
    common snapshot, its own changes kept as `diverged`, and receives the rest from the destination.
    force: even when processes have files of it open for writing.
    """
    with mirror.hold(Verb.RESTORE, activity=Activity.RESYNCING):
        recovered = recovery.recover(mirror)
        mirror.permit(Verb.RESTORE)
        chosen = pick_snapshot(mirror, snapshot)
        if chosen.kind is SnapshotKind.DIVERGED:
            raise Refused(
                "a diverged snapshot cannot be restored with --all",
                where=chosen.name,
                hint="Copy the files you need from it, or reverse the mirror.",
            )
        failback, base = _plan(mirror, chosen)
        if not yes:
            return Result("confirmation-required", "\n".join(failback.lines), failback.data())
        if not force:
            failover_steps.refuse_writers(mirror.source, mirror.name)
        recovery.drop(mirror, recovered.pending)
        with mirror.source_locked():
            arguments = Arguments(chosen=chosen.name, base=base)
            begin_failback(mirror, failback, mirror.source, arguments)
            finished = carry_out(mirror)
            pinning.renew(mirror)
        lines = [f"{mirror.source.facts().view} was restored to {chosen.name}."]
        if finished.kept:
            lines.append(f"Its later changes are kept as {finished.kept}.")
        lines += [f"Warning: {line}" for line in finished.lines]
        return Result("done", "\n".join(lines), failback.data() | {"kept_as": finished.kept})


def _plan(mirror: Mirror, chosen: Snapshot) -> tuple[FailbackPlan, str | None]:
    facts = mirror.source.facts()
    where = str(mirror.source)
    _refuse_destination(mirror)
    if facts.fixed:
        raise Refused(
            "the source cannot be replaced",
            where=where,
            why=facts.fixed,
            hint=f"Restore single files; or rename {facts.view} (a mount point must be mounted "
            "elsewhere for that) and run the same command again: it is then created again.",
        )
    here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    common = plan.newest_complete_set(here, there, not_after=chosen.guid)
    if common is None:
        _refuse_partly_lost(mirror)
    if all(_is_lost(mirror, one) for one in mirror.source.drivers):
        places.check_mounted(mirror, new_disk=True)
        line = f"restore '{mirror.name}': {where} is created again from {chosen.name}."
        base = common.guid if common else None
        return FailbackPlan(Verb.RESTORE, chosen, where, None, (line,)), base
    if common is None:
        newer = plan.newest_complete_set(here, there)
        instead = f", or restore {newer.name} or a newer one" if newer else ""
        raise Refused(
            f"source and destination have no common snapshot up to {chosen.name}",
            where=where,
            hint=f"Rename the source volume (restore then creates it again){instead}.",
        )
    if common.guid == chosen.guid:
        _check_whole(mirror, chosen)
    lost = mirror.source.losses(common.guid)
    writers = tuple(mirror.source.writers())
    rest = "" if common.guid == chosen.guid else f", then brought forward to {chosen.name}"
    lines = (
        f"restore '{mirror.name}': {where} is rolled back to {common.name}{rest}.",
        *loss_lines(lost),
        *writer_lines(writers),
        *nested_lines(facts),
    )
    return FailbackPlan(Verb.RESTORE, chosen, where, lost, lines, writers), common.guid


def _is_lost(mirror: Mirror, driver: Driver) -> bool:
    """Whether a volume of the source is missing, or what an interrupted restore has prepared there
    has received nothing.
    """
    facts = driver.facts()
    begun = facts.role is Role.MIRROR and facts.mirror_id in ("", mirror.id)
    return facts.role is Role.ABSENT or (begun and not driver.snapshots())


def _refuse_destination(mirror: Mirror) -> None:
    """`Refused` when the source is the destination of another mirror (a cascade)."""
    for one in mirror.source.drivers:
        facts = one.facts()
        if facts.role is Role.MIRROR and facts.mirror_id not in ("", mirror.id):
            raise Refused(
                "the source cannot be rolled back",
                where=str(one),
                why="it is the destination of another mirror",
                hint="Run 'mirrord break' for that mirror first.",
            )


def _refuse_partly_lost(mirror: Mirror) -> None:
    """`Refused` when a member is lost and the others cannot be rolled back to the same set."""
    lost = [str(one) for one in mirror.source.drivers if _is_lost(mirror, one)]
    if not lost or len(lost) == len(mirror.source.drivers):
        return
    raise Refused(
        "a member of the source is lost, and the others have no common set with the destination",
        where=", ".join(lost),
        why="all members of the source must be rolled back to one set, or created again from it",
        hint="Rename the volumes of the other members; restore then creates all members again from "
        f"the destination. Or run 'mirrord break {mirror.name}' and use the destination.",
    )


def _check_whole(mirror: Mirror, chosen: Snapshot) -> None:
    """Refuse to roll back to a snapshot of which the source has lost a part."""
    here, there = mirror.source.members(chosen.guid), mirror.destination.members(chosen.guid)
    gone = sorted(path for guid, path in there.items() if guid not in here)
    if not gone:
        return
    name, copy, to = chosen.name, mirror.destination.location, mirror.source.location
    raise Refused(
        f"the source no longer has all of {name}",
        where=str(mirror.source),
        why=f"missing there: {format_few(gone)}",
        hint=f"Recover each: zfs send {copy}/{gone[0]}@{name} | zfs receive {to}/{gone[0]}; or "
        f"rename the dataset ('zfs rename {to} {to}-old'): restore --all then creates it again.",
    )
