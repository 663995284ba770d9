"""Plots as PNG and SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mirrord.analysis.reports.palette import LIGHT
from mirrord.analysis.reports.plots import Axis, Line, Plot, Reference
from mirrord.analysis.reports.tables import unbroken

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN, _DPI = 9.6, 6.0, 130
_DASHES = ("-", (0, (6, 3)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)))
_MARKERS = ("o", "s", "D", "^", "X", "v")
_CAPTION_WIDTH = 112
_TITLE_WIDTH = 74
#: Letters that fit into a row of a legend.
_LEGEND_WIDTH = 132


def pictures(plot: Plot) -> dict[str, bytes]:
    """The plot as `{"png": …, "svg": …}`; the same plot gives the same bytes."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans"], "font.size": 10.5, "text.color": LIGHT.ink,
        "axes.edgecolor": LIGHT.quiet, "axes.labelcolor": LIGHT.ink, "xtick.color": LIGHT.ink,
        "ytick.color": LIGHT.ink, "svg.hashsalt": "mirrord", "svg.fonttype": "path",
        "axes.facecolor": LIGHT.ground, "figure.facecolor": LIGHT.ground,
        # A "$" in the name of a trace does not begin a formula.
        "text.parse_math": False, "axes.formatter.useoffset": False, "axes.unicode_minus": True,
    }  # fmt: skip
    made: dict[str, bytes] = {}
    with matplotlib.rc_context(settings):
        figure = _figure(plot)
        for kind in ("png", "svg"):
            out = io.BytesIO()
            about = {"Title": plot.title, "Date": None} if kind == "svg" else {"Title": plot.title}
            figure.savefig(out, format=kind, dpi=_DPI, metadata=about)
            made[kind] = out.getvalue()
    made["png"] = _smaller(made["png"], plot.title)
    return made


