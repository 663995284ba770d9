"""A report as one HTML file that needs nothing else: script, style and numbers are inside.

Plots are drawn by plotly.js, which is embedded; the page forbids itself any network by its content
security policy. Without scripts the conclusions and the tables are there all the same.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from html import escape
from importlib import resources

from mirrord.analysis.reports.html_plot import described
from mirrord.analysis.reports.palette import DARK, LIGHT
from mirrord.analysis.reports.plots import Plot, Report, Section, Table
from mirrord.analysis.reports.tables import csv_of, is_number, text_of, unbroken

#: Tables up to so many rows are open from the start.
_OPEN_ROWS = 12
_ROLES = ("ground", "panel", "ink", "soft", "grid", "accent", "doubt")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def page(report: Report, *, version: str) -> str:
    """The whole page. `ModuleNotFoundError` when plotly is not installed."""
    plots = {plot.key: described(plot) for plot in report.plots()}
    themes = {"light": LIGHT._asdict(), "dark": DARK._asdict()}
    variables = "".join(f"--{role}:{getattr(LIGHT, role)};" for role in _ROLES)
    dark = "".join(f"--{role}:{getattr(DARK, role)};" for role in _ROLES)
    style = f":root{{{variables}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}" + _own(
        "page.css"
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="mirrord {escape(version)}">',
        f"<title>{escape(report.title)}</title>",
        f"<style>{style}</style></head><body>",
        f"<header><h1>{escape(report.title)}</h1>",
        '<button id="theme" type="button" hidden>Dark colours</button></header>',
        _main(report),
        f"<footer>Made by mirrord {escape(version)}.</footer>",
        f'<script type="application/json" id="plots">{_json(plots)}</script>',
        f'<script type="application/json" id="themes">{_json(themes)}</script>',
        f"<script>{_plotly()}</script>",
        f"<script>{_own('page.js')}</script>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _main(report: Report) -> str:
    said = "".join(f"<li>{_prose(line)}</li>" for line in report.conclusions)
    links = "".join(
        f'<li><a href="#part-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(report.sections)
    )
    parts = [
        "<main>",
        f'<div class="conclusions"><h3>In short</h3><ul>{said}</ul></div>',
        _warnings(report),
        f'<nav aria-label="Parts"><ul>{links}<li><a href="#method">How it was computed</a></li>'
        "</ul></nav>",
        "<noscript><p>The plots need scripts, which are off. Each plot's numbers are in the table "
        "beneath it.</p></noscript>",
    ]
    parts += [_section(section, number) for number, section in enumerate(report.sections)]
    parts.append('<h2 id="method">How it was computed</h2><div class="method">')
    parts += [f"<p>{_prose(line)}</p>" for line in report.method]
    parts.append("</div></main>")
    return "\n".join(parts)


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    said = "".join(f"<li>{_prose(line)}</li>" for line in report.warnings)
    return f'<div class="conclusions doubt"><h3>What makes it doubtful</h3><ul>{said}</ul></div>'


def _section(section: Section, number: int) -> str:
    parts = [f'<section aria-labelledby="part-{number}">']
    parts.append(f'<h2 id="part-{number}">{escape(section.title)}</h2>')
    parts += [f"<p>{_prose(line)}</p>" for line in section.text]
    if section.table is not None:
        parts.append(_table(section.table, section.title))
    parts += [_figure(plot) for plot in section.plots]
    parts.append("</section>")
    return "\n".join(parts)


def _figure(plot: Plot) -> str:
    rows = len(plot.table.rows)
    opened = " open" if rows <= _OPEN_ROWS else ""
    data = base64.b64encode(csv_of(plot.table).encode()).decode()
    return (
        f'<figure id="figure-{plot.key}"><h3>{escape(plot.title)}</h3>'
        f"<figcaption>{_prose(plot.says)}</figcaption>"
        f'<p class="unit">\N{UPWARDS ARROW} {escape(plot.y.title)}</p>'
        f'<div class="plot" id="plot-{plot.key}" role="img" '
        f'aria-label="{escape(plot.title)}. {escape(plot.says)} The numbers are in the table '
        'beneath."></div>'
        f"<details{opened}><summary>The numbers of this plot ({rows} rows)</summary>"
        f"{_table(plot.table, plot.title)}"
        f'<p class="csv"><a download="{plot.key}.csv" href="data:text/csv;base64,{data}">'
        "Save as CSV</a></p></details></figure>"
    )


def _table(table: Table, title: str) -> str:
    numbers = [is_number(table, place) for place in range(len(table.columns))]
    kind = ['class="number"' if each else "" for each in numbers]
    heads = "".join(
        f'<th scope="col" {kind[place]}>{escape(column.head)}</th>'
        for place, column in enumerate(table.columns)
    )
    lines = []
    for row in table.rows:
        cells = "".join(
            f"<td {kind[place]}>{escape(text_of(cell, table.columns[place]))}</td>"
            for place, cell in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {escape(title)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _prose(text: str) -> str:
    """Text for a page: a number and its unit stay on one line."""
    return escape(unbroken(text))


def _json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _own(name: str) -> str:
    return (
        resources.files("mirrord.analysis.reports")
        .joinpath("page", name)
        .read_text(encoding="utf-8")
    )


@lru_cache(maxsize=1)
def _plotly() -> str:
    found = resources.files("plotly").joinpath("package_data", "plotly.min.js")
    return found.read_text(encoding="utf-8").replace("</script", "<\\/script")
