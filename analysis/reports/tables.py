"""Tables of a report: formatted numbers, and CSV with all digits."""

from __future__ import annotations

import csv
import io
import re

from mirrord.analysis.reports.plots import Cell, Column, Table

_UNITS = re.compile(r"(?<=\d) (?=%|(?:min|h|s|ms|d|B|[KMGT]iB|[kMG]?bit/s)\b)")


def unbroken(text: str) -> str:
    """The text with each number and its unit on one line."""
    return _UNITS.sub("\N{NO-BREAK SPACE}", text)


def grouped(text: str) -> str:
    """A number that was formatted with commas: thin spaces in their place."""
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")


def text_of(cell: Cell, column: Column) -> str:
    """A formatted cell: digits grouped by thin spaces, a dash for None.

    Only zero itself is shown as 0: a small number keeps a digit.
    """
    if cell is None:
        return "\N{EN DASH}"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return grouped(f"{cell:,}")
    if not cell:
        return "0"
    if abs(cell) < 0.5 * 10**-column.digits:
        return f"{cell:.1g}" if abs(cell) >= 1e-4 else "<0.0001"
    return grouped(f"{cell:,.{column.digits}f}")


def is_number(table: Table, place: int) -> bool:
    """Whether a column holds numbers (it is aligned to the right)."""
    return any(isinstance(row[place], int | float) for row in table.rows)


def csv_of(table: Table) -> str:
    """The table as CSV (RFC 4180, with a header); numbers with all their digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([column.head for column in table.columns])
    for row in table.rows:
        writer.writerow(["" if cell is None else cell for cell in row])
    return out.getvalue()


def plain_of(table: Table) -> str:
    """The table for a terminal: columns aligned, two spaces apart."""
    heads = [column.head for column in table.columns]
    rows = [
        [text_of(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    widths = [max(len(line[place]) for line in [heads, *rows]) for place in range(len(heads))]
    right = [is_number(table, place) for place in range(len(heads))]

    def aligned(line: list[str]) -> str:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(aligned(line) for line in [heads, *rows])
