"""Names: of mirrors (people choose them) and of snapshots (mirrord makes them)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from mirrord.core.errors import UsageError

_MADE = re.compile(
    r"(mirrord|diverged)\.(?P<mirror>[0-9a-z]{1,32})\.\d{8}T\d{6}Z\.(?P<sequence>\d{1,18})(~\d+)?"
)
#: No mirror has so many snapshots.
_UNREACHED = 10**17
MIRROR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str, what: str, hint: str = "") -> str:
    """`name` when it can name `what` ("a mirror"); `UsageError` otherwise, with that hint."""
    if MIRROR_NAME.fullmatch(name) is None:
        raise UsageError(
            f"'{name}' is not a valid name for {what}",
            why="a name has 1 to 64 letters, digits, dots, dashes or underscores and begins "
            "with a letter or digit",
            hint=hint,
        )
    return name


def check_mirror_name(name: str) -> str:
    """`name` when it can name a mirror; `UsageError` otherwise."""
    return check_name(name, "a mirror")


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known word that was probably meant, if any: one or none."""
    from difflib import get_close_matches  # loaded only after a mistake

    return get_close_matches(word, list(known), n=1)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The hint for an unknown word: the known one that was probably meant, else `otherwise`."""
    near = nearest(word, (each for each in known if each != word))  # (a link to nothing has a name)
    return f"Did you mean '{near[0]}'?" if near else otherwise


def snapshot_name(
    mirror_id: str, taken_at_ns: int, sequence: int, *, diverged: bool = False
) -> str:
    """`mirrord.<mirror id>.<UTC time>Z.<sequence>`: for people; no decision depends on it.

    diverged: the name under which a resync keeps the losing side; begins with that word.
    """
    moment = datetime.fromtimestamp(taken_at_ns // 1_000_000_000, UTC)
    first = "diverged" if diverged else "mirrord"
    return f"{first}.{mirror_id}.{moment:%Y%m%dT%H%M%S}Z.{sequence}"


def sequence_of(name: str, mirror_id: str) -> int:
    """The number in the name of a snapshot that mirrord made for a mirror; 0: any other name."""
    found = _MADE.fullmatch(name)
    return int(found["sequence"]) if found and found["mirror"] == mirror_id else 0


def last_sequence(found: Iterable[str], mirror_id: str) -> int:
    """The highest number in these names that was assigned to a snapshot of a mirror; 0: none has
    one. A number that cannot have been reached is ignored: the name was damaged, or made up by a
    peer, and the numbers after it would soon have more digits than a name has.
    """
    numbers = (sequence_of(name, mirror_id) for name in found)
    return max((number for number in numbers if number < _UNREACHED), default=0)


_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_site_name(name: str) -> str:
    """`name` when it can name a site; `UsageError` otherwise."""
    if _SITE_NAME.fullmatch(name) is None or name == "name":
        raise UsageError(
            f"'{name}' is not a valid name for a site",
            why="a name has 1 to 64 letters, digits, dashes or underscores, begins with a letter "
            "or digit, and is not 'name'",
        )
    return name
