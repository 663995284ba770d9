"""The formats that can be read: how each is recognized, and what parses it."""

from __future__ import annotations

from mirrord.core.errors import UsageError
from mirrord.core.names import nearest
from mirrord.traces.formats import ascii5, binary, delimited, refused, text
from mirrord.traces.formats.base import Format

#: In the order in which they are tried: the most distinctive formats first.
FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        *binary.FORMATS,
        *text.FORMATS,
        *delimited.FORMATS,
        *ascii5.FORMATS,
        *refused.FORMATS,
    )
}


def named(name: str) -> Format:
    """The format of that name; `UsageError` when there is none."""
    found = FORMATS.get(name) or FORMATS.get(name.lower())
    if found is None:
        near = nearest(name, FORMATS)
        raise UsageError(
            f"there is no format '{name}'",
            hint=f"Did you mean '{near[0]}'?" if near else f"Formats are: {', '.join(FORMATS)}.",
        )
    return found
