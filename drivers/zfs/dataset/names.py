"""Names of datasets and snapshots: valid ones, and those that mirrord assigns."""

from __future__ import annotations

import hashlib
import re

from mirrord.core.endpoint import is_dataset
from mirrord.core.errors import Refused, UsageError

#: Datasets that the driver sets aside or prepares are beside the volume, with this in their name.
MARKER = ".mirrord-"
_COMPONENT = re.compile(r"[A-Za-z0-9_.:-](?:[A-Za-z0-9_.: -]*[A-Za-z0-9_.:-])?")


def check_dataset(name: str, where: str) -> str:
    """`name` if it can be a volume of mirrord; raises `UsageError` otherwise."""
    if not is_dataset(name):
        raise UsageError(
            f"'{name}' is not a dataset name",
            where=where,
            hint="Give it as POOL/DATASET, as 'zfs list' shows it, without a leading slash.",
        )
    if MARKER in name:
        raise UsageError(
            f"'{name}' is an internal dataset of mirrord",
            where=where,
            hint="Give the volume that it belongs to.",
        )
    return name


def check_snapshot(name: str, where: str) -> str:
    """`name` if it is valid for a snapshot; raises `Refused` otherwise."""
    if _COMPONENT.fullmatch(name) is None:
        raise Refused(
            f"{name[:100]!r} is not a valid name for a ZFS snapshot",
            where=where,
            why="letters, digits, '-', '_', '.' and ':' are allowed",
        )
    return name


def pool_of(dataset: str) -> str:
    """The pool that holds it."""
    return dataset.partition("/")[0]


def parent_of(dataset: str) -> str:
    """The parent dataset; "" for a pool's root."""
    return dataset.rpartition("/")[0]


def fresh(dataset: str) -> str:
    """The name under which a volume is created that will take the place of `dataset`."""
    return f"{dataset}{MARKER}new"


def set_aside(dataset: str, guid: str) -> str:
    """The name under which the volume with that guid is set aside."""
    return f"{dataset}{MARKER}{int(guid):x}"


def prepared_property(dataset: str) -> str:
    """The property of the parent that assigns a dataset which does not exist yet to a mirror. It
    has a hash of the name, as property names have no capital letters.
    """
    leaf = dataset.rpartition("/")[2]
    return f"mirrord:prepared:{hashlib.sha256(leaf.encode()).hexdigest()[:16]}"
