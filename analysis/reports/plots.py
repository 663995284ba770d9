"""The description of a plot, from which the page, the pictures and the tables are generated.

It defines what is drawn; `html` and `images` define how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

#: A cell of a table: numbers are kept as numbers, so that the CSV has all their digits.
Cell = str | int | float | None
#: What distinguishes lines besides their colour.
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down")


#: Where a label is placed relative to its point.
Side = Literal["top right", "bottom right", "top left", "bottom left"]


@dataclass(frozen=True)
class Axis:
    """An axis. scale "time": values are ISO 8601 texts of the wall clock, without a zone.

    title: with the unit. ticks: places and their labels, where numbers alone are not enough.
    names: of a scale "names", the labels at 0, 1, 2 …
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

    tone: number of its colour, negative: grey. labels: texts of the points; `sides`: on which side
    of the point each is drawn; None: only shown on hover. big: a star. strong: the most important
    line.
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
    sides: tuple[Side | None, ...] = ()


@dataclass(frozen=True)
class Bars:
    """Bars over the names of the x axis; several are stacked or drawn side by side."""

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
    """Published results, drawn in grey behind: ranges, and a line through averages."""

    name: str
    ranges: tuple[Range, ...] = ()
    average_x: tuple[float, ...] = ()
    average_y: tuple[float, ...] = ()
    #: Single results, at x and y.
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line with words: a link's rate, a bound."""

    y: float
    words: str


@dataclass(frozen=True)
class Column:
    """A column of a table: title, unit ("" without one), number of decimals."""

    title: str
    unit: str = ""
    digits: int = 1

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Table:
    """The numbers of a plot, for screen readers and programs."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), row


@dataclass(frozen=True)
class Plot:
    """A plot. key: name of its files. title: what is shown. caption: the conclusion, a sentence."""

    key: str
    title: str
    caption: str
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
    """A part of a report: a heading, paragraphs, a table, plots.

    key: name of the table's file. short: the columns of the table that decide, for a terminal.
    """

    title: str
    text: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    table: Table | None = None
    key: str = ""
    short: Table | None = None


@dataclass(frozen=True)
class Report:
    """A report: its conclusions, then the sections, then how it was computed.

    kind: "reduction", "risk" or "compare": the name of its page. data: all numbers, JSON-able, for
    `<kind>.json`; details: further ones, for `details.json`.
    """

    kind: str
    title: str
    conclusions: tuple[str, ...]
    sections: tuple[Section, ...]
    method: tuple[str, ...]
    data: dict[str, object]
    #: Warnings about the numbers, one sentence each.
    warnings: tuple[str, ...] = ()
    details: dict[str, object] = field(default_factory=dict)
    #: Prices and other assumptions in short, printed with the conclusions.
    assumptions: tuple[str, ...] = ()
    #: Which command made it from which files, for its own files; empty: not known.
    provenance: dict[str, object] = field(default_factory=dict)

    def plots(self) -> list[Plot]:
        """All plots in order."""
        return [plot for section in self.sections for plot in section.plots]
