"""The formats that can be read: how each is recognized, and what parses it."""

from __future__ import annotations

from mirrord.core.errors import UsageError
from mirrord.core.names import did_you_mean
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
        hint = did_you_mean(name, FORMATS, f"Formats are: {', '.join(FORMATS)}.")
        raise UsageError(f"there is no format '{name}'", hint=hint)
    return found
