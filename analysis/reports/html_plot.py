"""A plot's description for plotly.js. Colours are roles ("@ink"), which the page resolves."""

from __future__ import annotations

from html import escape
from typing import Any

from mirrord.analysis.reports.plots import DASHES, MARKERS, Axis, Bars, Line, Plot, Reference

_WORDS_MAX = 48


def described(plot: Plot) -> dict[str, Any]:
    """Data and layout for `Plotly.react`, JSON-able."""
    data: list[dict[str, Any]] = []
    if plot.reference is not None:
        data += _reference(plot.reference)
    data += [_bars(bars, plot) for bars in plot.bars]
    data += map(_line, plot.lines)
    return {"data": data, "layout": _layout(plot)}


def _layout(plot: Plot) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "paper_bgcolor": "@ground",
        "plot_bgcolor": "@ground",
        "font": {"color": "@ink", "size": 13, "family": "system-ui, 'DejaVu Sans', sans-serif"},
        "margin": {"l": 10, "r": 16, "t": 34, "b": 10},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "@panel", "bordercolor": "@quiet", "font": {"color": "@ink"}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@soft", "activecolor": "@ink"},
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container",
            "yanchor": "bottom", "font": {"size": 12}, "bgcolor": "rgba(0,0,0,0)",
        },
        "showlegend": True,
        "xaxis": _axis(plot.x, plot.x.title),
        # The title of the y axis is above the plot: a phone has no room for it at the side.
        "yaxis": _axis(plot.y, ""),
        "meta": {"short": [_few_letters(words) for _, words in plot.x.ticks]},
        "shapes": [], "annotations": [],
    }  # fmt: skip
    if plot.bars:
        layout["barmode"] = "stack" if plot.stacked else "group"
        layout["bargap"] = 0.25
    for level in plot.levels:
        layout["shapes"].append(
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": level.y,
                "y1": level.y,
                "line": {"color": "@soft", "width": 1.5, "dash": "dash"},
            }
        )
        layout["annotations"].append(
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
                "y": _logged(level.y, plot.y),
                "text": escape(level.words, quote=False),
                "font": {"color": "@soft", "size": 11.5},
            }
        )
    return layout


def _logged(value: float, axis: Axis) -> float:
    """Annotations on a logarithmic axis are placed by the exponent."""
    from math import log10

    return log10(value) if axis.scale == "log" else value


def _axis(axis: Axis, title: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "title": {"text": escape(title, quote=False), "standoff": 10},
        "automargin": True, "gridcolor": "@grid", "linecolor": "@quiet", "zerolinecolor": "@grid",
        "tickcolor": "@quiet", "ticks": "outside", "ticklen": 4,
        "type": {"time": "date", "names": "category"}.get(axis.scale, axis.scale),
    }  # fmt: skip
    if axis.scale == "log":
        made["minor"] = {"ticks": ""}
        made["exponentformat"] = "none"
        if not axis.ticks:
            made["dtick"] = 1
    if axis.ticks:
        made["tickvals"] = [place for place, _ in axis.ticks]
        made["ticktext"] = [words for _, words in axis.ticks]
    if axis.names:
        made["categoryorder"] = "array"
        made["categoryarray"] = [_short(name) for name in axis.names]
        made["tickangle"] = "auto"
    if axis.low is not None and axis.high is not None:
        made["range"] = [_logged(axis.low, axis), _logged(axis.high, axis)]
    elif axis.scale == "linear":
        made["rangemode"] = "tozero"
    return made


def _few_letters(words: str) -> str:
    """`15m` for `15 min`: ticks for a narrow screen."""
    return words.replace(" min", "m").replace(" ", "")


def _short(name: str) -> str:
    name = name if len(name) <= _WORDS_MAX else f"{name[: _WORDS_MAX - 1]}…"
    return escape(name, quote=False)


def _hover(name: str, labelled: bool) -> str:
    where = "%{customdata}" if labelled else "%{x}"
    return f"<b>{escape(name, quote=False)}</b><br>{where}<br>%{{y:,.4~g}}<extra></extra>"


def _line(line: Line) -> dict[str, Any]:
    tone = "@ink" if line.strong else "@quiet" if line.tone < 0 else f"@s{line.tone}"
    mode = "+".join(
        word
        for word, wanted in (
            ("lines", line.joined),
            ("markers", line.marker),
            ("text", any(line.sides)),
        )
        if wanted
    )
    made: dict[str, Any] = {
        "type": "scatter", "mode": mode, "name": _short(line.name),
        "x": list(line.x), "y": list(line.y),
        "line": {"color": tone, "width": 3.5 if line.strong else 2,
                 "dash": DASHES[line.dash % len(DASHES)],
                 "shape": "hv" if line.steps else "linear"},
        "marker": {"color": tone, "size": 15 if line.big else 8,
                   "symbol": MARKERS[line.tone % len(MARKERS)]},
        "hovertemplate": _hover(line.name, bool(line.labels)),
    }  # fmt: skip
    if line.big:
        made["marker"].update({"symbol": "star", "line": {"color": "@ink", "width": 1}})
    if line.filled:
        made["fill"] = "tozeroy"
        made["fillcolor"] = f"{tone}/0.15"
    if line.labels:
        words = [escape(label, quote=False) for label in line.labels]
        made["customdata"] = words
        if any(line.sides):
            shown = zip(words, line.sides, strict=True)
            made["text"] = [word if side else "" for word, side in shown]
            made["textposition"] = [side or "top right" for side in line.sides]
            made["textfont"] = {"color": "@ink", "size": 11.5}
    return made


def _bars(bars: Bars, plot: Plot) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": _short(bars.name),
        "x": [_short(name) for name in plot.x.names],
        "y": list(bars.values),
        "customdata": [escape(n, quote=False) for n in plot.x.names],
        "marker": {"color": "@quiet" if bars.tone < 0 else f"@s{bars.tone}"},
        "hovertemplate": _hover(bars.name, True),
    }


def _reference(reference: Reference) -> list[dict[str, Any]]:
    """Published ranges as thick grey bars, averages as a dotted line with hollow diamonds."""
    made: list[dict[str, Any]] = []
    name = escape(reference.name, quote=False)
    for each in reference.ranges:
        bounded = each.low is not None
        made.append(
            {
                "type": "scatter",
                "mode": "lines" if bounded else "markers",
                "x": [each.x, each.x] if bounded else [each.x],
                "y": [each.low, each.high] if bounded else [each.high],
                "line": {"color": "@quiet/0.4", "width": 13},
                "marker": {"symbol": "arrow-down", "size": 13, "color": "@quiet/0.8"},
                "name": f"{name}: range",
                "legendgroup": "range",
                "showlegend": bounded and not any(one.get("showlegend") for one in made),
                "hovertemplate": (
                    f"<b>{name}</b><br>{escape(each.words, quote=False)}<extra></extra>"
                ),
            }
        )
    if reference.average_x:
        made.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{name}: average",
                "x": list(reference.average_x),
                "y": list(reference.average_y),
                "line": {"color": "@quiet", "width": 1.5, "dash": "dot"},
                "marker": {"symbol": "diamond-open", "size": 10, "color": "@quiet"},
                "hovertemplate": f"<b>{name}: average</b><br>%{{y:.3~g}} %<extra></extra>",
            }
        )
    if reference.points:
        made.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{name}: each",
                "x": [x for x, _ in reference.points],
                "y": [y for _, y in reference.points],
                "marker": {"symbol": "line-ew-open", "size": 13, "color": "@quiet"},
                "hovertemplate": f"<b>{name}</b><br>%{{y:.3~g}} %<extra></extra>",
            }
        )
    return made
