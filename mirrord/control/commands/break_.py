"""Make the destination writable, without the source.

Panel: Failover and failback 1

Makes the destination writable immediately. It starts from the snapshot that the destination shows,
or from SNAPSHOT (a name, a guid, or a unique part of a name); newer snapshots are kept. It needs
neither source nor catalogue, and works on a full file system. If the definition is invalid, the
volumes are those of the relationship record. Running commands on the mirror are ended first.

With `--test` it makes a writable copy of what the destination shows, for a failover test or to
inspect data; the mirror keeps running and can be updated. There is one copy per mirror: a separate
volume that shares data where possible, on the destination's host, file system or pool: a snapshot
on btrfs (`current-test` next to the view), a clone on ZFS (`DATASET-test`), a directory for block
volumes (`PATH-test`; its data is shared on btrfs and XFS, copied elsewhere). `status` shows it.
`--end-test` removes it with everything written to it, unless it has its own snapshots or volumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mirrord.control.command import Lock, MirrorName, Option, Right, Service, command
from mirrord.core.errors import ConfigError, Damaged, IoFailed, NoSpace
from mirrord.core.results import Result
from mirrord.core.states import Verb

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror
    from mirrord.live.mirror import LiveMirror

_TEST = "break --test"
_BY_RECORD = "the volumes are those of its relationship record"
_NOT_RECORDED = "the break is recorded at the destination only"


@command(Right.ACT, Lock.ENDS_RUNS)
def break_off(
    service: Service,
    name: MirrorName,
    *,
    snapshot: Annotated[
        str | None,
        Option(
            "Start from this snapshot; default: the one that the destination shows.", "SNAPSHOT"
        ),
    ] = None,
) -> Result:
    """Does not ask for confirmation. Commands that run on the mirror are ended first; the source is
    not changed.
    """
    # It does not need the catalogue: where that cannot be used, the state is found from the ends,
    # now and once it can be used again. Nor a valid definition, where that named the mirror.
    from mirrord.engine import failover
    from mirrord.engine.mirror import one_line
    from mirrord.live import verbs

    def work(mirror: Mirror) -> Result:
        return failover.break_off(mirror, snapshot=snapshot)

    def live(mirror: LiveMirror) -> Result:
        return verbs.break_off(mirror, snapshot=snapshot)

    try:
        return service.verb(Verb.BREAK, name, work, live=live)
    except ConfigError as error:
        with service.by_record(name, error):
            result = service.verb(Verb.BREAK, name, work, live=live)
        warning = f"{one_line(error)}; {_BY_RECORD}"
    except (Damaged, IoFailed, NoSpace) as error:
        if error.where != str(service.paths.catalogue):
            raise
        with service.without_catalogue():
            result = service.verb(Verb.BREAK, name, work, live=live)
        warning = f"{one_line(error)}; {_NOT_RECORDED}"
    data = {**result.data, "warnings": [*result.data.get("warnings", []), warning]}
    return Result(result.status, f"{result.text}\nWarning: {warning}", data)


@command(
    Right.ACT,
    when=Option("Make a writable copy only; the mirror continues.", flags=("--test",)),
)
def begin_test(
    service: Service,
    name: MirrorName,
    *,
    place: Annotated[
        str,
        Option("With --test: location of the copy, a path or POOL/DATASET.", "PLACE", ("--at",)),
    ] = "",
) -> Result:
    from mirrord.engine import failover

    return service.verb(
        Verb.BREAK, name, lambda mirror: failover.begin_test(mirror, place), kind=_TEST
    )


@command(
    Right.ACT,
    when=Option("Delete that copy and what was written to it.", flags=("--end-test",)),
)
def end_test(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import failover

    return service.verb(Verb.BREAK, name, failover.end_test, kind=_TEST)
