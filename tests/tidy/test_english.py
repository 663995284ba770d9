"""Phrases that an administrator stumbles over, and that were removed, do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.test_tidy import name_of, tracked

HERE = Path(__file__).parent
PHRASES = (HERE / "phrases.txt").read_text(encoding="utf-8").splitlines()
ANY = re.compile("|".join(rf"\b{re.escape(phrase)}\b" for phrase in PHRASES), re.IGNORECASE)
#: A file of an older version, comments included.
_OLDER = "tests/unit/test_migrate.py"


@pytest.mark.parametrize("path", tracked(".py", ".rs", ".md", ".sh", ".service"), ids=name_of)
def test_no_phrase_has_come_back(path: Path) -> None:
    # A message may be written in several parts, line by line.
    text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
    if name_of(path) != _OLDER:
        assert [found.group() for found in ANY.finditer(" ".join(text.split()))] == []


def test_the_phrases_are_found_where_they_are() -> None:
    assert len(PHRASES) > 80
    for phrase in PHRASES:
        assert ANY.search(f"A message: {phrase.capitalize()}."), phrase
