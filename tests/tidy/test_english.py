"""Phrases that an administrator stumbles over, and that were removed, do not come back."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.test_tidy import name_of, text_of, tracked

HERE = Path(__file__).parent
PHRASES = (HERE / "phrases.txt").read_text(encoding="utf-8").splitlines()
ANY = re.compile("|".join(rf"\b{re.escape(phrase)}\b" for phrase in PHRASES), re.IGNORECASE)
LOWER = [phrase.lower() for phrase in PHRASES]
#: A file of an older version, comments included.
_OLDER = "tests/unit/test_migrate.py"


def phrases_in(text: str) -> list[str]:
    # A message may be written in several parts, line by line.
    text = " ".join(re.sub(r'"\s*\n\s*f?"', "", text).split())
    lower = text.lower()
    # (The search for all of them at once takes 20 times as long as that for each.)
    if not any(phrase in lower for phrase in LOWER):
        return []
    return [found.group() for found in ANY.finditer(text)]


def test_no_phrase_has_come_back() -> None:
    paths = tracked(".py", ".rs", ".md", ".sh", ".service")
    found = {name: phrases_in(text_of(path)) for path in paths if (name := name_of(path)) != _OLDER}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_the_phrases_are_found_where_they_are() -> None:
    assert len(PHRASES) > 80
    for phrase in PHRASES:
        message = f"A message: {phrase.capitalize()}."
        assert phrase.lower() in [found.lower() for found in phrases_in(message)], phrase
