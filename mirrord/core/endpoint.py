"""Endpoints as people write them: `btrfs:/data/home`, `block://backup@dr.example.org:22/srv/vol1`,
`zfs:tank/home`, `zfs://dr.example.org/tank/home`.
"""

from __future__ import annotations

import re

from mirrord.core.errors import UsageError
from mirrord.core.model import Endpoint
from mirrord.core.names import nearest
from mirrord.core.text import escaped, is_plain

#: What people write.
_WRITTEN = ("block", "btrfs", "image", "zfs")
#: zfs-tree: a dataset and its descendants, as `mirrord create --recursive` makes of a zfs endpoint.
#: btrfs-tree: a subvolume with those nested inside it, as `--nested` makes of a btrfs endpoint.
KINDS = (*_WRITTEN, "btrfs-tree", "zfs-tree")
#: Those whose locations are names of datasets, `pool/dataset`, not paths.
NAMED_KINDS = frozenset({"zfs", "zfs-tree"})

#: [user@]host[:port]; a host is a name, an IPv4 address or an IPv6 address in brackets.
_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*)@)?"
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def parse_endpoint(text: str, *, what: str = "endpoint") -> Endpoint:
    """The endpoint that `text` names; `UsageError` says what is wrong with it and how to fix it.

    The location must be an absolute path, or a full dataset name: a mirror must mean the same
    volumes from every working directory.
    """
    kind, colon, location = text.partition(":")
    if not colon or "/" in kind:
        raise UsageError(
            f"{what} '{text}' has no volume kind",
            hint=f"Write it as KIND:PATH, for example btrfs:/{text.lstrip('/')} or "
            "zfs:POOL/DATASET.",
        )
    if kind not in KINDS:
        near = nearest(kind, _WRITTEN)
        known = ", ".join(_WRITTEN)
        raise UsageError(
            f"{what} '{text}' has the unknown kind '{kind}'",
            hint=f"Did you mean {near[0]}:{location}?" if near else f"Known kinds: {known}.",
        )
    host = ""
    if location.startswith("//"):
        host, location = _host(text, kind, location, what)
    if kind in NAMED_KINDS:
        return Endpoint(kind, _dataset(text, location, what, host), host)
    if not location.startswith("/"):
        raise UsageError(
            f"{what} '{text}' is not an absolute path",
            hint=f"Write the full path, for example {kind}:/srv/{location or 'volume'}.",
        )
    return Endpoint(kind, _path(text, location, what), host)


def _host(text: str, kind: str, location: str, what: str) -> tuple[str, str]:
    """The host of `//host/path`, and the path."""
    host, slash, path = location[2:].partition("/")
    if not slash or not path:
        raise UsageError(
            f"{what} '{text}' names a host but no path",
            hint=f"Write it as {kind}://{host or 'HOST'}/PATH.",
        )
    split_host(host, what=f"{what} '{text}'")
    return host, f"/{path}"


def split_host(host: str, *, what: str) -> tuple[str, str, int]:
    """(user, name, port) of `[user@]name[:port]`, "" and 0 for what is not given; `UsageError`."""
    found = _HOST.fullmatch(host)
    if found is None or not 0 <= int(found["port"] or 0) < 65536 or found["port"] == "0":
        raise UsageError(
            f"{what} has an invalid host: '{host}'",
            hint="Write it as HOST, USER@HOST or USER@HOST:PORT; an IPv6 address in brackets.",
        )
    return found["user"] or "", found["name"], int(found["port"] or 0)


#: One part of a dataset's name, between slashes.
_PART = re.compile(r"[A-Za-z0-9_.:-](?:[A-Za-z0-9_.: -]*[A-Za-z0-9_.:-])?")
_DATASET_BYTES_MAX = 255


def is_dataset(name: str) -> bool:
    """Whether that can be the full name of a dataset: a pool name, then names below it."""
    parts = name.split("/")
    plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    return plain and name[0].isalpha() and len(name) <= _DATASET_BYTES_MAX


def _dataset(text: str, location: str, what: str, host: str) -> str:
    """The name of a dataset; on another host it follows the host's slash."""
    name = location.removeprefix("/") if host else location
    if not is_dataset(name):
        raise UsageError(
            f"{what} '{text}' does not name a dataset",
            hint="Write it as zfs:POOL/DATASET (zfs://HOST/POOL/DATASET on another host), as "
            "'zfs list' shows it; a snapshot cannot be mirrored.",
        )
    return name


def _path(text: str, location: str, what: str) -> str:
    """The normalized path."""
    if not is_plain(location):
        raise UsageError(
            f"{what} '{escaped(text)}' has control characters in its path, or is not UTF-8",
            hint="Definitions are text files: give the volume a path of printable characters.",
        )
    parts = [part for part in location.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"{what} '{text}' has '..' in its path", hint="Write it without '..'.")
    return "/" + "/".join(parts)
