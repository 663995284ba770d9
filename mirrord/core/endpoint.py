"""Endpoints as people write them: `btrfs:/data/home`, `block:/srv/vol1`."""

from __future__ import annotations

from mirrord.core.errors import UsageError
from mirrord.core.model import Endpoint
from mirrord.core.names import nearest

KINDS = ("block", "btrfs")


def parse_endpoint(text: str, *, what: str = "endpoint") -> Endpoint:
    """The endpoint that `text` names; `UsageError` says what is wrong with it and how to mend it.

    The location must be an absolute path: a mirror must mean the same from every folder.
    """
    kind, colon, location = text.partition(":")
    if not colon or "/" in kind:
        raise UsageError(
            f"{what} '{text}' does not say what kind of volume it is",
            hint=f"Write it as KIND:PATH, for example btrfs:/{text.lstrip('/')}.",
        )
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        known = ", ".join(KINDS)
        raise UsageError(
            f"{what} '{text}' is of the unknown kind '{kind}'",
            hint=f"Did you mean {near[0]}:{location}?" if near else f"Known kinds: {known}.",
        )
    if location.startswith("//"):
        raise UsageError(
            f"{what} '{text}' is on another host, which this version cannot reach",
            hint="Mount or log in to the other host and give a local path.",
        )
    if not location.startswith("/"):
        raise UsageError(
            f"{what} '{text}' is not an absolute path",
            hint=f"Write the whole path, for example {kind}:/srv/{location or 'volume'}.",
        )
    if "\0" in location or "\n" in location:
        raise UsageError(f"{what} '{text!r}' has a line break or a NUL byte in its path")
    try:
        location.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise UsageError(
            f"{what} '{shown}' is not UTF-8",
            hint="Definitions are UTF-8: give the volume a name that can be written there.",
        ) from None
    parts = [part for part in location.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"{what} '{text}' has '..' in its path", hint="Write the path plainly.")
    return Endpoint(kind, "/" + "/".join(parts))
