"""Define a mirror. No data is transferred.

Panel: Mirrors 1

Checks both ends and writes the [definition](config.md). No data is transferred.

WHEN is a rule (`'every 15m'`, `'*/10 * * * *'`, `'lag 5m'`) or the name of a
[schedule](schedules.md). [Alarms](alarms.md) are based on the RPO. RATE may also depend on the time
of day ([rates](schedules.md#rates)). KEEP is a number, or [rules](schedules.md#retention) such as
`'newest 10, 7 daily'`. The two [sites](config.md#sites) get the names `primary` and `secondary`, or
those of `--sites`. A mirror of [several volumes](config.md#several-volumes) has a `--member` for
each, in place of SOURCE and DESTINATION; with `--recursive` it is a dataset
[and its descendants](operator-guide.md#a-tree-of-datasets), with `--nested` a btrfs subvolume
[and those nested inside it](operator-guide.md#nested-subvolumes). An image is mirrored
[live](live-modes.md), as POLICY says. With `--pause` an application, such as
`cgroup:postgresql@15-main.service`, is [paused](consistency-groups.md) while snapshots are taken.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

from mirrord.control.command import Argument, MirrorName, Option, Right, Service, command
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.errors import UsageError
from mirrord.core.model import LIVE_KINDS, Definition, Pace, Pausing, Promise, Timing
from mirrord.core.policies import DYNAMIC, PolicyKeys
from mirrord.core.results import Result
from mirrord.core.states import State
from mirrord.system.explain import explained

_Source = Annotated[
    str, Argument("SOURCE", "KIND:PATH or KIND://HOST/PATH; btrfs, zfs, block or image.")
]
_Destination = Annotated[
    str, Argument("DESTINATION", "The place of the copy, of the same kind: new, or empty.")
]
_Members = Annotated[
    tuple[str, ...],
    Option(
        "A volume of a mirror of several volumes; may be repeated.",
        "SOURCE=DESTINATION",
        ("--member",),
    ),
]
_Schedule = Annotated[
    str,
    Option("'every 15m', 'lag 5m', '*/10 * * * *', or a name ('mirrord schedule list').", "WHEN"),
]
_Rpo = Annotated[str, Option("Recovery point objective: the maximum lag, such as 30m.", "DURATION")]
_KeepSource = Annotated[str, Option("Snapshots kept at the source: a number or rules.", "KEEP")]
_KeepDestination = Annotated[
    str,
    Option("Snapshots kept at the destination, such as 'newest 10, 24 hourly, 7 daily'.", "KEEP"),
]
_Snapshots = Annotated[
    tuple[str, ...], Option("User snapshots to replicate, by name; may be repeated.", "PATTERN")
]
_Recursive = Annotated[bool, Option("ZFS: the dataset and its descendants, as one volume.")]
_Nested = Annotated[bool, Option("btrfs: with the nested subvolumes, as one volume.")]
_Pause = Annotated[
    str, Option("What to pause while snapshots are taken, such as cgroup:UNIT.", "KIND:ARGUMENT")
]
_Policy = Annotated[
    str,
    Option("Images: sync (default), strict-sync, semi-sync, async or dynamic.", "POLICY"),
]
_MaxLat = Annotated[str, Option("dynamic: the latency that clients accept, such as 4ms.", "TIME")]
_MaxRpo = Annotated[
    str, Option("dynamic: clients wait rather than exceed this lag, such as 64MiB.", "SIZE")
]
_HoldDown = Annotated[str, Option("dynamic: the shortest time out of sync; default: 5m.", "TIME")]
_Window = Annotated[
    str,
    Option("semi-sync: how far the secondary may be behind, such as 5s; default: 16MiB.", "WINDOW"),
]
_Sites = Annotated[str, Option("Names of the two sites, such as berlin,dr.", "SOURCE,DESTINATION")]


@command(Right.ACT)
def create(
    service: Service,
    name: MirrorName,
    source: _Source = "",
    destination: _Destination = "",
    *,
    members: _Members = (),
    schedule: _Schedule = "",
    rpo: _Rpo = "",
    throttle: Annotated[str, Option("Maximum transfer rate, such as 20MiB/s.", "RATE")] = "",
    keep_source: _KeepSource = "2",
    keep_destination: _KeepDestination = "10",
    snapshots: _Snapshots = (),
    recursive: _Recursive = False,
    nested: _Nested = False,
    pause: _Pause = "",
    sites: _Sites = "primary,secondary",
    policy: _Policy = "",
    window: _Window = "",
    max_lat: _MaxLat = "",
    max_rpo: _MaxRpo = "",
    hold_down: _HoldDown = "",
) -> Result:
    from mirrord.config import strict
    from mirrord.config.members import nested_end, pauser
    from mirrord.config.reading import as_keep, as_rates, recursive_end
    from mirrord.config.reading import window as as_window
    from mirrord.control import creating
    from mirrord.core.names import check_mirror_name

    if not all(snapshots):
        raise UsageError("a pattern for replicated user snapshots is empty")
    beside = bool(recursive or nested or snapshots)
    pairs = creating.pairs(source, destination, members, beside=beside)
    ends = [pairs[0].source, pairs[0].destination]
    if recursive:
        ends = [recursive_end(end, str(end)) for end in ends]
    if nested and snapshots:
        raise UsageError(
            "--snapshots cannot be combined with --nested",
            why="a user snapshot is of one subvolume, not of the nested ones",
        )
    if nested:
        ends = [nested_end(end, str(end)) for end in ends]
    first, second = creating.two_sites([site.strip() for site in sites.split(",")])
    definition = Definition(
        window=as_window(window) if window else "",
        policy=policy or ("sync" if ends[0].kind in LIVE_KINDS else "async"),
        policy_keys=_policy_keys(policy, max_lat, max_rpo, hold_down),
        name=check_mirror_name(name),
        id=os.urandom(4).hex(),
        source=ends[0],
        destination=ends[1],
        keep_source=as_keep(keep_source),
        keep_destination=as_keep(keep_destination),
        snapshots=snapshots,
        timing=Timing((schedule,) if schedule else ()),
        promise=Promise(strict.duration(rpo) if rpo else None),
        pace=Pace(as_rates(throttle) if throttle else ""),
        site_names=(first, second),
        source_site=first,
        members=pairs if members else (),
        pausing=Pausing(pauser(pause) if pause else ""),
    )
    return _add(service, definition)


def _policy_keys(policy: str, max_lat: str, max_rpo: str, hold_down: str) -> PolicyKeys:
    from mirrord.config import strict
    from mirrord.config.policies import size

    if policy != DYNAMIC:
        if max_lat or max_rpo or hold_down:
            raise UsageError("--max-lat, --max-rpo and --hold-down require --policy dynamic")
        return PolicyKeys()
    if not max_lat:
        raise UsageError(
            "--policy dynamic requires --max-lat",
            hint="Give the latency that clients accept, for example --max-lat 4ms.",
        )
    keys = DynamicKeys(strict.duration(max_lat), size(max_rpo) if max_rpo else None)
    return PolicyKeys(replace(keys, hold_down_s=strict.duration(hold_down)) if hold_down else keys)


def _add(service: Service, definition: Definition) -> Result:
    from mirrord.config.together import check_together
    from mirrord.control.places import check_places

    name = definition.name
    with explained():
        service.paths.make(state=False)
        service.definitions.check_free(name)
        if definition.timing.rules:
            from mirrord.config.schedules import Schedules

            Schedules(service.paths.schedules, zone=service.host.zone).of(definition)
        check_together([*service.definitions.all(), definition])
        if definition.is_live:
            from mirrord.live.verbs import check_ends

            notes = check_ends(service.opened_live(definition))
        else:
            notes = check_places(service.opened(definition))
        definition = service.definitions.add(definition)
        service.catalogue.set_direction(definition.id, definition.source_site)
        service.catalogue.add_mirror(definition.id, State.UNINITIALIZED)
    text = f"'{name}' is defined in {definition.file}."
    for note in notes:
        text += f"\nNote: {note}"
    text += f"\nNext: 'mirrord initialize {name}'."
    return Result("done", text, {"name": name, "file": definition.file, "notes": list(notes)})
