"""The description of a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from mirrord.system.native import TraceParser
from mirrord.traces.options import ReadOptions

#: Unix time in nanoseconds of 1601-01-01, where Windows counts from.
FILETIME_EPOCH_NS = -11_644_473_600 * 10**9
#: Lines of the sample that are examined.
_LINES = 200


@dataclass(frozen=True)
class Sample:
    """The beginning of a source, decompressed; `whole`: it is the complete source."""

    data: bytes
    whole: bool = False

    @cached_property
    def lines(self) -> list[str]:
        """The first lines as text, without one that the sample truncates; [] for binary data."""
        if b"\0" in self.data:
            return []
        text = self.data.decode("utf-8", "replace").split("\n")
        if not self.whole:
            text = text[:-1]
        return [line.rstrip("\r") for line in text[:_LINES]]

    @cached_property
    def records(self) -> list[str]:
        """Of those, the ones that begin with a digit."""
        return [line.strip() for line in self.lines if line.strip()[:1].isdigit()]


@dataclass(frozen=True)
class Format:
    """A format: its name, how it is detected, and how it is parsed.

    epoch_ns: what its times count from: the Unix epoch, that of Windows (1601), its own beginning
    (None), or what the parser or the sample gives. unsure: it was distinguished from others by a
    guess of its units, which options set.
    """

    name: str
    description: str
    matches: Callable[[Sample], bool]
    parser: Callable[[Sample, ReadOptions], TraceParser]
    epoch_ns: Callable[[Sample, TraceParser], int | None] = field(
        default=lambda sample, parser: None
    )
    #: Options (of `ReadOptions`) that apply to it, besides those of all formats.
    takes: tuple[str, ...] = ()
    unsure: bool = False