def _smaller(png: bytes, title: str) -> bytes:
    """The picture with a palette of 256 colours, which is enough and takes a third of the space."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    about, out = PngInfo(), io.BytesIO()
    about.add_itxt("Title", title)
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(out, format="png", optimize=True, dpi=(_DPI, _DPI), pnginfo=about)
    return out.getvalue()


def _figure(plot: Plot) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [line.name for line in plot.lines] + [bars.name for bars in plot.bars]
    across = max(1, min(3, _LEGEND_WIDTH // (max(map(len, names), default=0) + 6)))
    more_in = max(0, len(names) // across - 3) * 0.2
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN + more_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    title = textwrap.fill(plot.title, _TITLE_WIDTH)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold")
    axes.set_title(
        textwrap.fill(unbroken(plot.caption), _CAPTION_WIDTH),
        loc="left",
        fontsize=10.5,
        color=LIGHT.soft,
        pad=10,
    )
    # The sentence is aligned with the title, not with the axes.
    axes.grid(True, color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _scale(axes, plot.x, "x")
    _scale(axes, plot.y, "y")
    if plot.reference is not None:
        _reference(axes, plot.reference)
    _bars(axes, plot)
    for line in plot.lines:
        _line(axes, line, plot)
    for level in plot.levels:
        axes.axhline(level.y, color=LIGHT.soft, linewidth=1.4, linestyle=(0, (5, 3)))
        words = axes.annotate(
            level.words,
            (1, level.y),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=9.5,
            color=LIGHT.soft,
        )
        words.set_in_layout(False)  # the layout is only for what surrounds the axes
    _limits(axes, plot)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            loc="outside lower left", ncols=min(across, len(handles)), frameon=False, fontsize=9.5
        )
    return figure


def _tone(tone: int) -> str:
    return LIGHT.quiet if tone < 0 else LIGHT.series[tone % len(LIGHT.series)]


def _plain(value: float) -> str:
    """A number without exponent or superfluous digits."""
    text = f"{value:,.9f}".rstrip("0").rstrip(".")
    return text if text not in ("", "-0") else "0"


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    here: Any = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(axis.title)
    if axis.scale == "log":
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        here.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        here.set_minor_locator(NullLocator())
    elif axis.scale == "linear":
        here.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    elif axis.scale == "time":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        here.set_major_locator(locator)
        here.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    if axis.ticks:
        here.set_ticks([place for place, _ in axis.ticks], [words for _, words in axis.ticks])
        here.set_minor_locator(NullLocator())
    if axis.names:
        crowded = max(len(name) for name in axis.names) * len(axis.names) > 90
        names = [textwrap.shorten(name, 34, placeholder="…") for name in axis.names]
        here.set_ticks(range(len(names)), names)
        if crowded:
            axes.tick_params(axis="x", labelrotation=30)
            for label in axes.get_xticklabels():
                label.set_horizontalalignment("right")
                label.set_rotation_mode("anchor")


def _limits(axes: Axes, plot: Plot) -> None:
    for axis, limits in ((plot.x, axes.set_xlim), (plot.y, axes.set_ylim)):
        if axis.low is not None and axis.high is not None:
            limits(axis.low, axis.high)
    if plot.y.scale == "linear" and plot.y.low is None:
        axes.set_ylim(bottom=0)
    if plot.x.scale == "linear" and plot.x.low is None:
        axes.set_xlim(left=0)


def _line(axes: Axes, line: Line, plot: Plot) -> None:
    colour = LIGHT.ink if line.strong else _tone(line.tone)
    x: list[Any] = list(line.x)
    if plot.x.scale == "time":
        x = [datetime.fromisoformat(str(each)) for each in x]
    axes.plot(
        x,
        list(line.y),
        label=line.name,
        color=colour,
        linewidth=(3.2 if line.strong else 1.8) if line.joined else 0,
        linestyle=_DASHES[line.dash % len(_DASHES)],
        marker=("*" if line.big else _MARKERS[line.tone % len(_MARKERS)]) if line.marker else "",
        markersize=18 if line.big else 7,
        drawstyle="steps-post" if line.steps else "default",
        markeredgecolor=LIGHT.ink if line.big else colour,
        zorder=5 if line.big else 3,
    )
    if line.filled:
        axes.fill_between(
            x,
            list(line.y),
            step="post" if line.steps else None,
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    for place, side in enumerate(line.sides):
        if side is not None:
            across, up = (8 if "right" in side else -8), (6 if "top" in side else -6)
            axes.annotate(
                line.labels[place],
                (x[place], line.y[place]),
                xytext=(across, up),
                textcoords="offset points",
                fontsize=9.5,
                color=LIGHT.ink,
                ha="left" if across > 0 else "right",
                va="bottom" if up > 0 else "top",
            )


def _bars(axes: Axes, plot: Plot) -> None:
    if not plot.bars:
        return
    axes.grid(False, axis="x")
    count = len(plot.x.names)
    base = [0.0] * count
    width = 0.7 if plot.stacked else 0.7 / len(plot.bars)
    for number, bars in enumerate(plot.bars):
        shift = 0.0 if plot.stacked else (number - (len(plot.bars) - 1) / 2) * width
        axes.bar(
            [place + shift for place in range(count)],
            list(bars.values),
            width,
            bottom=base if plot.stacked else None,
            label=bars.name,
            color=_tone(bars.tone),
        )
        base = [low + value for low, value in zip(base, bars.values, strict=True)]


def _reference(axes: Axes, reference: Reference) -> None:
    named = False
    for each in reference.ranges:
        if each.low is None:
            axes.plot(
                [each.x],
                [each.high],
                marker="v",
                markersize=9,
                color=LIGHT.quiet,
                alpha=0.8,
                linewidth=0,
                zorder=2,
            )
            continue
        axes.plot(
            [each.x, each.x],
            [each.low, each.high],
            color=LIGHT.quiet,
            alpha=0.4,
            linewidth=11,
            solid_capstyle="butt",
            zorder=2,
            label=None if named else f"{reference.name}: range",
        )
        named = True
    if reference.average_x:
        axes.plot(
            reference.average_x,
            reference.average_y,
            color=LIGHT.quiet,
            linewidth=1.4,
            linestyle=(0, (1.5, 2.5)),
            marker="D",
            markersize=8,
            markerfacecolor="none",
            zorder=2,
            label=f"{reference.name}: average",
        )
    if reference.points:
        axes.plot(
            [x for x, _ in reference.points],
            [y for _, y in reference.points],
            color=LIGHT.quiet,
            linewidth=0,
            marker="_",
            markersize=11,
            zorder=2,
            label=f"{reference.name}: each",
        )
