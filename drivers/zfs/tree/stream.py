"""The list of members of a tree, as ZFS has them (memberstreams.py has the stream)."""

from __future__ import annotations

from collections.abc import Iterable

from mirrord.core.endpoint import is_dataset
from mirrord.drivers import memberstreams
from mirrord.drivers.memberstreams import Manifest
from mirrord.drivers.zfs.dataset import names


def parse_manifest(text: str, root: str) -> Manifest:
    """The manifest; `ValueError` when it is malformed, or has a path that is invalid in `root`."""
    found = memberstreams.parse(
        text,
        is_guid=_is_guid,
        is_path=lambda path: is_dataset(f"{root}/{path}") and names.MARKER not in path,
    )
    above = {one.path for one in found.members[:1]}
    for one in found.members[1:]:
        if one.path.rpartition("/")[0] not in above:
            raise ValueError(f"the member {one.path[:100]!r} comes before its parent")
        above.add(one.path)
    return found


def _is_guid(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 20


def paths(every: Iterable[str]) -> dict[str, str]:
    """The path of each member at the destination, by its path here, parents first. A member whose
    parent is newer than the snapshot gets a path below its nearest older ancestor.
    """
    found: dict[str, str] = {}
    for path in every:
        above, _, leaf = path.rpartition("/")
        while above and above not in found:
            above, _, more = above.rpartition("/")
            leaf = f"{more}.{leaf}"
        place = f"{found[above]}/{leaf}".lstrip("/") if path else ""
        while place in found.values():
            place += "_"
        found[path] = place
    return found
