"""Records as JSON with a checksum: a bit that a disk has turned is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_KEY = "sum"


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum."""
    return {**document, _KEY: _checksum(document)}


def unsealed(text: str | bytes) -> Any:
    """What such a text has, without the checksum; `ValueError` when that does not match. One that
    an older mirrord wrote has none.
    """
    document = json.loads(text)
    if isinstance(document, dict) and _KEY in document:
        found = document.pop(_KEY)
        if found != _checksum(document):
            raise ValueError("its checksum does not match")
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
