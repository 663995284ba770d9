"""Colours of reports, distinguishable with colour blindness, on light and dark backgrounds.

Based on Okabe and Ito, darker on a light background (yellow and sky blue are too pale for lines
there) and lighter on a dark one. Lines also differ in dash and marker, not only in colour.
"""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """Colours as #rrggbb. series: of lines and bars; quiet: of secondary elements."""

    ground: str
    panel: str
    ink: str
    soft: str
    grid: str
    quiet: str
    accent: str
    doubt: str
    series: tuple[str, ...]


LIGHT = Theme(
    ground="#ffffff",
    panel="#f6f7f9",
    ink="#1b1f24",
    soft="#57606a",
    grid="#dfe3e8",
    quiet="#8b95a1",
    accent="#0b5cad",
    doubt="#d55e00",
    series=("#0072b2", "#d55e00", "#009e73", "#b0468e", "#8a6d00", "#3f51b5", "#7a3e1d", "#4d4d4d"),
)
DARK = Theme(
    ground="#12161c",
    panel="#1a2029",
    ink="#e8ecf1",
    soft="#a9b4c0",
    grid="#303a46",
    quiet="#8793a1",
    accent="#79b8ff",
    doubt="#ff9248",
    series=("#56b4e9", "#ff9248", "#34d3a0", "#ee9ccb", "#e9cf52", "#aab6ff", "#d9a07a", "#c9ced6"),
)
