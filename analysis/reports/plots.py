"""One description of a plot, from which the page, the pictures and the tables are made.

It says what is drawn, never how: `html` and `images` beside it do that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: A cell of a table: numbers stay numbers, so that machines get all their digits.
Cell = str | int | float | None
#: How a line is told from others by those who don't see its colour.
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down")


#: Where words stand beside their point.
Side = Literal["top right", "bottom right", "top left", "bottom left"]


@dataclass(frozen=True)
class Axis:
    """An axis. scale "time": values are ISO 8601 texts of the wall clock, without a zone.

    title: with the unit. ticks: places and their words, where numbers alone would not do.
    names: of a scale "names", what stands at 0, 1, 2 …
    """

    title: str
    scale: Literal["linear", "log", "time", "names"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line, or points when `joined` is False.

    tone: number of its colour, negative: quiet (grey). labels: words at each point; `said` tells
    where they are written beside it; None: only shown when it is pointed at. big: a star. strong:
    the one line that matters most.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    tone: int
    joined: bool = True
    marker: bool = True
    dash: int = 0
    steps: bool = False
    filled: bool = False
    big: bool = False
    strong: bool = False
    labels: tuple[str, ...] = ()
    said: tuple[Side | None, ...] = ()


@dataclass(frozen=True)
class Bars:
    """Bars over the names of the x axis; several are stacked or stand side by side."""

    name: str
    values: Sequence[float]
    tone: int


@dataclass(frozen=True)
class Range:
    """A published range at a place: from low to high, or only up to high."""

    x: float
    low: float | None
    high: float
    words: str


@dataclass(frozen=True)
class Reference:
    """What is published, drawn quietly behind: ranges, and a line through averages."""

    name: str
    ranges: tuple[Range, ...] = ()
    average_x: tuple[float, ...] = ()
    average_y: tuple[float, ...] = ()

    @property
    def capped(self) -> bool:
        """Whether of some range only the upper end is known."""
        return any(each.low is None for each in self.ranges)


@dataclass(frozen=True)
class Level:
    """A horizontal line with words: a link's rate, a bound."""

    y: float
    words: str


@dataclass(frozen=True)
class Column:
    """A column of a table: title, unit ("" without one), digits after the point of its numbers."""

    title: str
    unit: str = ""
    digits: int = 1

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Table:
    """The numbers of a plot, for those who don't see it and for machines."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), row


@dataclass(frozen=True)
class Plot:
    """A plot. key: name of its files. title: what is seen. says: the conclusion, a sentence."""

    key: str
    title: str
    says: str
    x: Axis
    y: Axis
    table: Table
    lines: tuple[Line, ...] = ()
    bars: tuple[Bars, ...] = ()
    stacked: bool = False
    reference: Reference | None = None
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, paragraphs, a table of its own, plots.

    key: name of the table's file.
    """

    title: str
    text: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    table: Table | None = None
    key: str = ""


@dataclass(frozen=True)
class Report:
    """A report: its conclusions first, then the parts, then how it was computed.

    kind: "reduction", "risk" or "compare": the name of its page. data: all numbers, JSON-able, for
    `<kind>.json`; details: further ones, for `details.json`.
    """

    kind: str
    title: str
    conclusions: tuple[str, ...]
    sections: tuple[Section, ...]
    method: tuple[str, ...]
    data: dict[str, object]
    #: What makes the numbers doubtful, one sentence each.
    warnings: tuple[str, ...] = ()
    details: dict[str, object] = field(default_factory=dict)

    def plots(self) -> list[Plot]:
        """All plots in order."""
        return [plot for section in self.sections for plot in section.plots]
