"""Names of datasets and snapshots: what can be one, and those that mirrord gives."""

from __future__ import annotations

import hashlib
import re

from mirrord.core.endpoint import is_dataset
from mirrord.core.errors import Refused, UsageError

#: What the driver sets aside or prepares lies beside the volume, under a name with this in it.
MARKER = ".mirrord-"
_COMPONENT = re.compile(r"[A-Za-z0-9_.:-](?:[A-Za-z0-9_.: -]*[A-Za-z0-9_.:-])?")


def check_dataset(name: str, where: str) -> str:
    """`name` when it can be a volume of mirrord's; `UsageError` otherwise."""
    if not is_dataset(name):
        raise UsageError(
            f"'{name}' is no name of a dataset",
            where=where,
            hint="Write it as POOL/DATASET, as 'zfs list' does, without a leading slash.",
        )
    if MARKER in name:
        raise UsageError(
            f"'{name}' is a dataset that mirrord keeps for itself",
            where=where,
            hint="Name the volume that it belongs to.",
        )
    return name


def check_snapshot(name: str, where: str) -> str:
    """`name` when it can be a snapshot's; `Refused` otherwise."""
    if _COMPONENT.fullmatch(name) is None:
        raise Refused(
            f"{name[:100]!r} cannot be the name of a ZFS snapshot",
            where=where,
            why="it may have letters, digits, '-', '_', '.' and ':'",
        )
    return name


def pool_of(dataset: str) -> str:
    """The pool that holds it."""
    return dataset.partition("/")[0]


def parent_of(dataset: str) -> str:
    """The dataset above; "" above a pool's root."""
    return dataset.rpartition("/")[0]


def fresh(dataset: str) -> str:
    """Where a volume is made that will take the place of `dataset`."""
    return f"{dataset}{MARKER}new"


def set_aside(dataset: str, guid: str) -> str:
    """Where the volume with that guid goes when another takes its place."""
    return f"{dataset}{MARKER}{int(guid):x}"


def prepared_property(dataset: str) -> str:
    """The property of the dataset above by which a place that is not there yet is a mirror's. It
    cannot have the name itself in it: a property's name has no capitals.
    """
    leaf = dataset.rpartition("/")[2]
    return f"mirrord:prepared:{hashlib.sha256(leaf.encode()).hexdigest()[:16]}"
